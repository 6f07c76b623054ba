"""Plain data of ``bftrainer account`` and ``report harm``, and of their API documents.

``bftrainer.daemon.account_report`` and ``bftrainer.daemon.harm.report`` make it, the API transfers
it, the command line prints it. Imports nothing that would slow down a verb's start.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Literal
from zoneinfo import ZoneInfo

COLUMNS = ("user", "account", "trainer", "day")  # by which lines can be told apart

Use = Literal["trained_s", "redone_s", "warm_up_s", "idle_s"]  # of ``NodeTime``
UserAccount = tuple[str, str]  # "": nobody; the user's default account


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """The use of the time of nodes; node-seconds, and numbers of pilots.

    Of a pilot with K of a node's G GPUs K/G of the time counts.
    """

    trained_s: float = 0.0  # forward
    redone_s: float = 0.0  # until a trainer was again as far as it once had been
    warm_up_s: float = 0.0  # from a pilot's start, or a new trainer, until its worker trained
    idle_s: float = 0.0  # without a trainer
    returned_s: float = 0.0  # what ordinary jobs' nodes still had of their pilots' time limits
    pilots: int = 0  # ended
    given_back: int = 0  # of these: by us, for an ordinary job
    preempted: int = 0  # by the batch system, for one

    @property
    def lost_s(self) -> float:
        """Node time that was harvested and did not bring a trainer forward."""
        return self.redone_s + self.warm_up_s + self.idle_s

    @property
    def harvested_s(self) -> float:
        """The time of pilots from start to end, as the batch system's accounting has it."""
        return self.trained_s + self.lost_s

    def __add__(self, other: NodeTime) -> NodeTime:
        """Add each figure."""
        names = [figure.name for figure in fields(self)]
        return NodeTime(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """The key of node time: day, user, account, trainer and node type."""

    day: str  # of the site, "2026-11-24"
    user: str = ""  # "": nobody's: a pilot that never had a trainer
    account: str = ""  # "": the user's default
    trainer_id: str = ""  # "": several, or nobody's
    node_type: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The selection of a report."""

    by: tuple[str, ...] = ("user",)  # of ``COLUMNS``
    since: str = ""  # first day; "": the first that is known
    until: str = ""  # last day; "": today
    user: str = ""  # only this user's rows; "": everybody's


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLine:
    """A line of the report; what it does not tell apart is ""."""

    user: str = ""  # "": nobody's, or not told apart
    account: str = ""  # of the batch system
    trainer: str = ""  # its id
    day: str = ""  # of the site, as 2026-11-24
    harvested_h: float = 0.0  # node-hours that pilots held nodes, of which were lost:
    lost_h: float = 0.0  # redone, warm-up and idle together
    redone_h: float = 0.0  # training until the trainer was again as far as it once was
    warm_up_h: float = 0.0  # from the start of pilot or trainer until its worker trained
    idle_h: float = 0.0  # of pilots without a trainer, or that leave
    given_back_h: float = 0.0  # to ordinary jobs: what was left of the pilots' time limits
    pilots: int = 0  # that ended
    pilots_given_back: int = 0  # of these: by us, for an ordinary job
    pilots_preempted: int = 0  # of these: by the batch system, for one
    energy_kwh: float | None = None  # estimate; None: the policy does not say what nodes draw
    gpu_h: float = 0.0  # GPU-hours that pilots held; of a whole node all its GPUs count


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountReport:
    """Node time by user, account or the like, from one day to another."""

    by: tuple[str, ...]  # of ``COLUMNS``
    since: str  # first day
    until: str  # last day
    complete_since_s: float  # nothing is known of the time before
    counted_until_s: float
    lines: tuple[AccountLine, ...]
    total: AccountLine
    user: str = ""  # whose rows these are; "": everybody's


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayBucket:
    """A bar of the histogram: delays up to ``at_most_s`` and above the previous bar."""

    at_most_s: float | None  # None: all longer delays
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """One of the slowest hand-overs."""

    job_id: str
    n_nodes: int
    node: str
    pilot_id: str
    how: str
    asked_s: float | None
    delay_s: float | None
    precision_s: float
    reason: str
    gpus: int = 0  # of the part of a node that the pilot had; 0: it had the whole node
    gpu_type: str = ""  # their type, gpu:a100; "": it had the whole node


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCycle:
    """A job that lost a cycle of the scheduler because it had to preempt pilots."""

    job_id: str
    lost_s: float  # from the preemption to its start; if one is unknown, a cycle as configured
    nodes: tuple[str, ...]  # of the pilots


@dataclass(frozen=True, slots=True, kw_only=True)
class VainCount:
    """Nodes released in vain, for one reason."""

    why: str
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCounts:
    """What became of parts of nodes, of one type of GPUs, on one node or on all."""

    node: str  # the host; "": all nodes
    gpu_type: str  # as gpu:a100
    hand_overs: int = 0  # parts that ordinary jobs got
    gpus: int = 0  # of these parts
    given_back: int = 0  # parts that jobs got because we released them
    preempted: int = 0  # parts they got because the batch system ended our pilot
    late: int = 0  # hand-overs that took longer than promised
    in_vain: int = 0  # parts released for a job that did not take them
    pending: int = 0  # pilots for parts that were pending for longer than a scheduler cycle


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCount:
    """Pilots for parts of nodes that stayed pending, for one reason."""

    why: str  # in the batch system's words
    pilots: int  # that waited for this reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenCount:
    """Pilots that others ended without a job seen on their node, of one kind."""

    by: str
    pilots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingRate:
    """Nodes that were left, and those of them that were unusable soon after."""

    left: int = 0
    unusable: int = 0
    share: float | None = None
    low: float | None = None  # 95% interval of the share (Wilson)
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusableNode:
    """A node that was unusable soon after it was left."""

    node: str
    state: str  # drained, down or completing
    reason: str  # the batch system's words
    at_s: float
    after_s: float  # since the release
    job_id: str
    pilot_id: str  # "": an ordinary job had left it


@dataclass(frozen=True, slots=True, kw_only=True)
class Leavings:
    """What pilots and ordinary jobs left behind, on nodes that have had pilots."""

    by_pilots: LeavingRate = LeavingRate()
    by_jobs: LeavingRate = LeavingRate()
    excess: float | None = None  # difference of the shares: harm
    excess_low: float | None = None  # 95% interval (Newcombe)
    excess_high: float | None = None
    # From the order or signal until the batch system has no processes of the pilot: upper bounds.
    measured: int = 0
    median_s: float | None = None
    p95_s: float | None = None
    max_s: float | None = None
    precision_s: float | None = None  # largest possible error
    nodes: tuple[UnusableNode, ...] = ()  # the latest last


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmReport:
    """The effect on ordinary jobs."""

    since_s: float
    until_s: float
    limit_s: float
    share_promised: float
    hand_overs: int  # nodes
    jobs: int  # that got them
    measured: int
    share_within: float | None
    is_kept: bool  # the promise
    median_s: float | None
    p95_s: float | None
    max_s: float | None
    histogram: tuple[DelayBucket, ...]
    given_back: int  # nodes that ordinary jobs got because we released them
    preempted: int  # nodes they got because the batch system ended our pilot
    preempted_jobs: int  # jobs that had to preempt
    share_preempted: float | None  # of the jobs that got nodes
    preempted_jobs_per_hour: float | None
    taken: int  # pilots that others ended without a job seen on the node
    in_vain: int
    share_in_vain: float | None  # of the nodes released for a job
    in_vain_per_hour: float | None
    vain: tuple[VainCount, ...]
    worst: tuple[WorstCase, ...]
    back_off_level: int
    back_off: str  # one sentence, "" at level 0
    taken_by: tuple[TakenCount, ...] = ()
    leavings: Leavings = Leavings()
    cycles_lost: int = 0  # jobs that lost a cycle of the scheduler
    cycles_lost_s: float = 0.0  # these jobs together
    lost_cycles: tuple[LostCycle, ...] = ()  # the longest first, a few
    # Where pilots had parts of nodes; all counts above count such a part as a node.
    gpus: int = 0  # of the parts that ordinary jobs got
    by_gpu: tuple[PartCounts, ...] = ()  # by type, of all nodes
    by_node: tuple[PartCounts, ...] = ()  # a few nodes, those with the most trouble first
    pending: int = 0  # pilots for parts that were pending for longer than a scheduler cycle
    pending_why: tuple[PendingCount, ...] = ()  # the most frequent reason first


def day_of(at_s: float, zone: str | None = None) -> str:
    """Return the day of a time in a time zone; None: this machine's."""
    return date_of(at_s, zone).isoformat()


def date_of(at_s: float, zone: str | None) -> date:
    """Return the date of a time in a time zone; None: this machine's."""
    return datetime.fromtimestamp(at_s, ZoneInfo(zone) if zone else None).date()
