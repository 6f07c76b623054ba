"""A team: the workers of one trainer on this node, which join and leave together.

Merges the messages and ends of its processes into those of the node. The daemon knows teams
only, by the id of their order. Called by ``trainers.agent.workers``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bftrainer.elastic import protocol
from bftrainer.elastic.control import Key, key_of
from bftrainer.fleet.wire.messages import WorkerExited, WorkerReport, WorkerSaid
from bftrainer.fleet.wire.peers import NO_KEY, PeerStanding
from trainers.agent.channel import Channel
from trainers.agent.split import FIRST, Gathered


@dataclass(slots=True, kw_only=True)
class Process:
    """One worker."""

    name: str
    local_rank: int
    channel: Channel | None = None
    pid: int = 0
    unread: bytearray = field(default_factory=bytearray)
    alive_s: float | None = None  # last sign of life, our monotonic clock
    cause: str = ""  # why we killed it
    has_ended: bool = False

    def is_silent(self, lease_s: float) -> bool:
        """Whether it has sent messages before, but none for this long."""
        return self.alive_s is not None and time.monotonic() - self.alive_s > lease_s


class Team:
    """All workers of one order."""

    def __init__(self, worker_id: str, trainer_id: str, size: int = 1) -> None:
        self.worker_id = worker_id
        self.trainer_id = trainer_id
        self.processes: list[Process] = []
        self.step = 0
        self.step_s = 0.0  # that one takes; 0: not known in this generation
        self.moved_s = time.monotonic()  # last step, entry or commit
        self.latest: dict[str, dict[str, Any]] = {}  # newest body of each type, oldest first
        self._commit: protocol.Commit | None = None  # the last one forwarded
        self._entered: protocol.Commit | None = None  # that of the generation it entered last
        self._gathered = Gathered(size)
        self._end: tuple[int, str] | None = None  # of the first worker that ended prematurely

    def running(self) -> list[Process]:
        """Return the processes that have not ended."""
        return [p for p in self.processes if not p.has_ended]

    @property
    def is_lost(self) -> bool:
        """Whether a worker has ended prematurely; the others are being killed."""
        return self._end is not None

    def told(self, commit: protocol.Commit) -> None:
        """Record a commit that is forwarded to all workers."""
        self._commit, self.moved_s = commit, time.monotonic()

    def said(self, process: Process, body: dict[str, Any]) -> WorkerSaid | None:
        """Record a worker's message; return the team's message that follows, if any."""
        if process.local_rank == FIRST and isinstance(step := body.get("step"), int):
            if step > self.step or body["type"] == "Entered":
                self.moved_s, self.step_s = time.monotonic(), body.get("step_s", 0.0)
            self.step = step
        whole = self._gathered.said(process.local_rank, body)
        if whole is None:
            return None
        kind = whole["type"]
        self.latest.pop(kind, None)
        self.latest[kind] = whole
        commit = self._commit
        if kind == "Entered" and commit is not None and _key_of(whole) == key_of(commit):
            self._entered = commit
        return WorkerSaid(worker_id=self.worker_id, body=whole)

    def others(self) -> tuple[protocol.Member, ...]:
        """Return the members on other nodes that it trains with, or is to; none before and after.

        Until it has entered a generation, those of the last one are needed for its step boundary.
        """
        is_over = "Finished" in self.latest or "Left" in self.latest
        commits = () if is_over else (self._commit, self._entered)
        found = [m for c in commits if c is not None for m in c.members]
        return tuple(m for m in found if m.worker_id != self.worker_id)

    def ended(self, process: Process, returncode: int, cause: str) -> bool:
        """Record the end of a worker; return whether the others must end, too.

        The loss of one worker is that of the node. After the training the first worker
        continues without the others.
        """
        process.has_ended = True
        is_timely = returncode == 0 and self._gathered.has_said(
            process.local_rank, "Left", "Finished"
        )
        is_over = process.local_rank != FIRST and self._gathered.has_said(FIRST, "Finished")
        if is_timely or is_over:
            return False
        self._end = self._end or (returncode, process.cause or cause)
        return True

    def end(self) -> WorkerExited:
        """Return how it ended, once no worker runs."""
        returncode, cause = self._end or (0, "")
        return WorkerExited(worker_id=self.worker_id, returncode=returncode, cause=cause)

    def words(self) -> list[WorkerSaid]:
        """Return its newest messages again."""
        return [WorkerSaid(worker_id=self.worker_id, body=body) for body in self.latest.values()]

    def report(self) -> WorkerReport:
        """Return what a daemon needs to adopt it."""
        return WorkerReport(
            worker_id=self.worker_id,
            trainer_id=self.trainer_id,
            pid=self.processes[FIRST].pid if self.processes else 0,
            commit=None if self._commit is None else protocol.to_body(self._commit),
            latest=list(self.latest.values()),
        )

    def standing(self) -> PeerStanding:
        """Return the team's status for a quorum without a daemon."""
        ready = self.latest.get("Ready", {})
        return PeerStanding(
            worker_id=self.worker_id,
            commit=self._commit,
            entered=self._entered,
            interrupted=_key_of(self.latest.get("Interrupted")),
            ready=_key_of(ready),
            store_port=ready.get("store_port", 0),
            step=self.step,
            has_left="Left" in self.latest,
            has_finished="Finished" in self.latest,
        )


def _key_of(body: Mapping[str, Any] | None) -> Key:
    return (body["generation"], body["attempt"]) if body else NO_KEY
