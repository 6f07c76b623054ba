"""What a decision reads and what it says: plain data, journalled as a whole.

``decide`` is a fold: ``Memory`` is what it hands to its own next call. All times
are seconds since the epoch on the batch system's clock.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from bftrainer.model.cluster import Snapshot
from bftrainer.model.event import Event
from bftrainer.model.trainer import TrainerRecord
from milp.problem import Allocation, Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The part of the administrator's policy that decisions depend on."""

    policy: str = "milp"
    # As the policy declares them; settings are keys of what is remembered by them.
    policy_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    objective: Objective = Objective.SCALING_EFFICIENCY
    t_fwd_s: float = 120.0
    p_jmax: int = 10
    skip_unstartable: bool = True  # trainers whose n_min the pool lacks do not count for p_jmax
    reserve_nodes_per_type: int = 1
    idle_confirmations: int = 1
    pilot_time_limit_s: float = 14400.0
    min_gap_s: float = 120.0
    gap_margin_s: float = 60.0
    end_margin_s: float = 20.0  # a node stops being usable this long before its pilot ends
    cycle_s: float = 30.0
    hold_idle_s: float = 5.0
    rescale_up_guess_s: float = 0.5
    rescale_down_guess_s: float = 0.2
    max_nodes_per_trainer: int | None = None
    eligible_node_types: tuple[str, ...] = ()  # empty: all
    # Of a daemon that backs off (bftrainer.harm.backoff); the defaults change nothing.
    max_held_nodes: int | None = None
    hold_off_cycles: float = 1.0  # until a node given back may be taken again
    reserve_extra_nodes: int = 0  # beyond reserve_nodes_per_type
    explore_budget: float = 0.0  # share of the objective; 0: sizes are never explored
    straggler_threshold: float = 0.0  # fraction of the others' throughput; 0: none replaced
    straggler_memory_s: float = 1800.0  # until a node is taken to be half as slow as it was
    harm_slo_s: float = 1.0  # a node that is given back is free by then: the site's promise
    REMOVED: ClassVar = frozenset(
        {"learns_reserve", "learns_min_gap", "backfill_lead_s", "pilot_start_timeout_s"}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotView:
    """A pilot of ours that has not ended, as far as we know."""

    pilot_id: str
    node: str
    requested_s: float
    is_held: bool  # its agent is connected
    is_leaving: bool = False  # cancelled or on its way out
    end_s: float | None = None  # when its time limit strikes
    REMOVED: ClassVar = frozenset({"shortest_limit_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNode:
    """A node that was found slow."""

    fraction: float  # of the throughput of the nodes beside it
    seen_s: float  # measured last
    trainer_id: str  # in this trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacing:
    """Where a straggler's place goes, until that node trains."""

    node: str
    trainer_id: str
    REMOVED: ClassVar = frozenset({"since_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPatience:
    """How long an agent may take to come once its pilot has started."""

    limit_s: float = 60.0
    # Pilot without an agent -> when a look first showed that it runs; None: none has.
    started_s: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """How long nodes of ours take to train once a trainer is to have them."""

    since_s: Mapping[str, float] = field(default_factory=dict)  # of those that do not yet
    warm_up_s: float = 0.0  # moving average
    count: int = 0  # of what it is the average


@dataclass(frozen=True, slots=True, kw_only=True)
class VainReleases:
    """A job that could start, or an array of which a task could, and how often it did not."""

    job_id: str  # the task
    times: int = 0  # that it was served in vain
    served_s: float | None = None  # since then its nodes are free; None: they are not
    nodes: tuple[str, ...] = ()  # these
    refused_s: float | None = None  # since then it gets none; None: it may


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A pilot that was asked to leave and whose node is not usable again."""

    pilot_id: str
    asked_s: float
    busy_s: float | None = None  # the last look that showed its node busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """How long ends and starts of pilots take, the last ones, the oldest first (``end_cost``)."""

    ending: Mapping[str, Ending] = field(default_factory=dict)  # by node
    took_s: tuple[float, ...] = ()  # from the cancel request until the node was usable
    # Pilot that is not measured yet -> when its agent came; None: it has not.
    joining: Mapping[str, float | None] = field(default_factory=dict)
    joined_s: tuple[float, ...] = ()  # from the pilot's start until its agent came


class Kind(enum.StrEnum):
    """What is left out of a decision (``bftrainer.surviving``)."""

    REQUEST = "request"  # of a job, which then asks for some nodes, whichever
    TRAINER = "trainer"
    NODE = "node"
    POLICY = "policy"  # whoever is left out: nothing is allocated
    JOB = "job"  # written by earlier releases only


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A trainer, job or node that decisions do without, because they fail on it."""

    kind: Kind
    name: str  # id of a job or trainer, name of a node or policy
    reason: str  # a sentence
    since_s: float  # when it was last found to be at fault

    @property
    def key(self) -> str:
        """By which ``Memory`` knows it."""
        return f"{self.kind} {self.name}"


Known = Mapping[str, LeftOut]  # by key


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """State of the fold; empty at the very first decision."""

    assignment: Mapping[str, str] = field(default_factory=dict)  # node -> trainer, planned
    idle_seen: Mapping[str, int] = field(default_factory=dict)  # consecutive idle looks
    held_off: Mapping[str, float] = field(default_factory=dict)  # node -> since when
    cycles: tuple[float, ...] = ()  # of the scheduler: when those seen last began, oldest first
    vain: Mapping[str, VainReleases] = field(default_factory=dict)  # ordinary job id, of an array
    unused_since: Mapping[str, float] = field(default_factory=dict)  # held node no one wants
    agents: AgentPatience = field(default_factory=AgentPatience)
    joining: Joining = field(default_factory=Joining)
    ends: Ends = field(default_factory=Ends)
    slow_nodes: Mapping[str, SlowNode] = field(default_factory=dict)
    replacing: Mapping[str, Replacing] = field(default_factory=dict)  # by straggler
    left_out: Known = field(default_factory=dict)
    policy_state: Any = None  # of the policy's last answer; plain data, the policy's alone
    REMOVED: ClassVar = frozenset({"joins", "claim_costs", "small_jobs", "gave_back"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """A node that is left alone for a while: workers failed there again and again.

    ``actuate.quarantine`` says which and until when; ``pool`` offers them to nobody.
    """

    until_s: float
    failures: int  # in a row that are held against it
    trainer_id: str  # whose worker failed there last
    cause: str  # of that failure, one sentence

    def sentence(self, now_s: float) -> str:
        """Say why the node is not used, and for how long."""
        left_s = max(1.0, self.until_s - now_s)
        left = f"{left_s:.0f} s" if left_s < 120.0 else f"{left_s / 60.0:.0f} min"
        return (
            f"It cools down for {left} more: {self.failures} failures of"
            f" workers in a row, the last of {self.trainer_id} ({self.cause.rstrip('.')})."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionInput:
    """Everything a decision depends on."""

    now_s: float
    snapshot: Snapshot
    is_new_snapshot: bool  # False when only trainers or agents changed since the last look
    gives_back_only: bool = False  # in haste: the whole decision follows
    pilots: tuple[PilotView, ...]
    trainers: tuple[TrainerRecord, ...]  # not final ones, in FCFS order
    settings: Settings
    memory: Memory
    may_claim: bool = True  # False while the batch system keeps refusing pilots
    training: Mapping[str, str] = field(default_factory=dict)  # node -> trainer, observed
    # Slow node -> fraction of the throughput of those beside it; 1.0: remembered, and not slow.
    speeds: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    cooling: Mapping[str, Cooling] = field(default_factory=dict)  # nodes to be left alone
    # Trainer -> until when it is not to be moved, its budget of rescales being used up.
    settled_until_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A pilot to request."""

    node: str
    time_limit_s: float
    for_trainer: str
    REMOVED: ClassVar = frozenset({"or_time_limit_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A pilot to cancel now."""

    pilot_id: str
    node: str
    reason: str
    for_job: str = ""  # the ordinary job it makes room for


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """A node of the pool and until when it may be used."""

    name: str
    node_type: str
    gpus: int
    usable_until_s: float | None  # when we must be off it, margins taken off
    pilot_id: str = ""  # "" while it is only a candidate
    is_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision: who gets which node, what to claim and what to release."""

    assignment: Mapping[str, str]
    claims: tuple[Claim, ...]
    releases: tuple[Release, ...]
    pool: tuple[PoolNode, ...]
    not_used: Mapping[str, str]  # node -> why it is not in the pool, one sentence
    reserve: tuple[str, ...]
    allocation: Allocation | None  # None: nothing to allocate or observation unknown
    memory: Memory
    trouble: str = ""  # why the policy gave no answer; the assignment is then the old one
    wake_at_s: float | None = None  # the policy wants to be asked again by then
    order: tuple[str, ...] = ()  # in which it lets trainers enter; (): of submission
    dropped: Mapping[str, str] = field(default_factory=dict)  # trainer that is to end -> why
    REMOVED: ClassVar = frozenset({"look_wanted_s"})

    def without_taking(self, before: Memory) -> Plan:
        """Return the plan that only gives back: nobody gets a node that was not theirs."""
        gone = {release.node for release in self.releases}
        kept = {node: trainer for node, trainer in before.assignment.items() if node not in gone}
        memory = replace(self.memory, assignment=kept, policy_state=before.policy_state)
        return replace(self, assignment=kept, claims=(), dropped={}, memory=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A decision as the journal keeps it: enough to take it again."""

    event: Event | None  # what called for it; None: time passed
    input: DecisionInput
    policy_hash: str
    plan: Plan
    took_ms: float
