"""What a decision reads and what it says: plain data, journalled as a whole.

``decide`` is a fold: ``Memory`` is what it hands to its own next call. All times
are seconds since the epoch on the batch system's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bftrainer.decide.claims import ClaimCosts
from bftrainer.decide.cooling import Cooling
from bftrainer.decide.leftout import LeftOut
from bftrainer.decide.remaining import Joins
from bftrainer.decide.reserve import SmallJobs
from bftrainer.decide.slow import Replacing, SlowNode
from bftrainer.events.change import Event
from bftrainer.poll.snapshot import Snapshot
from bftrainer.trainer import TrainerRecord
from milp.problem import Allocation, Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The part of the administrator's policy that decisions depend on."""

    policy: str = "milp"
    objective: Objective = Objective.SCALING_EFFICIENCY
    t_fwd_s: float | None = 120.0  # None: what remaining.py has learnt
    p_jmax: int = 10
    reserve_nodes_per_type: int = 1
    learns_reserve: bool = False  # as many as reserve.py has learnt, instead
    idle_confirmations: int = 1
    pilot_time_limit_s: float = 14400.0
    min_gap_s: float = 120.0
    learns_min_gap: bool = False  # min_gap_s only until claims.py has learnt the break-even
    gap_margin_s: float = 60.0
    backfill_lead_s: float | None = None  # see ``giveback``; None: everything at once
    end_margin_s: float = 20.0  # a node stops being usable this long before its pilot ends
    cycle_s: float = 30.0
    hold_idle_s: float = 5.0
    pilot_start_timeout_s: float = 60.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotView:
    """A pilot of ours that has not ended, as far as we know."""

    pilot_id: str
    node: str
    requested_s: float
    is_held: bool  # its agent is connected
    is_leaving: bool = False  # cancelled or on its way out
    end_s: float | None = None  # when its time limit strikes
    # The shorter of the limits that were asked for, while it waits; None: not known.
    shortest_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveBack:
    """What we remember of there being room for a job, made by us or not."""

    at_s: float
    situation: str  # digest of job, queue and usable nodes at that time


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """State of the fold; empty at the very first decision."""

    assignment: Mapping[str, str] = field(default_factory=dict)  # node -> trainer, planned
    idle_seen: Mapping[str, int] = field(default_factory=dict)  # consecutive idle snapshots
    held_off: Mapping[str, float] = field(default_factory=dict)  # node -> since when
    gave_back: Mapping[str, GaveBack] = field(default_factory=dict)  # ordinary job id ->
    unused_since: Mapping[str, float] = field(default_factory=dict)  # held node no one wants
    joins: Joins = field(default_factory=Joins)  # kept only where T_fwd is learnt
    claim_costs: ClaimCosts = field(default_factory=ClaimCosts)  # only where min_gap_s is
    small_jobs: SmallJobs = field(default_factory=SmallJobs)  # only where the reserve is
    slow_nodes: Mapping[str, SlowNode] = field(default_factory=dict)
    replacing: Mapping[str, Replacing] = field(default_factory=dict)  # by straggler
    # Trainers, jobs and nodes that decisions do without, because they fail on them.
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionInput:
    """Everything a decision depends on."""

    now_s: float
    snapshot: Snapshot
    is_new_snapshot: bool  # False when only trainers or agents changed since the last look
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
    # Where it has to wait for the scheduler's plan: a limit that is short enough for every gap
    # worth a claim, to be had if the other does not fit that plan.
    or_time_limit_s: float | None = None


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
    look_wanted_s: float | None = None  # nodes wait for what a look at this time shows

    def without_taking(self, before: Mapping[str, str]) -> Plan:
        """Return the plan that only gives back: nobody gets a node that was not theirs."""
        gone = {release.node for release in self.releases}
        kept = {node: trainer for node, trainer in before.items() if node not in gone}
        memory = replace(self.memory, assignment=kept)
        return replace(self, assignment=kept, claims=(), memory=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A decision as the journal keeps it: enough to take it again."""

    event: Event | None  # what called for it; None: time passed
    input: DecisionInput
    policy_hash: str
    plan: Plan
    took_ms: float
