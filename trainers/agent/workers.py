"""The workers of this node: forked or started, fed with bodies, listened to.

The daemon's orders about workers come in; ``WorkerStarted``, ``WorkerSaid`` and
``WorkerExited`` go out by ``report``. Also remembers enough of each worker for a
returning daemon to adopt it. Called by ``trainers.agent.main``.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bftrainer.elastic import protocol
from bftrainer.elastic.control import Key
from bftrainer.wire.messages import (
    StartWorker,
    TellWorker,
    WorkerExited,
    WorkerReport,
    WorkerSaid,
    WorkerStarted,
)
from bftrainer.wire.peers import PeerWorker
from trainers.agent.channel import Channel
from trainers.agent.programs import ProgramPool
from trainers.agent.quorum import NO_KEY, Standing
from trainers.agent.starting import Started
from trainers.agent.templates import KILLED, TemplatePool

LOG = logging.getLogger("bftrainer.agent")
Said = WorkerStarted | WorkerSaid | WorkerExited
Report = Callable[[Said], None]
MAX_LINE_BYTES = 64 * 1024  # of one worker; all its newest bodies must fit one Hello
KEPT_ENDS = 64


@dataclass(slots=True, kw_only=True)
class Worker:
    """What we know of one worker."""

    worker_id: str
    trainer_id: str
    channel: Channel | None = None
    pid: int = 0
    generation: int = 0  # of the last Commit passed on
    step: int = 0
    commit: dict[str, Any] | None = None
    entered: dict[str, Any] | None = None  # the commit whose generation it entered last
    latest: dict[str, dict[str, Any]] = field(default_factory=dict)  # by type, oldest first
    unread: bytearray = field(default_factory=bytearray)
    alive_s: float | None = None  # when it last said that it is alive, our monotonic clock
    cause: str = ""  # why we killed it

    def report(self) -> WorkerReport:
        """Return what a daemon needs to adopt it."""
        return WorkerReport(
            worker_id=self.worker_id,
            trainer_id=self.trainer_id,
            pid=self.pid,
            commit=self.commit,
            latest=list(self.latest.values()),
        )

    def is_silent(self, lease_s: float) -> bool:
        """Whether it has spoken before, but not for this long."""
        return self.alive_s is not None and time.monotonic() - self.alive_s > lease_s

    def standing(self) -> Standing:
        """Return what decides whether and how it goes on without a daemon."""
        ready = self.latest.get("Ready", {})
        return Standing(
            worker_id=self.worker_id,
            commit=_commit_of(self.commit),
            entered=_commit_of(self.entered),
            interrupted=_key_of(self.latest.get("Interrupted")),
            ready=_key_of(ready),
            store_port=ready.get("store_port", 0),
            step=self.step,
            has_left="Left" in self.latest,
            has_finished="Finished" in self.latest,
        )


class Workers:
    """All workers of this agent. ``on_commit`` sees every roster passed on."""

    def __init__(
        self,
        *,
        log_dir: Path,
        report: Report,
        on_commit: Callable[[protocol.Commit], None],
        started: Mapping[str, Started],
    ) -> None:
        self._report = report
        self._on_commit = on_commit
        self._workers: dict[str, Worker] = {}
        self._ended: deque[tuple[Said, ...]] = deque(maxlen=KEPT_ENDS)
        self._pool = TemplatePool(log_dir=log_dir, events=self, started=started)
        self._programs = ProgramPool(log_dir=log_dir, events=self)

    def warm(self, interpreters: list[str]) -> None:
        """Warm the templates of these interpreters."""
        for interpreter in interpreters:
            self._pool.warm(interpreter)

    def ids(self) -> list[str]:
        """Return the ids of all workers that are not gone."""
        return list(self._workers)

    def reports(self) -> list[WorkerReport]:
        """Return what a daemon needs to adopt them all."""
        return [worker.report() for worker in self._workers.values()]

    def ends(self) -> list[Said]:
        """Return the last words of the workers that ended lately, oldest first."""
        return [message for messages in self._ended for message in messages]

    def for_peers(self) -> list[PeerWorker]:
        """Return what other agents may know."""
        return [
            PeerWorker(
                worker_id=w.worker_id,
                generation=w.generation,
                step=w.step,
            )
            for w in self._workers.values()
        ]

    def trainers(self) -> list[str]:
        """Return the trainers that have workers here."""
        return list(dict.fromkeys(w.trainer_id for w in self._workers.values()))

    def standings(self, trainer_id: str) -> list[Standing]:
        """Return how the workers of one trainer stand."""
        return [w.standing() for w in self._workers.values() if w.trainer_id == trainer_id]

    def start(self, order: StartWorker) -> None:
        """Fork or start a worker; an order seen before changes nothing."""
        if order.worker_id in self._workers:
            LOG.info("%s runs already", order.worker_id)
            return
        worker = Worker(worker_id=order.worker_id, trainer_id=order.trainer_id)
        self._workers[order.worker_id] = worker
        try:
            body = _config_body(order)
        except protocol.ProtocolError as problem:
            self.exited(order.worker_id, KILLED, f"BFT-1301: bad worker configuration: {problem}")
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        worker.channel = Channel(
            ours, on_data=lambda data: self._heard(worker, data), on_closed=lambda: None
        )
        if order.program:
            first_line = {"config": body, "options": order.options}
            worker.channel.send(json.dumps(first_line).encode() + b"\n")
            self._programs.start(order.worker_id, order.program, theirs)
        else:
            self._pool.fork(order.interpreter, body, theirs)

    def tell(self, order: TellWorker) -> None:
        """Pass a body on; one that is not for workers is dropped."""
        worker = self._workers.get(order.worker_id)
        if worker is None or worker.channel is None:
            LOG.info("%s is not here, nothing told", order.worker_id)
            return
        try:
            message = _to_worker(order.body)
            line = protocol.encode(message)
        except protocol.ProtocolError as problem:
            LOG.warning("BFT-1301: body for %s dropped: %s", order.worker_id, problem)
            return
        if isinstance(message, protocol.Commit):
            worker.commit = order.body
            worker.generation = message.generation
            self._on_commit(message)
        if not worker.channel.send(line):
            LOG.warning("%s does not read any more", order.worker_id)

    def kill(self, worker_id: str) -> None:
        """SIGKILL a worker's process group; its exit is reported as usual."""
        if not self._programs.kill(worker_id):
            self._pool.kill(worker_id)

    def kill_silent(self, lease_s: float) -> None:
        """Kill workers whose process has not answered for this long: stopped, or worse."""
        for worker in list(self._workers.values()):
            if worker.channel is not None and worker.is_silent(lease_s):
                worker.channel.drain()  # it may have spoken while we were not listening
                if worker.is_silent(lease_s):
                    worker.cause = f"It did not answer for {lease_s:g} s (worker_lease_s)."
                    LOG.warning("%s: %s", worker.worker_id, worker.cause)
                    self.kill(worker.worker_id)

    def kill_all(self) -> None:
        """SIGKILL all workers and templates; safe from any thread."""
        self._programs.kill_all()
        self._pool.kill_all()

    # -- what templates and workers tell us ----------------------------------------------

    def forked(self, worker_id: str, pid: int) -> None:
        """Note and report that a worker runs."""
        if worker := self._workers.get(worker_id):
            worker.pid = pid
            self._report(WorkerStarted(worker_id=worker_id, pid=pid))

    def exited(self, worker_id: str, returncode: int, cause: str) -> None:
        """Report a worker's end, after everything it had to say."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        if worker.channel is not None:
            worker.channel.drain()
            worker.channel.close()
        del self._workers[worker_id]
        end = WorkerExited(worker_id=worker_id, returncode=returncode, cause=worker.cause or cause)
        words = [WorkerSaid(worker_id=worker_id, body=body) for body in worker.latest.values()]
        self._ended.append((*words, end))
        self._report(end)

    def _heard(self, worker: Worker, data: bytes) -> None:
        worker.unread += data
        if worker.alive_s is not None:
            worker.alive_s = time.monotonic()
        *lines, rest = bytes(worker.unread).split(b"\n")
        worker.unread = bytearray(rest)
        for line in lines:
            self._said(worker, line)
        if len(rest) > MAX_LINE_BYTES:
            LOG.warning("BFT-1301: %s sends a line without end, killed", worker.worker_id)
            worker.unread.clear()
            self.kill(worker.worker_id)

    def _said(self, worker: Worker, line: bytes) -> None:
        try:
            message = _from_worker(line)
        except protocol.ProtocolError as problem:
            LOG.warning("BFT-1301: line of %s dropped: %s", worker.worker_id, problem)
            return
        if isinstance(message, protocol.Alive):
            worker.alive_s = time.monotonic()
            return
        body = protocol.to_body(message)
        worker.latest.pop(body["type"], None)
        worker.latest[body["type"]] = body
        if isinstance(step := body.get("step"), int):
            worker.step = step
        if body["type"] == "Entered" and _key_of(body) == _key_of(worker.commit):
            worker.entered = worker.commit
        self._report(WorkerSaid(worker_id=worker.worker_id, body=body))


def _key_of(body: Mapping[str, Any] | None) -> Key:
    return (body["generation"], body["attempt"]) if body else NO_KEY


def _commit_of(body: dict[str, Any] | None) -> protocol.Commit | None:
    message = protocol.from_body(body) if body else None
    return message if isinstance(message, protocol.Commit) else None


def _config_body(order: StartWorker) -> dict[str, Any]:
    config = protocol.from_body({**order.config, "type": "WorkerConfig"})
    if not isinstance(config, protocol.WorkerConfig) or config.worker_id != order.worker_id:
        raise protocol.ProtocolError("it names another worker")
    return protocol.to_body(config)


def _to_worker(body: dict[str, Any]) -> protocol.ToWorker:
    message = protocol.from_body(body)
    if not isinstance(message, protocol.ToWorker):
        raise protocol.ProtocolError("not a message to a worker")
    return message


def _from_worker(line: bytes) -> protocol.FromWorker:
    if len(line) > MAX_LINE_BYTES:
        raise protocol.ProtocolError("line too long")
    message = protocol.decode(line)
    if not isinstance(message, protocol.FromWorker):
        raise protocol.ProtocolError("not a message from a worker")
    return message
