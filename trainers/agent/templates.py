"""The agent's warm templates, one per interpreter, start-up environment and preamble.

Asks them to fork workers and reports pids, exits and failures to ``TemplateEvents``. The packets
are described in ``bftrainer.elastic.template``. Called by ``trainers.agent.workers``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bftrainer.batch import process
from bftrainer.elastic.process import worker_keeper
from bftrainer.model.container import ENDED_EARLY
from bftrainer.model.preamble import CODE
from trainers.agent.channel import Channel
from trainers.agent.preambles import NO_PREAMBLE, Output, Preamble
from trainers.agent.signals import LEAVE_SIGNALS
from trainers.agent.start import (
    KEEP_FREED_MEMORY,
    KILLED,
    Started,
    log_of,
    start_template,
    usual_environment,
)

LOG = logging.getLogger("bftrainer.agent")
PREAMBLE_LIMIT_S = 90.0  # below ``start_timeout_s``, which is no failure
MAX_FORK_BYTES = 128 * 1024  # a packet must fit the kernel's default socket buffer
# Read when a process or a library starts: workers cannot set them later.
START_VARIABLES = frozenset(
    {
        "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED", "OMP_NUM_THREADS",
        "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX", "KMP_AFFINITY",
        "GLIBC_TUNABLES", *KEEP_FREED_MEMORY,
    }
)  # fmt: skip


class TemplateEvents(Protocol):
    """Callbacks for workers' starts and ends."""

    def forked(self, worker_id: str, pid: int) -> None:
        """The worker runs; its pid is also its process group."""

    def exited(self, worker_id: str, returncode: int, cause: str) -> None:
        """The worker has ended or could not be started."""

    def sweep(self) -> set[int]:
        """A keeper or a template has ended: kill what it left to us; return the pids."""


@dataclass(frozen=True, slots=True)
class TemplateKey:
    """Workers with equal keys fork from the same template."""

    interpreter: str
    environment: tuple[tuple[str, str], ...] = ()
    preamble: Preamble = NO_PREAMBLE

    @classmethod
    def of(
        cls, interpreter: str, environment: Mapping[str, str], preamble: Preamble = NO_PREAMBLE
    ) -> TemplateKey:
        """Return the key for a worker with this environment."""
        if preamble.path:
            return cls(interpreter, tuple(sorted(preamble.environment)), preamble)
        usual = usual_environment()
        unusual = sorted(environment.items() - usual.items())
        return cls(interpreter, tuple(pair for pair in unusual if pair[0] in START_VARIABLES))


@dataclass(slots=True)
class Killed:
    """Processes that were killed, and the directories to remove after them."""

    pids: set[int] = field(default_factory=set)
    scratch: list[Path] = field(default_factory=list)

    def remove(self) -> None:
        """Remove the directories, and files in shared memory (blocking)."""
        for directory in self.scratch:
            worker_keeper.remove(directory, ())
        worker_keeper.remove_shared(self.pids)


@dataclass(slots=True)
class _Workers:
    waiting: dict[str, str] = field(default_factory=dict)  # not forked yet; worker_id -> log
    doomed: set[str] = field(default_factory=set)  # to be killed as soon as forked
    running: dict[str, int] = field(default_factory=dict)  # worker_id -> pid
    scratch: dict[str, Path] = field(default_factory=dict)  # of those that run


class Template:
    """One warm process; may be asked to fork before it is ready.

    Create it in the main thread: the process dies with the thread that started it.
    """

    def __init__(
        self,
        key: TemplateKey,
        *,
        log_path: Path,
        events: TemplateEvents,
        started: Started | None = None,
    ) -> None:
        self._key = key
        self._log_path = log_path
        self._output = Output(log_path)
        self._has_spoken = self._is_late = False
        self._events = events
        self._workers = _Workers()
        self._failure = ""
        self.is_alive = True
        self._started = started = started or self._start()
        if started is None:
            LOG.warning("%s", self._failure)
            self.is_alive = False
            return
        self._channel = Channel(started.channel, on_data=self._receive, on_closed=self._closed)
        when_ended(started.pidfd, lambda: self._reap(started))
        if key.preamble.path:
            asyncio.get_running_loop().call_later(PREAMBLE_LIMIT_S, self._give_up_preamble)

    def fork(self, body: Mapping[str, Any], worker_end: socket.socket) -> None:
        """Request a worker; takes ownership of ``worker_end``."""
        worker_id = str(body["worker_id"])
        packet = json.dumps({"fork": dict(body)}).encode()
        if not self.is_alive:
            worker_end.close()
            self._events.exited(worker_id, KILLED, self._failure)
        elif len(packet) > MAX_FORK_BYTES:
            worker_end.close()
            cause = f"arguments and environment exceed {MAX_FORK_BYTES} bytes"
            self._events.exited(worker_id, KILLED, cause)
        else:
            self._workers.waiting[worker_id] = str(body["log_path"])
            self._channel.send(packet, (worker_end.detach(),))

    def kill(self, worker_id: str) -> bool:
        """SIGKILL a worker's process group; False when it is not one of ours."""
        if pid := self._workers.running.get(worker_id):
            _kill_worker(pid)
        elif worker_id in self._workers.waiting:
            self._workers.doomed.add(worker_id)
            if self._is_in_preamble and self._started is not None:
                self._started.kill()  # it may hang; the next worker has another one
        else:
            return False
        return True

    def kill_all(self) -> Killed:
        """SIGKILL the template, its workers and all that they started; safe from any thread."""
        pids = set() if self._started is None else self._started.kill()
        for pid in list(self._workers.running.values()):
            _kill_worker(pid)
        return Killed(pids, list(self._workers.scratch.values()))

    def pid(self) -> int:
        """Return that of the template; 0: it has ended."""
        return 0 if self._started is None else self._started.pid

    def _start(self) -> Started | None:
        environment = dict(self._key.environment)
        try:
            return start_template(
                self._key.interpreter,
                environment,
                self._log_path,
                preamble=self._key.preamble.path,
                cwd=self._key.preamble.cwd,
            )
        except OSError as problem:
            self._failure = f"the interpreter {self._key.interpreter} cannot be run: {problem}"
            return None

    def _give_up_preamble(self) -> None:
        if self._is_in_preamble and self._started is not None:
            self._is_late = True
            self._started.kill()

    @property
    def _is_in_preamble(self) -> bool:
        return bool(self._key.preamble.path) and not self._has_spoken

    def _receive(self, packet: bytes) -> None:
        self._has_spoken = True
        try:
            [(kind, body)] = json.loads(packet).items()
            if kind == "forked":
                self._workers.scratch[body["worker_id"]] = Path(body["scratch"])
                self._forked(str(body["worker_id"]), int(body["pid"]))
            elif kind == "exited":
                self._exited(str(body["worker_id"]), int(body["returncode"]), "")
            elif kind == "failed":
                self._failed(body.get("worker_id"), f"{body['code']}: {body['cause']}")
            elif kind == "ready":
                LOG.info("template of %s is warm: %s", self._key.interpreter, body)
        except (ValueError, TypeError, AttributeError, KeyError) as problem:
            LOG.warning("packet of the template of %s dropped: %r", self._key.interpreter, problem)

    def _forked(self, worker_id: str, pid: int) -> None:
        self._workers.waiting.pop(worker_id, None)
        self._workers.running[worker_id] = pid
        self._events.forked(worker_id, pid)
        if worker_id in self._workers.doomed:
            self.kill(worker_id)

    def _exited(self, worker_id: str, returncode: int, cause: str) -> None:
        self._workers.running.pop(worker_id, None)
        self._workers.scratch.pop(worker_id, None)
        self._workers.waiting.pop(worker_id, None)
        self._workers.doomed.discard(worker_id)
        self._events.exited(worker_id, returncode, cause)

    def _failed(self, worker_id: str | None, cause: str) -> None:
        if worker_id:
            self._exited(worker_id, KILLED, cause)
        else:
            self._failure = cause

    def _closed(self) -> None:
        """Give the template up: its channel has closed, so it has ended or is unusable."""
        if not self._failure:
            self._failure = (
                f"the warm template of {self._key.interpreter} ended; see {self._log_path}"
            )
        LOG.warning("%s", self._failure)
        self.is_alive = False
        self._channel.close()
        self.kill_all()

    def _reap(self, started: Started) -> None:
        returncode = started.reap()
        self._started = None
        if self.is_alive:
            self._channel.drain()  # its last packets, then the end of the socket
        if self.is_alive:
            self._closed()
        if self._is_in_preamble:
            self._failure = self._output.why(returncode, self._key.preamble)
            if self._is_late:
                code, event = CODE, "The preamble did not end"
                if self._key.preamble.is_container:
                    code, event = ENDED_EARLY, "The program in the container did not begin"
                self._failure = f"{code}: {event} within {PREAMBLE_LIMIT_S:g} s"
            for log_path in self._workers.waiting.values():
                self._output.copy_to(log_path)
        Killed(self._events.sweep(), list(self._workers.scratch.values())).remove()
        # These go to the whole pilot: the batch system takes the node, and the agent, which got it
        # too, may not have left yet. The workers then count as lost, not as failed.
        worker_status = -signal.SIGTERM if -returncode in LEAVE_SIGNALS else KILLED
        for worker_id in [*self._workers.running, *self._workers.waiting]:
            self._exited(worker_id, worker_status, self._failure)


class TemplatePool:
    """Finds or warms the template for a worker."""

    def __init__(
        self, *, log_dir: Path, events: TemplateEvents, started: Mapping[str, Started]
    ) -> None:
        self._log_dir = log_dir
        self._events = events
        self._templates: dict[TemplateKey, Template] = {}
        for interpreter, early in started.items():
            self._create(TemplateKey.of(interpreter, {}), early)

    def warm(self, interpreter: str) -> None:
        """Start a template unless that was tried before."""
        key = TemplateKey.of(interpreter, {})
        if key not in self._templates:
            self._create(key)

    def fork(
        self,
        interpreter: str,
        body: Mapping[str, Any],
        worker_end: socket.socket,
        preamble: Preamble = NO_PREAMBLE,
    ) -> None:
        """Fork a worker, from a new template if the last one has ended."""
        key = TemplateKey.of(interpreter, dict(body.get("environment", ())), preamble)
        template = self._templates.get(key)
        if template is None or not template.is_alive:
            template = self._create(key)
        template.fork(body, worker_end)

    def kill(self, worker_id: str) -> None:
        """SIGKILL a worker's process group."""
        for template in self._templates.values():
            if template.kill(worker_id):
                return

    def pids(self) -> set[int]:
        """Return those of the templates."""
        return set(map(Template.pid, self._templates.values()))

    def kill_all(self) -> list[Killed]:
        """SIGKILL everything; safe from any thread."""
        return list(map(Template.kill_all, list(self._templates.values())))

    def _create(self, key: TemplateKey, started: Started | None = None) -> Template:
        log_path = log_of(self._log_dir, len(self._templates))
        template = Template(key, log_path=log_path, events=self._events, started=started)
        self._templates[key] = template
        return template


def _kill_worker(pid: int) -> None:
    process.kill_group(pid)
    # A worker just forked may not have its own group yet.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def when_ended(pidfd: int, then: Callable[[], None]) -> None:
    """Call ``then`` in the event loop when the process has ended; takes over ``pidfd``."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        then()

    loop.add_reader(pidfd, ended)
