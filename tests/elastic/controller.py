"""A small control plane for tests: real template, real workers, real commits.

Spawns the template, forks workers, forms generations in three steps and keeps what
every worker said. Single-threaded: messages are read whenever somebody waits.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from bftrainer.batch import process
from bftrainer.elastic.checkpoints.origin_check import CONTINUE
from bftrainer.ground import protocol
from bftrainer.ground.protocol import (
    Commit,
    Entered,
    Failed,
    Finished,
    FromWorker,
    Left,
    Member,
    Prepare,
    Ready,
    Saved,
    Stop,
    ToWorker,
    Warm,
    WorkerConfig,
)
from tests.elastic import journal

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "bftrainer" / "elastic" / "template.py"
SCRIPTS = Path(__file__).resolve().parent / "scripts"
# Another one is set by scripts/try_versions.py.
USERS_PYTHON = os.environ.get("BFT_TEST_PYTHON", sys.executable)
_worker_numbers = itertools.count(1)
T = TypeVar("T")
M = TypeVar("M", bound=FromWorker)


@dataclass
class Worker:
    """One forked worker as its agent would see it."""

    worker_id: str
    channel: socket.socket
    log: Path
    pid: int = 0
    returncode: int | None = None
    said: list[FromWorker] = field(default_factory=list)
    pending: bytes = b""

    def all(self, kind: type[M]) -> list[M]:
        return [m for m in self.said if isinstance(m, kind)]


class TemplateProcess:
    """A warm template and its packets; serves many controllers."""

    def __init__(
        self,
        directory: Path,
        *,
        python: str = USERS_PYTHON,
        environment: Mapping[str, str] | None = None,
        modules: Sequence[str] = (),
    ) -> None:
        self.said: list[dict[str, Any]] = []
        self.workers: dict[str, Worker] = {}
        self.selector = selectors.DefaultSelector()
        self._start_template(directory, python, environment, modules)

    def _start_template(
        self,
        directory: Path,
        python: str,
        environment: Mapping[str, str] | None,
        modules: Sequence[str],
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.temporary = tempfile.TemporaryDirectory(prefix="bft-t")  # as each agent has its own
        with (directory / "template.log").open("ab") as log:
            self.process = process.spawn(
                [python, str(TEMPLATE), str(theirs.fileno()), *modules],
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "TMPDIR": self.temporary.name,
                    **(environment or {}),
                },
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
            )
        theirs.close()
        self.channel = ours
        self.selector.register(ours, selectors.EVENT_READ, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.channel.close()
        self.selector.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.temporary.cleanup()

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return the packets of one kind so far."""
        return [m[kind] for m in self.said if kind in m]

    def await_packet(self, kind: str) -> dict[str, Any]:
        """Wait for a packet of one kind."""
        deadline = time.monotonic() + 120
        while not self.all(kind):
            assert time.monotonic() < deadline, f"the template never said {kind}: {self.said}"
            self.pump(0.05)
        return self.all(kind)[0]

    def request(self, body: dict[str, Any], fds: Sequence[int]) -> None:
        """Send one packet with descriptors."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.channel.sendmsg([json.dumps(body).encode()], rights)

    def pump(self, timeout_s: float) -> None:
        """Read what has arrived from the template and all workers."""
        for key, _ in self.selector.select(timeout_s):
            if key.data is None:
                self._read()
            else:
                self._read_worker(self.workers[key.data])

    def _read(self) -> None:
        data = self.channel.recv(1 << 20)
        if not data:
            self.selector.unregister(self.channel)
            return
        message = json.loads(data)
        self.said.append(message)
        if "forked" in message:
            self.workers[message["forked"]["worker_id"]].pid = message["forked"]["pid"]
        if "exited" in message:
            worker = self.workers[message["exited"]["worker_id"]]
            worker.returncode = message["exited"]["returncode"]

    def _read_worker(self, worker: Worker) -> None:
        try:
            chunk = worker.channel.recv(1 << 16)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            self.selector.unregister(worker.channel)
            return
        *lines, worker.pending = (worker.pending + chunk).split(b"\n")
        for line in lines:
            message = protocol.decode(line)
            if not isinstance(message, FromWorker):
                raise TypeError(f"a worker may not say {message}")
            worker.said.append(message)


def holds_of(sizes: Sequence[int], *, apart: int) -> list[list[int]]:
    """Return what keeps a training from going on before ``Controller.through`` changes its size."""
    return [[apart * i, i + 1] for i in range(1, len(sizes))]


class Controller:
    """Agent and daemon in one, for one trainer on this machine."""

    def __init__(self, directory: Path, template: TemplateProcess) -> None:
        self.directory = directory
        self.template = template
        self.address = "127.0.0.1"  # of all workers
        self.workers: dict[str, Worker] = {}
        self.teams: dict[str, list[str]] = {}  # workers of a node, by the id of the first
        self.members: list[str] = []  # of the newest generation committed
        self.generation = 0
        self.attempt = 1
        template.await_packet("ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers.values():
            if worker.returncode is None and worker.pid:
                process.kill_group(worker.pid)
        self.until(
            lambda: all(w.returncode is not None for w in self.workers.values()), "all reaped"
        )
        for worker in self.workers.values():
            if worker.channel.fileno() >= 0:
                self._forget(worker.channel)

    def _forget(self, channel: socket.socket) -> None:
        if channel in self.template.selector.get_map():
            self.template.selector.unregister(channel)
        channel.close()

    # ---- workers ---------------------------------------------------------------------

    def start(
        self,
        script: Path | str,
        args: Sequence[str] = (),
        *,
        count: int = 1,
        per_node: int = 1,
        **config: Any,
    ) -> list[str]:
        """Fork workers; returns their ids without waiting for them to be warm.

        With several ``per_node`` the ids stand for all workers of their node.
        """
        return [self._fork_node(str(script), tuple(args), config, per_node) for _ in range(count)]

    def start_again(self, script: Path | str, args: Sequence[str] = (), **config: Any) -> list[str]:
        """Fork workers that go on from a checkpoint with other arguments (``--continue``)."""
        variables = (*self._variables(), (CONTINUE, "arguments"))
        return self.start(script, args, environment=variables, **config)

    def _variables(self) -> tuple[tuple[str, str], ...]:
        return ("BFT_TEST_DIR", str(self.directory)), ("OMP_NUM_THREADS", "1")

    def _fork_node(
        self, script: str, args: tuple[str, ...], config: dict[str, Any], per_node: int
    ) -> str:
        first = f"w{next(_worker_numbers)}"
        own = {"member": first, "local_size": per_node} if per_node > 1 else {}
        names = [first, *(f"w{next(_worker_numbers)}" for _ in range(1, per_node))]
        for local_rank, name in enumerate(names):
            of_rank = {"local_rank": local_rank} if own else {}
            self._fork(script, args, {**config, **own, **of_rank}, name)
        self.teams[first] = names
        return first

    def of(self, ids: Sequence[str]) -> list[str]:
        """Return all workers of these nodes."""
        return [name for one in ids for name in self.teams.get(one, [one])]

    def lose(self, worker_id: str) -> None:
        """Kill a worker, and as its agent would the others of its node."""
        self.kill(worker_id)
        (team,) = [names for names in self.teams.values() if worker_id in names]
        self.until(lambda: self.workers[worker_id].returncode is not None, "ended")
        for name in team:
            if self.workers[name].returncode is None:
                self.kill(name)
        self.until(lambda: all(self.workers[n].returncode is not None for n in team), "all ended")

    def _fork(self, script: str, args: tuple[str, ...], config: dict[str, Any], name: str) -> str:
        worker_id = name
        log = self.directory / f"{worker_id}.log"
        settings: dict[str, Any] = {
            "trainer_id": "t1",
            "worker_id": worker_id,
            "node": f"node-of-{worker_id}",
            "script": script,
            "args": args,
            "cwd": str(self.directory),
            "environment": self._variables(),
            "log_path": str(log),
            "checkpoint_dir": str(self.directory / "checkpoints"),
            "address": self.address,
            "seed": 11,
        }
        body = asdict(WorkerConfig(**{**settings, **config}))
        ours, theirs = socket.socketpair()
        worker = Worker(worker_id=worker_id, channel=ours, log=log)
        self.workers[worker_id] = self.template.workers[worker_id] = worker
        self.template.selector.register(ours, selectors.EVENT_READ, worker_id)
        self.template.request({"fork": body}, [theirs.fileno()])
        theirs.close()
        return worker_id

    def begin(self, script: Path | str, args: Sequence[str] = (), **config: Any) -> list[str]:
        """Start workers and form a generation of them; return their ids."""
        ids = self.start(script, args, **config)
        self.form(ids, new=ids)
        return ids

    def warm(self, ids: Sequence[str]) -> None:
        """Wait until all are warm."""
        self.until(lambda: all(self.workers[i].all(Warm) for i in self.of(ids)), f"{ids} warm")

    def up(self, worker_id: str) -> None:
        """Wait until a script has printed something."""
        log = self.workers[worker_id].log
        self.until(lambda: log.exists() and log.read_text(), "up")

    def tell(self, worker_id: str, message: ToWorker) -> None:
        """Send a message; a worker that is gone is found out by its exit."""
        with contextlib.suppress(OSError):
            self.workers[worker_id].channel.sendall(protocol.encode(message))

    def hang_up(self, worker_id: str) -> None:
        """Close a worker's channel, as its agent's death does."""
        self._forget(self.workers[worker_id].channel)

    def stop(self, worker_id: str) -> None:
        """Tell a worker to stop; wait for its end."""
        self.tell(worker_id, Stop(reason="test"))
        self.until(lambda: self.workers[worker_id].returncode == 0, "stopped")

    def kill(self, worker_id: str, sig: signal.Signals = signal.SIGKILL) -> None:
        """Signal one worker."""
        self.until(lambda: self.workers[worker_id].pid, "pid")
        os.kill(self.workers[worker_id].pid, sig)

    # ---- generations -----------------------------------------------------------------

    def prepare(self, members: Sequence[str], *, is_retry: bool = False) -> int:
        """Announce a generation; returns the port of its store."""
        if is_retry:
            self.attempt += 1
        else:
            self.generation += 1
            self.attempt = 1
        survivors = [m for m in self.members if m in members]
        opener = survivors[0] if survivors else members[0]
        for m in self.of(members):
            self.tell(
                m,
                Prepare(
                    generation=self.generation,
                    attempt=self.attempt,
                    open_store=m in self.teams.get(opener, [opener]),
                ),
            )
        key = (self.generation, self.attempt)

        def ready_of(worker_id: str) -> list[Ready]:
            said = self.workers[worker_id].all(Ready)
            return [r for r in said if (r.generation, r.attempt) == key]

        self.until(lambda: all(ready_of(m) for m in self.of(members)), f"ready for {key}")
        return ready_of(opener)[0].store_port

    def commit(
        self,
        members: Sequence[str],
        port: int,
        *,
        abandon: bool = False,
        incarnation: int = 0,
        saver: str = "",
    ) -> Commit:
        """Send the commit to the old and the new members; returns it."""
        message = Commit(
            generation=self.generation,
            attempt=self.attempt,
            token=secrets.token_hex(8),
            members=tuple(
                Member(worker_id=m, rank=rank, node=m, address=self.address)
                for rank, m in enumerate(members)
            ),
            store_host=self.address,
            store_port=port,
            abandon=abandon,
            saver=saver,
            incarnation=incarnation,
        )
        for m in self.of(list(dict.fromkeys([*self.members, *members]))):
            if self.workers[m].returncode is None:
                self.tell(m, message)
        self.members = list(members)
        return message

    def form(
        self,
        members: Sequence[str],
        *,
        new: Sequence[str] = (),
        abandon: bool = False,
        is_retry: bool = False,
    ) -> list[Entered]:
        """Form a generation, when ``new`` are warm; wait until all its members have entered it."""
        self.warm(new)
        port = self.prepare(members, is_retry=is_retry) if members else 0
        self.commit(members, port, abandon=abandon)
        return self.entered(members)

    def commit_only(self, members: Sequence[str]) -> None:
        """Announce a generation that is not expected to form."""
        self.commit(members, self.prepare(members))

    def form_without_answer_of(self, members: Sequence[str], *, stopped: str) -> list[Entered]:
        """Form a generation without a member that hears nothing any more."""
        port = self.prepare(members)
        self.members = [m for m in self.members if m != stopped]
        self.commit(members, port, abandon=True)
        return self.entered(members)

    def park(self, *, saver: str = "", lost: str = "") -> None:
        """Take all workers away; wait until they have left. ``lost`` died before."""
        self.members = [m for m in self.members if m != lost]
        leaving = self.of(self.members)
        self.generation += 1
        self.commit([], 0, abandon=bool(lost), saver=saver)
        self.until(lambda: all(self.workers[m].all(Left) for m in leaving), "all left")
        self.until(
            lambda: all(self.workers[m].returncode is not None for m in leaving), "all exited"
        )

    def entered(self, members: Sequence[str]) -> list[Entered]:
        """Wait for all members of the newest generation to enter it."""
        key = (self.generation, self.attempt)

        def of(worker_id: str) -> list[Entered]:
            said = self.workers[worker_id].all(Entered)
            return [e for e in said if (e.generation, e.attempt) == key]

        self.until(lambda: all(of(m) for m in self.of(members)), f"entered {key}")
        return [of(m)[0] for m in members]

    def finished(self, ids: Sequence[str] | None = None) -> list[Finished]:
        """Wait for the end of the run on all members."""
        ids = self.of(ids or self.members)
        self.until(lambda: all(self.workers[i].all(Finished) for i in ids), "finished")
        self.until(lambda: all(self.workers[i].returncode == 0 for i in ids), "exited with 0")
        return [self.workers[i].all(Finished)[0] for i in ids]

    def saved(self) -> list[Saved]:
        """Return all checkpoints written so far."""
        return [s for w in self.workers.values() for s in w.all(Saved)]

    def through(
        self, sizes: Sequence[int], script: Path, args: Sequence[str], *, apart: int
    ) -> None:
        """Train to the end through these sizes, each for ``apart`` steps.

        Before a negative one rank 0 is killed. The first leave, so that rank 0 changes as well. The
        script must hold each step ``apart * i`` for generation ``i + 1``, see ``holds_of``.
        """
        members: list[str] = []
        for i, size in enumerate(sizes):
            if i:
                self.trained_to(apart * i - 1)
            if size < 0:
                self.kill(members[0])
                dead = self.workers[members.pop(0)]
                self.until(lambda w=dead: w.returncode is not None, "death noticed")  # type: ignore[misc]
            joiners = self.start(script, args, count=max(0, abs(size) - len(members)))
            self.warm(joiners)
            members = [*members, *joiners][-abs(size) :]
            self.form(members, abandon=size < 0)
        self.finished()

    # ---- messages --------------------------------------------------------------------

    def trained_to(self, step: int) -> None:
        """Wait until the journal of a member has this step as committed."""
        self.until(lambda: journal.last_step(self.directory) >= step, f"step {step}")

    def until(self, condition: Callable[[], T | None], what: str, *, timeout_s: float = 90.0) -> T:
        """Read messages until ``condition`` is truthy; fail early when a worker failed."""
        deadline = time.monotonic() + timeout_s
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout_s} s: {what}\n{self.logs()}")
            self.template.pump(0.05)
        return result

    def failed(self, worker_id: str) -> Failed:
        """Wait for a worker's ``Failed`` and its exit."""
        worker = self.workers[worker_id]
        self.until(lambda: worker.all(Failed) and worker.returncode is not None, "failed")
        return worker.all(Failed)[0]

    def logs(self) -> str:
        """Return what everybody printed, for failure messages."""
        parts = []
        for worker in self.workers.values():
            text = worker.log.read_text()[-3000:] if worker.log.exists() else ""
            said = [type(m).__name__ for m in worker.said][-8:]
            parts.append(f"--- {worker.worker_id} rc={worker.returncode} said {said}\n{text}")
        return "\n".join(parts)


def settings_of(**settings: object) -> list[str]:
    """Return the arguments of a script that reads its settings as JSON."""
    return [json.dumps(settings)]
