"""The members of one trainer as plain state: workers, generation, formation.

Modified by ``generation`` and its bases only; shown by the daemon's views.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from bftrainer.fleet.lifecycle import WORKER_CHANGES, Lifecycle, WorkerPhase
from bftrainer.ground import protocol
from bftrainer.model.trainer import Mark, with_place

_SIGNALS = frozenset(map(int, signal.Signals))
LEAVER_PATIENCE_S = 0.1  # time to form a generation after one of its leavers was lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The trainer's state when a worker was lost with its agent."""

    started: int  # workers started so far
    best: Mark  # its furthest progress


@dataclass(slots=True, kw_only=True)
class Worker(Lifecycle):
    """One worker, as reported."""

    CHANGES: ClassVar = WORKER_CHANGES
    worker_id: str
    pilot_id: str
    node: str
    address: str
    agent_endpoint: str
    agent_public_key: str
    started_s: float
    number: int = 0  # in order of start; 0: adopted
    phase: WorkerPhase = WorkerPhase.STARTING
    warm_since_s: float | None = None
    first_generation: int = 0
    is_finished: bool = False
    has_left: bool = False
    has_failed: str = ""  # cause, when the script failed
    place: str = ""  # of that in the script, "file:line"
    leaving_since_s: float | None = None  # when it was asked to leave
    log_path: str = ""
    lost: Lost | None = None  # set if lost with its agent

    @property
    def is_alive(self) -> bool:
        """Return whether its process exists as far as we know."""
        return self.phase is not WorkerPhase.GONE

    @property
    def is_lost(self) -> bool:
        """Return whether it is gone without having left in order."""
        return self.phase is WorkerPhase.GONE and not self.has_left

    def as_member(self, rank: int) -> protocol.Member:
        """Return its entry in a roster."""
        return protocol.Member(
            worker_id=self.worker_id,
            rank=rank,
            node=self.node,
            address=self.address,
            agent_endpoint=self.agent_endpoint,
            agent_public_key=self.agent_public_key,
        )


@dataclass(slots=True, kw_only=True)
class Forming:
    """A generation between ``Prepare`` and the last ``Entered``."""

    generation: int
    attempt: int
    roster: tuple[str, ...]  # worker ids in rank order; survivors first
    reason: str
    started_s: float
    abandon: bool
    waiting: set[str] = field(default_factory=set)  # have not answered Prepare
    store_port: int = 0
    is_committed: bool = False
    entered: set[str] = field(default_factory=set)
    pause_s: float = 0.0
    resumed_from: str = ""
    backend: str = ""  # the most detailed report of a member
    batch: int = 0  # the global batch that the members were told; 0: none
    leaver_lost_s: float | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Generation and attempt."""
        return self.generation, self.attempt

    def note_entered(self, worker_id: str, body: protocol.Entered) -> None:
        """Note what a member reports that has entered."""
        self.entered.add(worker_id)
        self.pause_s = max(self.pause_s, body.pause_s)
        self.resumed_from = self.resumed_from or body.resumed_from
        self.backend = max(self.backend, body.backend, key=len)

    def lost(
        self, workers: Mapping[str, Worker], members: Sequence[str], now_s: float
    ) -> list[str]:
        """Return the lost workers that this generation needs: of its roster, or leavers.

        When a leaver dies before the step boundary, a collective usually fails and the members
        notice. With MPI they wait for the leaver for ever, so it counts as lost when the generation
        has not formed ``LEAVER_PATIENCE_S`` later.
        """
        gone_ids = [w for w in self.roster if not workers[w].is_alive]
        leavers = [m for m in members if m in workers and workers[m].is_lost and m not in gone_ids]
        if not leavers or self.abandon or not self.is_committed:
            self.leaver_lost_s = None
            return gone_ids
        if self.leaver_lost_s is None:
            self.leaver_lost_s = now_s
        if now_s - self.leaver_lost_s < LEAVER_PATIENCE_S:
            return gone_ids
        return gone_ids + leavers


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """A node whose agent is connected, for a trainer to use."""

    node: str
    pilot_id: str
    address: str
    agent_endpoint: str
    agent_public_key: str
    user: str = ""  # its agent runs as, and only whose trainers it serves; "": all
    ADDED: ClassVar = frozenset({"user"})  # not written while unused; see CONTRIBUTING.md

    def serves(self, user: str) -> bool:
        """Return whether trainers of a user may have the node."""
        return self.user in ("", user)


class NodesInUse(NamedTuple):
    """The nodes of a trainer's workers."""

    training: tuple[str, ...] = ()  # of its members
    joining: tuple[str, ...] = ()  # of workers starting or warm


# ---- instructions ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkerOn:
    """Fork a worker on an agent."""

    pilot_id: str
    worker_id: str
    node: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Send a message to a worker."""

    pilot_id: str
    worker_id: str
    body: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """SIGKILL a worker."""

    pilot_id: str
    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """A generation number is about to be used: make it durable first."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaled:
    """A generation is complete."""

    generation: int
    attempt: int
    size_before: int
    size: int
    reason: str
    pause_s: float  # worst of all survivors
    formation_s: float
    step: int
    epoch: int
    samples: int
    nodes: tuple[str, ...]
    resumed_from: str
    is_restart: bool = False  # programs were stopped and started; no process survived
    stop_s: float = 0.0  # part of the pause until the last process had ended
    unsaved: str = ""  # why a program wrote no checkpoint when asked to
    backend: str = ""  # the communication backend, and why
    batch: int = 0  # the global batch that the members were told; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """No member is left."""

    generation: int
    size_before: int
    is_saved: bool  # False: all were lost at once; it resumes from the last checkpoint
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouped:
    """A generation that workers entered and the journal lacks; it has been adopted."""

    generation: int
    attempt: int
    size_before: int  # as last known to the journal
    size: int
    by: str  # pilot whose agent announced it, without a daemon; "": an earlier daemon
    reason: str
    step: int
    epoch: int
    samples: int
    nodes: tuple[str, ...]
    is_restart: bool = False  # as in ``Rescaled``
    ADDED: ClassVar = frozenset({"is_restart"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The script of rank 0 ran to its end."""

    step: int
    epoch: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed:
    """A worker failed, which counts against the failure budget."""

    worker_id: str
    node: str
    cause: str
    next_step: str
    log_path: str
    counts: bool = True  # False: one of several that failed together
    place: str = ""  # in the script, "file:line"
    ADDED: ClassVar = frozenset({"place"})

    @property
    def said(self) -> str:
        """The cause and where it was raised."""
        return with_place(self.cause, self.place)


Instruction = StartWorkerOn | Tell | Kill | Announced | Rescaled | Parked | Ended | WorkerFailed


def describe_exit(returncode: int) -> str:
    """Describe in a sentence how a worker ended unexpectedly."""
    if returncode < 0:
        name = f" ({signal.Signals(-returncode).name})" if -returncode in _SIGNALS else ""
        like = "; an out-of-memory kill looks like this" if returncode == -signal.SIGKILL else ""
        return f"The worker was killed by signal {-returncode}{name}{like}."
    return f"The worker ended with status {returncode} before its training was complete."


def worker_on(offer: NodeOffer, worker_id: str, now_s: float) -> Worker:
    """Return a worker that starts, or was found, on an offered node."""
    worker = Worker(
        worker_id=worker_id,
        pilot_id=offer.pilot_id,
        node=offer.node,
        address=offer.address,
        agent_endpoint=offer.agent_endpoint,
        agent_public_key=offer.agent_public_key,
        started_s=now_s,
    )
    worker.begins(now_s)
    return worker


def kill(worker: Worker, reason: str, now_s: float) -> Kill:
    """Give up a worker: it counts as gone from now on."""
    worker.becomes(WorkerPhase.GONE, now_s, f"killed: {reason}")
    return Kill(pilot_id=worker.pilot_id, worker_id=worker.worker_id, reason=reason)
