"""Input and output of a decision, and the event that calls for it: plain data.

``decide`` is a fold: each call returns the ``Memory`` that the next call gets. All times are
seconds since the epoch on the batch system's clock.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from bftrainer.model.cluster import Snapshot
from bftrainer.model.fairness import Blackout, Limits, Usage, Wait
from bftrainer.model.parts import Lend, NodePart
from bftrainer.model.trainer import TrainerRecord
from milp.plain import Later
from milp.problem import Allocation, Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The state that decisions react to, as sets of names."""

    usable: frozenset[str]  # nodes idle or held
    pending: frozenset[str]  # pending ordinary jobs
    trainers: frozenset[str]  # trainers that are not final
    held: frozenset[str]  # pilots with a connected agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change of pool, queue or trainers."""

    at_s: float
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    jobs_arrived: tuple[str, ...] = ()
    jobs_gone: tuple[str, ...] = ()
    trainers_arrived: tuple[str, ...] = ()
    trainers_gone: tuple[str, ...] = ()
    agents_arrived: tuple[str, ...] = ()
    agents_gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The part of the administrator's policy that decisions depend on."""

    policy: str = "milp"
    # As the policy declares them. Left out of the hash: ``Settings`` objects are cache keys.
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
    end_margin_s: float = 20.0  # a node is not used in the last seconds of its pilot
    cycle_s: float = 30.0
    hold_idle_s: float = 5.0
    rescale_up_guess_s: float = 0.5
    rescale_down_guess_s: float = 0.2
    max_nodes_per_trainer: int | None = None
    eligible_node_types: tuple[str, ...] = ()  # empty: all
    # Set while the daemon backs off (bftrainer.daemon.harm.backoff); the defaults have no effect.
    max_held_nodes: int | None = None
    hold_off_cycles: float = 1.0  # before a released node may be taken again
    reserve_extra_nodes: int = 0  # beyond reserve_nodes_per_type
    explore_budget: float = 0.0  # share of the objective; 0: sizes are never explored
    straggler_threshold: float = 0.0  # fraction of the others' throughput; 0: never replace
    straggler_memory_s: float = 1800.0  # half-life of the slowness remembered of a node
    harm_slo_s: float = 1.0  # the site's promise: a released node is free within this time
    max_nodes: int | None = None  # held or requested at once
    gives_back: bool = True  # False: only preemption takes nodes
    limits: Limits = field(default_factory=Limits)
    fair_share_half_life_s: float | None = None  # None: first come, first served
    max_wait_s: float | None = None  # of a trainer without nodes; None: the policy's choice
    expects_losses: bool = False  # curves count what losses of nodes cost (bftrainer.decide.losses)
    lend: Lend = Lend.NODES  # the snapshot's nodes show what of it applies (``parts.as_lent``)
    ADDED: ClassVar = frozenset(
        {"limits", "fair_share_half_life_s", "max_wait_s", "expects_losses", "lend"}
    )
    REMOVED: ClassVar = frozenset(
        {"learns_reserve", "learns_min_gap", "backfill_lead_s", "pilot_start_timeout_s"}
    )
    LATER: ClassVar = Later("learns_reserve", frozenset({"expects_losses"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotView:
    """A pilot of ours that has not ended, as far as we know."""

    pilot_id: str
    node: str
    requested_s: float
    is_held: bool  # its agent is connected
    is_leaving: bool = False  # cancelled or on its way out
    end_s: float | None = None  # when its time limit expires
    user: str = ""  # it runs as, and only whose trainers may use it; "": all trainers
    is_silent: bool = False  # its agent was connected and is not heard; it did not say it leaves
    part: NodePart | None = None  # what it holds, or will; None: the whole node
    ADDED: ClassVar = frozenset({"is_silent", "part"})
    REMOVED: ClassVar = frozenset({"shortest_limit_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNode:
    """A node that was found slow."""

    fraction: float  # of the throughput of its trainer's other nodes
    seen_s: float  # last measurement
    trainer_id: str  # the trainer it was measured in


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacing:
    """The node that replaces a straggler, until it trains."""

    node: str
    trainer_id: str
    REMOVED: ClassVar = frozenset({"since_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPatience:
    """Time that an agent may take to connect after its pilot has started."""

    limit_s: float = 60.0
    # Pilot without an agent -> when a snapshot first showed it running; None: none yet.
    started_s: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """Warm-up of nodes: from their assignment to a trainer until they train."""

    since_s: Mapping[str, float] = field(default_factory=dict)  # nodes still warming up
    warm_up_s: float = 0.0  # moving average
    count: int = 0  # nodes in the average


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Losses of nodes by trainers, as ``decide.losses`` counts them."""

    training: Mapping[str, str] = field(default_factory=dict)  # node -> trainer, since at_s
    at_s: float = 0.0
    run_node_s: float = 0.0  # node-seconds trained from the last loss until at_s
    life_node_s: float = 0.0  # the same between losses, moving average
    count: int = 0  # losses in the average


@dataclass(frozen=True, slots=True, kw_only=True)
class VainReleases:
    """The times that a startable job (or array task) was passed over despite free nodes."""

    job_id: str  # for an array: the task
    times: int = 0  # it was passed over
    served_s: float | None = None  # its nodes have been free since then; None: they are not
    nodes: tuple[str, ...] = ()
    refused_s: float | None = None  # nothing is released for it since then; None: not refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A pilot that was asked to leave and whose node is not usable yet."""

    pilot_id: str
    asked_s: float
    busy_s: float | None = None  # last snapshot that showed the node busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Recent durations of pilot ends and starts, oldest first (``end_cost``)."""

    ending: Mapping[str, Ending] = field(default_factory=dict)  # by node
    took_s: tuple[float, ...] = ()  # from the cancel request until the node was usable
    # Pilot whose start is not measured yet -> when its agent connected; None: not yet.
    joining: Mapping[str, float | None] = field(default_factory=dict)
    joined_s: tuple[float, ...] = ()  # from the pilot's start until its agent connected


class Kind(enum.StrEnum):
    """The kinds of input that a decision can leave out (``bftrainer.decide.isolation``)."""

    REQUEST = "request"  # of a job; it then counts as asking for any nodes
    TRAINER = "trainer"
    NODE = "node"
    POLICY = "policy"  # no allocation at all
    JOB = "job"  # written by earlier releases only


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A trainer, job or node that decisions leave out because they fail on it."""

    kind: Kind
    name: str  # id of a job or trainer, name of a node or policy
    reason: str  # a sentence
    since_s: float  # when a decision last failed on it

    @property
    def key(self) -> str:
        """Its key in ``Memory``."""
        return f"{self.kind} {self.name}"


Known = Mapping[str, LeftOut]  # by key


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A pilot that was released because its node goes to a trainer of another user."""

    trainer_id: str
    until_s: float  # the trainer waits for the node until then


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """State of the fold; empty at the very first decision."""

    assignment: Mapping[str, str] = field(default_factory=dict)  # node -> trainer, planned
    idle_seen: Mapping[str, int] = field(default_factory=dict)  # node -> idle snapshots in a row
    held_off: Mapping[str, float] = field(default_factory=dict)  # node -> since when
    cycles: tuple[float, ...] = ()  # begins of the latest scheduler cycles, oldest first
    vain: Mapping[str, VainReleases] = field(default_factory=dict)  # by ordinary job or array
    unused_since: Mapping[str, float] = field(default_factory=dict)  # held nodes without a trainer
    agents: AgentPatience = field(default_factory=AgentPatience)
    joining: Joining = field(default_factory=Joining)
    ends: Ends = field(default_factory=Ends)
    slow_nodes: Mapping[str, SlowNode] = field(default_factory=dict)
    replacing: Mapping[str, Replacing] = field(default_factory=dict)  # by straggler
    left_out: Known = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    policy_state: Any = None  # plain data that only the policy reads
    waits: Mapping[str, Wait] = field(default_factory=dict)  # by trainer, if waits are bounded
    swaps: Mapping[str, Swap] = field(default_factory=dict)  # on their way, by node
    losses: Losses = field(default_factory=Losses)
    # Node that we left free -> the pilot of another daemon that has taken it.
    reserve_taken: Mapping[str, str] = field(default_factory=dict)
    ADDED: ClassVar = frozenset({"usage", "waits", "swaps", "losses", "reserve_taken"})
    REMOVED: ClassVar = frozenset({"joins", "claim_costs", "small_jobs", "gave_back"})
    LATER: ClassVar = Later("joins", frozenset({"losses"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """A node that is not used for a while: workers failed on it, or pilots left it unusable.

    Set by ``fleet.trainers.quarantine`` and ``daemon.harm.aftermath``; ``decide.pool`` does not
    offer such nodes.
    """

    until_s: float
    failures: int  # in a row, counted against the node
    trainer_id: str  # of the worker that failed last; "": a pilot left the node unusable
    cause: str  # of the last failure, one sentence

    def sentence(self, now_s: float) -> str:
        """Say why the node is not used, and for how long."""
        left_s = max(1.0, self.until_s - now_s)
        duration = f"{left_s / 60.0:.0f} min"
        if left_s < 120.0:
            duration = f"{left_s:.0f} s"
        if not self.trainer_id:
            times = "once" if self.failures == 1 else f"{self.failures} times"
            return (
                f"BFT-1334: It gets no pilot for {duration} more: {times} it was unusable soon"
                f" after a pilot, last {self.cause} (bftrainer report harm)."
            )
        return (
            f"It cools down for {duration} more: {self.failures} failures of"
            f" workers in a row, the last of {self.trainer_id} ({self.cause.rstrip('.')})."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slept:
    """The last time in which the daemon did not run: who was late then may have been in time."""

    from_s: float = 0.0  # 0: it always ran
    until_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionInput:
    """Everything a decision depends on."""

    now_s: float
    snapshot: Snapshot
    is_new_snapshot: bool  # False: only trainers or agents changed since the last poll
    gives_back_only: bool = False  # a full decision follows
    pilots: tuple[PilotView, ...]
    trainers: tuple[TrainerRecord, ...]  # not in a final state; in FCFS order
    settings: Settings
    memory: Memory
    may_claim: bool = True  # False while the batch system refuses pilots
    # Node -> the one of ``trainers`` that trains there, observed.
    training: Mapping[str, str] = field(default_factory=dict)
    # Node -> another trainer, whose worker is still there: it has ended, or is held.
    occupied: Mapping[str, str] = field(default_factory=dict)
    # Slow node -> fraction of its trainer's other nodes' throughput; 1.0: no longer slow.
    speeds: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    cooling: Mapping[str, Cooling] = field(default_factory=dict)  # nodes not to be used
    # Trainer whose rescale budget is used up -> until when it keeps its nodes.
    settled_until_s: Mapping[str, float] = field(default_factory=dict)
    blackout: Blackout | None = None  # the present or the next one
    # Trainer -> node that it must not get -> since when: its other nodes cannot reach that one.
    apart: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    slept: Slept = Slept()
    ADDED: ClassVar = frozenset({"blackout", "occupied", "apart", "slept"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A pilot to request."""

    node: str
    time_limit_s: float
    for_trainer: str
    part: NodePart | None = None  # None: the whole node
    ADDED: ClassVar = frozenset({"part"})
    REMOVED: ClassVar = frozenset({"or_time_limit_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A pilot to cancel now."""

    pilot_id: str
    node: str
    reason: str
    for_job: str = ""  # the ordinary job that is to get the node


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """A node of the pool, with the end of its use."""

    name: str
    node_type: str
    gpus: int
    usable_until_s: float | None  # when we must have left it, margins subtracted
    pilot_id: str = ""  # "" while it is only a candidate
    is_held: bool = False
    user: str = ""  # of its pilot


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The usable nodes and the reasons for all others."""

    nodes: tuple[PoolNode, ...] = ()
    reserve: tuple[str, ...] = ()
    not_used: Mapping[str, str] = field(default_factory=dict)
    due: Mapping[str, str] = field(default_factory=dict)  # pilot to release now -> why
    starts_s: float = 0.0  # latest start of a pilot requested now

    def without(self, why: Mapping[str, str]) -> Pool:
        """Remove nodes, each for a reason."""
        if not why:
            return self
        nodes = tuple([n for n in self.nodes if n.name not in why])
        return replace(self, nodes=nodes, not_used={**self.not_used, **why})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision: assignment of nodes to trainers, claims and releases."""

    assignment: Mapping[str, str]
    claims: tuple[Claim, ...]
    releases: tuple[Release, ...]
    pool: tuple[PoolNode, ...]
    not_used: Mapping[str, str]  # node -> why it is not in the pool, one sentence
    reserve: tuple[str, ...]
    allocation: Allocation | None  # None: nothing to allocate or observation unknown
    memory: Memory
    trouble: str = ""  # why the policy has no answer; the assignment is then unchanged
    wake_at_s: float | None = None  # a decision is due by then, on the clock of ``now_s``
    order: tuple[str, ...] = ()  # of admission, by the policy; (): order of submission
    dropped: Mapping[str, str] = field(default_factory=dict)  # trainer to end -> reason
    # Node with a pilot of another user -> trainer that gets it when that pilot is gone.
    swaps: Mapping[str, str] = field(default_factory=dict)
    REMOVED: ClassVar = frozenset({"look_wanted_s"})

    def without_taking(self, before: Memory) -> Plan:
        """Return the plan with its releases only: no trainer gets a further node."""
        assignment = dict(before.assignment)
        for release in self.releases:
            assignment.pop(release.node, None)
        memory = replace(self.memory, assignment=assignment, policy_state=before.policy_state)
        return replace(self, assignment=assignment, claims=(), dropped={}, swaps={}, memory=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A decision as the journal keeps it: enough to repeat it."""

    event: Event | None  # its cause; None: time passed
    input: DecisionInput
    policy_hash: str
    plan: Plan
    took_ms: float


@dataclass(frozen=True, slots=True)
class Term:
    """One number that a trainer's size follows from."""

    name: str  # as users read it: "place in the queue"
    value: float  # one that is not finite is not shown
    unit: str = ""  # "": a plain number


Terms = Mapping[str, tuple[Term, ...]]  # by trainer, most important first
