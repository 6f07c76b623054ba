"""The sidecar's control plane for benchmarks and tests: real agents, wire, journal, generations.

Everything between a plan and the trainers is the daemon's own (``AgentServer``,
``AgentBook``, ``TrainerBook`` with its ``GenerationMachine``, the journal); only the
plan itself comes from the caller, by ``set_nodes``. One trainer, agents on
loopback. Leaving the context ends every process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from _bench.waiting import BenchError, wait_until_async

from bftrainer.batch import process
from bftrainer.fleet.control_plane import ControlPlane, Listener
from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.members import Rescaled
from bftrainer.fleet.trainers.log_files import log_directory
from bftrainer.fleet.wire.keys import generate_pair
from bftrainer.fleet.wire.messages import AgentMessage, WorkerExited, WorkerSaid, WorkerStarted
from bftrainer.ground import protocol
from bftrainer.journal.journal import Journal
from bftrainer.model.trainer import TrainerSpec
from bftrainer.site.policy.model import SitePolicy
from tests.support.network import Cut, Network

TICK_S = 0.1  # as the daemon's
SIGN_OF_LIFE_S = 1.0
LEASE_S = 60.0  # should this process be killed, the agents end by themselves
JOIN_WINDOW_S = 30.0  # joiners of one transition join together
POLL_S = 0.02

T = TypeVar("T")


class Plane:
    """One trainer on a few agents of this machine, or of a network of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        agents: int,
        script: Path,
        model: str,
        environment: dict[str, str],
        policy: SitePolicy | None = None,
        changes: Mapping[str, Any] | None = None,
        network: Network | None = None,
    ) -> None:
        self.directory = directory
        self.network = network  # agents are on nodes of it
        self._host = network.address if network else "127.0.0.1"
        self.warm_up_s: list[float] = []  # start of a worker to ready to join
        self.pids: dict[str, int] = {}  # worker id -> pid
        self.exited: set[str] = set()
        self._agent_count = agents
        self._policy = policy or SitePolicy(
            lease_s=LEASE_S,
            heartbeat_s=1.0,
            agent_timeout_s=20.0,
            join_window_s=JOIN_WINDOW_S,
            failure_budget=10_000,
        )
        fields: dict[str, Any] = {
            "name": model,
            "user": "bench",
            "script": str(script),
            "args": (model,),
            "cwd": str(directory),
            "interpreter": sys.executable,
            "n_min": 1,
            "n_max": agents,
            "checkpoint_dir": str(directory / "checkpoints"),
            "environment": tuple({"OMP_NUM_THREADS": "1", **environment}.items()),
            "backend": os.environ.get("BENCH_BACKEND", "auto"),
        }
        self._spec = TrainerSpec(**{**fields, **(changes or {})})
        self._keys = generate_pair()
        self._public_keys: dict[str, str] = {}  # by pilot id
        self._agents: list[subprocess.Popen[bytes]] = []
        self._pilot_on: dict[str, str] = {}  # node -> the pilot there now
        self._background: list[asyncio.Task[None]] = []
        self._left = contextlib.ExitStack()
        self._planned: list[str] = []
        self._is_stale = False  # the plan: something has changed since it was carried out

    # ---- life ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        await self.start_daemon()
        self.trainer_id = self.trainers.submit(self._spec).trainer_id
        for i in range(self._agent_count):
            self.start_agent(f"n{i}")
        self._background = [asyncio.create_task(loop()) for loop in (self._tick, self._live)]
        await self.until(lambda: len(self._book.connected) == self._agent_count, "agents connect")

    async def start_daemon(self, port: int = 0, *, is_heir: bool = False) -> None:
        """Be a daemon: journal, server, trainers; agents find it at its port."""
        journal = self._left.enter_context(
            contextlib.closing(Journal.open(self.directory / "journal.db", clock=time.time))
        )
        incarnation = journal.begin_incarnation()
        self._control = ControlPlane(
            journal=journal,
            policy=self._policy,
            pilots_dir=self.directory / "pilots",
            incarnation=incarnation,
            keys=self._keys,
            listener=Listener(received=self._received, changed=self._changed),
            decide_soon=self._changed,
        )
        self._book, self.trainers = self._control.agents, self._control.trainers
        if not is_heir:
            self._control.adopt()
        for pilot_id, public_key in self._public_keys.items():
            self._control.server.register(pilot_id, public_key)
        await self._control.start(self._host, port)

    async def stop_daemon(self) -> int:
        """Be dead, without a word; returns the port at which agents look for an heir."""
        port = int(self._book.endpoint.rsplit(":", 1)[1])
        self._control.is_adopting = True
        await self._control.stop()
        self._left.close()
        self._book.connected.clear()
        return port

    async def return_daemon(self, port: int, pilot_ids: Collection[str]) -> None:
        """Be its heir: wait for these agents and adopt what they report."""
        await self.start_daemon(port, is_heir=True)
        await self.until(lambda: set(pilot_ids) <= set(self._book.connected), "agents return")
        self._control.adopt()
        self.set_nodes(self._planned)

    def start_agent(self, node: str) -> tuple[str, subprocess.Popen[bytes]]:
        """Start an agent of a new pilot on a node; returns both."""
        pilot_id = self._pilot_on[node] = f"p{len(self._agents)}"
        address = self.network.add(node).address if self.network else self._host
        keys = generate_pair()
        files = self._book.write_files(pilot_id, node, keys, address, 0)
        self._public_keys[pilot_id] = keys.public
        self._control.server.register(pilot_id, keys.public)
        argv = self.network.argv(node, files.argv) if self.network else files.argv
        with files.log.open("ab") as log:
            agent = process.spawn(argv, stdout=log, stderr=log)
        self._agents.append(agent)
        return pilot_id, agent

    async def _stop(self) -> None:
        for agent in self._agents:  # takes its template and workers along
            with contextlib.suppress(ProcessLookupError):
                agent.send_signal(signal.SIGTERM)
                agent.send_signal(signal.SIGCONT)
        for agent in self._agents:
            try:
                agent.wait(5)
            except subprocess.TimeoutExpired:
                process.kill_group(agent.pid)
                agent.wait()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if hasattr(self, "_control"):
            await self._control.stop()
        self._left.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._is_stale and not self._control.is_adopting:
                self.set_nodes(self._planned)  # as the daemon decides anew
            self._control.tick()

    async def _live(self) -> None:
        while True:
            self._control.send_signs_of_life()
            await asyncio.sleep(SIGN_OF_LIFE_S)

    def _received(self, _pilot_id: str, message: AgentMessage) -> None:
        """Keep what benchmarks ask about."""
        match message:
            case WorkerStarted(worker_id=worker_id, pid=pid):
                self.pids[worker_id] = pid
            case WorkerSaid(body=body):
                said = protocol.from_body(body)
                if isinstance(said, protocol.Warm):
                    self.warm_up_s.append(said.warm_up_s)
            case WorkerExited(worker_id=worker_id):
                self.exited.add(worker_id)
            case _:
                pass

    def _changed(self) -> None:
        self._is_stale = True

    # ---- what a benchmark does -----------------------------------------------------------

    def set_nodes(self, nodes: Sequence[str]) -> None:
        """Plan these nodes for the trainer."""
        self._planned, self._is_stale = list(nodes), False
        barred = self.trainers.occupancy().apart.get(self.trainer_id, {})
        offers = [o for o in self._control.offers().values() if o.node in {*nodes} - {*barred}]
        self.trainers.set_targets({self.trainer_id: offers})

    @property
    def agents(self) -> list[subprocess.Popen[bytes]]:
        """The agents' processes, as started."""
        return list(self._agents)

    @property
    def connected(self) -> list[str]:
        """Pilots whose agents are there."""
        return sorted(self._book.connected)

    def all_nodes(self) -> list[str]:
        """Return the names of all nodes."""
        return [f"n{i}" for i in range(self._agent_count)]

    def members(self) -> list[tuple[str, str]]:
        """Return (worker id, node) of the current members in rank order."""
        machine = self._machine()
        workers = machine.crew.workers  # an heir may not know one that died before it came
        return [(w, workers[w].node) for w in machine.crew.members if w in workers]

    def is_busy(self) -> bool:
        """Whether any worker of the trainer is left."""
        return any(w.is_alive for w in self._machine().crew.workers.values())

    def rescales(self) -> list[Rescaled]:
        """Return all generations completed so far."""
        return [done for _, _, done in self.trainers.rescales]

    def kill_worker(self, worker_id: str, number: signal.Signals = signal.SIGKILL) -> float:
        """Kill or stop a worker; returns the instant, by the monotonic clock."""
        at_s = time.monotonic()
        os.kill(self.pids[worker_id], number)
        return at_s

    def silence_node(self, node: str) -> float:
        """Stop all processes of a node, its agent first; returns the instant.

        To the others it looks like a node whose network is gone: connections stay open
        and nothing comes through them any more.
        """
        at_s = time.monotonic()
        for pid in self.processes_of(node):
            os.kill(pid, signal.SIGSTOP)
        return at_s

    def cut_node(self, node: str, what: Cut = Cut.CABLE) -> float:
        """Take the network from a node; returns the instant, by the monotonic clock."""
        at_s = time.monotonic()
        self._cables().cut(node, what)
        return at_s

    def mend_node(self, node: str) -> None:
        """Give it back."""
        self._cables().mend(node)

    def _cables(self) -> Network:
        if self.network is None:
            raise BenchError("all agents share the network of this machine")
        return self.network

    def processes_of(self, node: str) -> list[int]:
        """Return the agent of a node and all that runs below it."""
        agent = self._agents[int(self._pilot_on[node][1:])]
        return [agent.pid, *descendants(agent.pid)]

    def is_connected(self, node: str) -> bool:
        """Whether the agent of a node is in touch with the daemon."""
        return self._pilot_on[node] in self._book.connected

    async def replace_node(self, node: str) -> None:
        """End what is left of a node and start a fresh agent there."""
        agent = self._agents[int(self._pilot_on[node][1:])]
        for pid in [*descendants(agent.pid), agent.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()
        self.start_agent(node)
        pilot_id = self._pilot_on[node]
        await self.until(lambda: pilot_id in self._book.connected, f"an agent on {node}")

    def kill_node(self, node: str) -> None:
        """SIGKILL the agent of a node and with it all that runs there."""
        self._agents[int(self._pilot_on[node][1:])].kill()
        self._book.connected.pop(self._pilot_on[node], None)

    async def until(self, condition: Callable[[], T], what: str, timeout_s: float = 60.0) -> T:
        """Wait until ``condition`` is truthy and return that."""

        def looked() -> T | None:
            result = condition()
            if not result and self._is_over():
                raise BenchError(f"the trainer ended while waiting: {what}")
            return result

        try:
            return await wait_until_async(looked, what, patience_s=timeout_s, interval_s=POLL_S)
        except BenchError as problem:
            raise BenchError(f"{problem}; {self._position()}; {self._last_log()}") from problem

    def _position(self) -> str:
        machine = self._machine()
        workers = [
            f"{w.worker_id} on {w.node} {w.phase}"
            for w in machine.crew.workers.values()
            if w.is_alive
        ]
        return (
            f"planned {self._planned}, targets {sorted(machine.plan.targets)},"
            f" members {machine.crew.members}, forming {machine.forming}, workers {workers}"
        )

    def _machine(self) -> GenerationMachine:
        return self.trainers.trainers[self.trainer_id].machine

    def ended(self) -> str:
        """Say that the trainer has ended and what it printed last; "" while it has not."""
        return f"the trainer ended; {self._last_log()}" if self._is_over() else ""

    def _is_over(self) -> bool:
        return self.trainers.records[self.trainer_id].state.is_final

    def _last_log(self) -> str:
        logs = sorted(log_directory(self._spec).glob("*.log"), key=lambda p: p.stat().st_mtime)
        agents = sorted(self.directory.glob("pilots/*/*.log"), key=lambda p: p.stat().st_mtime)
        return "\n".join(f"--- {p}:\n{p.read_text()[-800:]}" for p in [*logs[-2:], *agents[-1:]])


def descendants(pid: int) -> list[int]:
    """Return the processes below one, nearest first."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found + [deeper for child in found for deeper in descendants(child)]
