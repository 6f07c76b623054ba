"""The state of a generation machine in parts, each with the methods that need only its fields.

The journal has the fields of the parts as fields of the machine itself (``INLINE``). No I/O.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from bftrainer.fleet.generations.members import Forming, NodeOffer, Worker
from bftrainer.fleet.lifecycle import WorkerPhase
from milp.problem import largest_size

INTERRUPTED_PATIENCE_S = 1.0  # wait for the cause of a broken collective
KEPT_GONE = 200  # workers that are gone, in which a record or a user may be interested
LEAVE_PATIENCE_S = 60.0  # time for a worker to leave: a long step, a checkpoint
LOST = "a member was lost"
MOST_TIMEOUTS = 32.0  # of start_timeout_s, for a worker to start
PLANNED = "planned"
START = "start"
STRANGER = "a stranger connected in place of a member (BFT-1344)"
_OF_STRANGER = "BFT-1344:"  # begins the report of a member whose peer is somebody else


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What names its workers and commits."""

    trainer_id: str
    incarnation: int
    commit_key: str = field(repr=False)  # secret: tokens of commits are derived from it
    log_directory: str = ""  # of the workers' logs

    def worker_id(self, number: int) -> str:
        """Return the name of the worker that is started as this one."""
        return f"{self.trainer_id}-{self.incarnation}-{number}"

    def log_path(self, worker_id: str) -> str:
        """Return where a worker's log is; "": it has none."""
        return f"{self.log_directory}/{worker_id}.log" if self.log_directory else ""

    def token(self, generation: int, commit: int) -> str:
        """Derive the token of a commit: unique, and the same when replayed."""
        name = f"{self.commit_key}-{self.incarnation}-{generation}-{commit}"
        return hashlib.sha256(name.encode()).hexdigest()[:32]


def trainer_of(worker_id: str) -> str:
    """Return whose worker has this name (``Identity.worker_id``)."""
    trainer_id, *_ = worker_id.rsplit("-", 2)
    return trainer_id


@dataclass(slots=True, kw_only=True)
class SerialNumbers:
    """The numbers that only grow."""

    generation: int = 0  # greatest announced
    started_workers: int = 0
    commits: int = 0  # sent so far


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRange:
    """How many members it may have."""

    n_min: int
    n_max: int
    sizes: tuple[int, ...] = ()  # the only ones of n_min to n_max that it forms; (): all
    ADDED: ClassVar = frozenset({"sizes"})  # not written while unused; see CONTRIBUTING.md

    def cut_down(self, workers: Sequence[str]) -> tuple[str, ...]:
        """Return the first of these, as many as it may have."""
        first = tuple(workers)[: self.n_max]
        if not self.sizes:
            return first
        return first[: largest_size(len(first), 1, self.n_max, self.sizes)]

    def is_enough(self, size: int) -> bool:
        """Return whether so many can train."""
        return size >= max(1, self.n_min)

    def fits_within(self, n_nodes: int) -> bool:
        """Return whether it can train on so many nodes, or on some of them."""
        return bool(largest_size(n_nodes, self.n_min, self.n_max, self.sizes))


@dataclass(slots=True, kw_only=True)
class WorkerPatience:
    """How long it waits for workers."""

    join_window_s: float  # for further joiners
    start_timeout_s: float
    leave_patience_s: float = LEAVE_PATIENCE_S
    slow_start_s: float = 0.0  # the longest that a worker was given to start, in vain
    ADDED: ClassVar = frozenset({"slow_start_s"})

    @property
    def start_s(self) -> float:
        """Time that a worker may take to start: twice what was too little before."""
        most_s = MOST_TIMEOUTS * self.start_timeout_s
        return max(self.start_timeout_s, min(2.0 * self.slow_start_s, most_s))


@dataclass(slots=True, kw_only=True)
class NodePlan:
    """What the daemon wants for it; see ``TargetsSet``."""

    targets: dict[str, NodeOffer] = field(default_factory=dict)  # by node
    staying: Mapping[str, str] = field(default_factory=dict)
    batches: tuple[int, ...] = ()

    def give(self, offers: Sequence[NodeOffer], staying: Mapping[str, str]) -> None:
        """Have these nodes, and no other ones."""
        self.targets, self.staying = {}, staying
        for offer in offers:
            self.targets[offer.node] = offer

    def has_pilot(self, pilot_id: str) -> bool:
        """Return whether a worker may be started on this pilot's node."""
        return any(offer.pilot_id == pilot_id for offer in self.targets.values())

    def drop_pilot(self, pilot_id: str) -> None:
        """Do without the node of this pilot."""
        for offer in list(self.targets.values()):
            if offer.pilot_id == pilot_id:
                del self.targets[offer.node]

    def drop_nodes(self, nodes: Collection[str]) -> None:
        """Do without these nodes."""
        for node in nodes:
            self.targets.pop(node, None)

    def batch_on(self, size: int) -> int:
        """Return the global batch on so many nodes; 0: none is told."""
        if 0 < size <= len(self.batches):
            return self.batches[size - 1]
        return 0


@dataclass(slots=True, kw_only=True)
class Crew:
    """Its workers, and which of them are the members."""

    workers: dict[str, Worker] = field(default_factory=dict)
    members: tuple[str, ...] = ()  # roster of the current generation
    size_before: int = 0  # of the last complete generation
    batch: int = 0  # of the last complete generation, if it was told one

    def alive(self) -> list[Worker]:
        """Return the workers whose processes exist as far as we know."""
        return [worker for worker in self.workers.values() if worker.is_alive]

    def member_workers(self) -> list[Worker]:
        """Return the members that have not been forgotten, in rank order."""
        workers = []
        for member in self.members:
            worker = self.workers.get(member)
            if worker is not None:
                workers.append(worker)
        return workers

    def alive_members(self) -> list[str]:
        """Return the members that live and do not leave, in rank order."""
        alive = []
        for worker in self.member_workers():
            is_leaving = worker.phase is WorkerPhase.LEAVING
            if worker.is_alive and not is_leaving:
                alive.append(worker.worker_id)
        return alive

    @property
    def is_short(self) -> bool:
        """Return whether a member is gone or leaves."""
        return len(self.alive_members()) < len(self.members)

    def in_phases(self, *phases: WorkerPhase) -> list[Worker]:
        """Return the workers in one of these phases, in order of start."""
        return [worker for worker in self.workers.values() if worker.phase in phases]

    def on_pilot(self, pilot_id: str) -> list[Worker]:
        """Return the workers that are or were on the node of this pilot."""
        return [worker for worker in self.workers.values() if worker.pilot_id == pilot_id]

    def nodes_of(self, roster: Sequence[str]) -> tuple[str, ...]:
        """Return the nodes of these workers, in their order."""
        return tuple(self.workers[w].node for w in roster if w in self.workers)

    @property
    def is_finishing(self) -> bool:
        """Return whether a worker that lives came to the end of the training."""
        return any(worker.is_finished for worker in self.alive())

    def enter(self, forming: Forming) -> int:
        """Make a generation that is complete the current one; return the size of the one before."""
        before, self.size_before = self.size_before, len(forming.roster)
        self.members, self.batch = forming.roster, forming.batch
        return before

    def disband(self) -> None:
        """Have no members: all have left, or were lost."""
        self.members, self.size_before = (), 0

    def forget_gone(self, roster: Sequence[str]) -> None:
        """Drop the oldest of very many workers that are gone; not of a roster that forms."""
        needed_ids, gone_ids = {*self.members, *roster}, []
        for worker_id, worker in self.workers.items():
            is_needed = worker.is_alive or worker_id in needed_ids
            if not is_needed:
                gone_ids.append(worker_id)
        for worker_id in gone_ids[:-KEPT_GONE]:
            del self.workers[worker_id]


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """What it knows of the trainer's checkpoints."""

    is_saved: bool = False  # since the members were told to leave
    not_saved: str = ""  # why checkpoints are not written
    passed_over: str = ""  # which checkpoints it began without when it last started
    ADDED: ClassVar = frozenset({"not_saved", "passed_over"})


# ---- the course ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseFlags:
    """A phase of the course, as the journal has it."""

    is_parking: bool = False
    is_ended: bool = False


class CoursePhase(enum.Enum):
    """Phases of the training as a whole."""

    OPEN = CourseFlags()  # it trains, or waits for nodes
    PARKING = CourseFlags(is_parking=True)  # all members save and leave
    ENDED = CourseFlags(is_ended=True)  # rank 0 came to the end, or nobody wants it any more
    ENDED_PARKING = CourseFlags(is_parking=True, is_ended=True)  # how its workers end is no fault


@dataclass(slots=True, kw_only=True)
class Course:
    """Where the training stands between its start and its end; it changes by the table alone."""

    phase: CoursePhase = CoursePhase.OPEN
    ended_s: float | None = None  # when rank 0 came to its end
    ends_by_s: float | None = None  # cancelled: when remaining workers are killed
    INLINE: ClassVar = frozenset({"phase"})
    CHANGES: ClassVar[Mapping[CoursePhase, frozenset[CoursePhase]]] = {
        CoursePhase.OPEN: frozenset({CoursePhase.PARKING, CoursePhase.ENDED}),
        CoursePhase.PARKING: frozenset({CoursePhase.OPEN, CoursePhase.ENDED_PARKING}),
        # Nothing starts again: its successor is another machine.
        CoursePhase.ENDED: frozenset(),
        CoursePhase.ENDED_PARKING: frozenset(),
    }

    @property
    def is_parking(self) -> bool:
        """Return whether all members were told to save and leave."""
        return self.phase.value.is_parking

    @property
    def is_ended(self) -> bool:
        """Return whether nothing is trained any more."""
        return self.phase.value.is_ended

    @property
    def is_cancelled(self) -> bool:
        """Return whether it has to come to its end by a time."""
        return self.ends_by_s is not None

    def becomes(self, phase: CoursePhase) -> bool:
        """Change the phase if the table names the change; return whether it did."""
        is_possible = phase in self.CHANGES[self.phase]
        if is_possible:
            self.phase = phase
        return is_possible

    def end(self) -> bool:
        """End the training, parking or not; return whether it had not ended yet."""
        return self.becomes(CoursePhase.ENDED) or self.becomes(CoursePhase.ENDED_PARKING)

    def cancel(self, by_s: float) -> None:
        """Let remaining workers be killed by this time; the first one counts."""
        self.ends_by_s = self.ends_by_s or by_s


# ---- broken generations ----------------------------------------------------------------


class Complaint(NamedTuple):
    """The report of a worker that its generation is broken."""

    worker_id: str = ""
    reason: str = ""

    @property
    def is_of_stranger(self) -> bool:
        """Whether another user connected in place of a member: the trainer is not to blame."""
        return self.reason.startswith(_OF_STRANGER)


@dataclass(slots=True, kw_only=True)
class Trouble:
    """What is wrong with the current generation."""

    is_broken: bool = False
    interrupted_s: float | None = None  # when a member reported a broken collective
    cut: str = ""  # why the generation that forms goes without members that live
    in_vain: int = 0  # generations in a row that broke without a loss and without a step
    complaint: Complaint = field(default_factory=Complaint)  # about the last one that broke
    ADDED: ClassVar = frozenset({"cut", "in_vain", "complaint"})

    def interrupt(self, complaint: Complaint, now_s: float) -> None:
        """Note that a collective broke; usually the cause follows, as the death of a member.

        The first report counts, but that of a stranger explains all others.
        """
        if self.interrupted_s is None:
            self.interrupted_s, self.complaint = now_s, complaint
        elif complaint.is_of_stranger:
            self.complaint = complaint

    def has_waited(self, now_s: float) -> bool:
        """Return whether a reported broken collective has had no visible cause for too long."""
        if self.interrupted_s is None:
            return False
        return now_s - self.interrupted_s > INTERRUPTED_PATIENCE_S

    @property
    def reason(self) -> str:
        """Why the next generation forms."""
        if not self.is_broken:
            return PLANNED
        if self.complaint.is_of_stranger and not self.cut:
            return STRANGER  # in our words: the report is in those of a user's process
        return self.cut or LOST

    def take_complaint(self) -> Complaint:
        """Return the last complaint and forget it."""
        complaint, self.complaint = self.complaint, Complaint()
        return complaint

    def mend(self) -> None:
        """Forget what concerned a generation that is no more; not how often it was in vain."""
        self.is_broken, self.interrupted_s, self.cut = False, None, ""
