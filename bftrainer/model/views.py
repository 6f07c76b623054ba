"""Views of the daemon for users: trainers, nodes, status, explanations, logs.

The daemon makes them, the HTTP layer carries them, the command line prints them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bftrainer.model.cluster import FREE, PART_MARK, Node, node_of
from bftrainer.model.decision import Term
from bftrainer.model.gpu_shares import GpuCount
from bftrainer.model.site import NOTHING, Measured
from bftrainer.model.trainer import GpuLoad, TrainerRecord, TrainerState


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """The GPUs that a trainer has on one node."""

    node: str
    use: GpuLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerView:
    """A trainer with its planned, requested and observed nodes."""

    record: TrainerRecord
    planned_nodes: tuple[str, ...]
    requested_nodes: tuple[str, ...]  # pilots submitted or workers starting
    observed_nodes: tuple[str, ...]  # members of the current generation
    trouble: str = ""  # its failures while it is not final, or that its loss diverged, one sentence
    waits: str = ""  # why it is to have no nodes now (held, --after, --begin), one sentence
    # While it is parked: where its last workers may train on, as their agents are not heard.
    unheard_nodes: tuple[str, ...] = ()
    # On its planned nodes, as decisions assume it; 0: it is to have none, or that is not known.
    planned_samples_per_s: float = 0.0
    gpus: tuple[NodeGpus, ...] = ()  # of its nodes that tell of them

    @property
    def state(self) -> str:
        """Its state; or that it is held, waits at its rung, or may train on unheard."""
        record = self.record
        if record.state.is_final:
            return str(record.state)
        if self.unheard_nodes:
            return "unheard"
        if record.held_s is not None:
            return "held"
        if record.rung_s is not None:
            return "at rung"
        return str(record.state)

    @property
    def why(self) -> str:
        """Why it does not train, or what troubles it."""
        return self.trouble or self.waits or self.record.reason

    @property
    def step(self) -> int:
        """Its updates; of a parked one those in the checkpoint from which it will go on."""
        record, saved_step = self.record, self.record.saved_step
        if record.state is TrainerState.PARKED and saved_step is not None:
            return saved_step
        return record.progress.step

    @property
    def done(self) -> float | None:
        """Which part of its training is done, from 0 to 1; None: its length is not known."""
        spec, progress = self.record.spec, self.record.progress
        if self.record.state is TrainerState.FINISHED:
            return 1.0
        if total := progress.total or spec.samples:
            return min(1.0, progress.samples / total)
        if spec.steps:
            return min(1.0, progress.step / spec.steps)
        if spec.epochs:
            return min(1.0, progress.epoch / spec.epochs)
        return None

    @property
    def left_s(self) -> float | None:
        """How long it still trains at its planned size; None: not known, or it does not.

        The rate of the moment jumps with every node that comes or goes, and is used only where
        decisions know no other.
        """
        progress = self.record.progress
        total = progress.total or self.record.spec.samples
        rate = self.planned_samples_per_s or progress.samples_per_s
        if not total or not rate or self.record.state.is_final:
            return None
        return max(0.0, (total - progress.samples) / rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """GPUs of a node that a pilot has or is requested for."""

    name: str  # of the part; its number says nothing of which GPUs they are
    gpu_type: str
    gpus: int
    use: str  # "requested" | "held" | "unreachable"
    reason: str = ""  # what its pilot waits for or why it is not used, one sentence
    trainer_id: str = ""
    pilot_id: str = ""
    usable_until_s: float | None = None
    gpu_use: GpuLoad | None = None  # of the trainer's GPUs there, of late; null: nothing is told


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as the daemon sees it."""

    name: str
    state: str  # NodeState value, or "unknown" when the last poll failed
    # "free" | "reserve" | "held-off" | "requested" | "held" | "unreachable" | "busy" | "not ours"
    use: str
    reason: str = ""  # why it is (not) used, one sentence
    node_type: str = "default"
    gpus: int = 0
    trainer_id: str = ""
    pilot_id: str = ""
    usable_until_s: float | None = None
    gpu_use: GpuLoad | None = None  # of the trainer's GPUs there, of late; null: nothing is told
    gpu_counts: tuple[GpuCount, ...] = ()  # by type; none: the node is lent as a whole
    parts: tuple[PartView, ...] = ()  # what pilots have of such a node
    why_whole: str = ""  # why its GPUs are not lent one by one, one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class LentGpuTotals:
    """GPUs of all nodes that lend them one by one."""

    gpus: int  # in all
    held: int  # connected pilots have them
    requested: int  # the other pilots have them, or are submitted for them
    free: int  # a further pilot could have them


def lent_totals(
    nodes: Iterable[Node], held: int, requested: int, unstarted: int | None = None
) -> LentGpuTotals | None:
    """Return the sums over all nodes; None: no node lends its GPUs one by one.

    Args:
        nodes: of the snapshot.
        held: GPUs of parts that connected pilots have.
        requested: GPUs of parts that the other pilots have or are to have.
        unstarted: how many of these the snapshot shows as free yet; None: those requested.
    """
    n_gpus = n_free = 0
    for node in nodes:
        for lent in node.lends:
            n_gpus += lent.n_gpus
            n_free += lent.n_free
    if not (n_gpus or held or requested):
        return None
    if unstarted is None:
        unstarted = requested
    free = max(0, n_free - unstarted)
    return LentGpuTotals(gpus=n_gpus, held=held, requested=requested, free=free)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCount:
    """Number of requests of one kind to the controller."""

    kind: str
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingView:
    """The cost of polling to the controller, and its limits."""

    mode: str  # "hook": notified of changes | "polling"
    interval_s: float  # minimum between two regular polls
    requests_per_minute: int  # limit for regular polls
    total_per_minute: int  # limit for all polls
    requests_last_minute: int  # of polls and orders
    looks: int
    called_looks: int  # polls called by an announcement
    last_look_s: float  # duration of the last poll
    requests: tuple[RequestCount, ...]  # so far, by kind
    told: tuple[RequestCount, ...] = ()  # what relays of the hook told so far, by kind


def idle_nodes(nodes: Iterable[Node], held_nodes: Collection[str]) -> int:
    """Return the number of nodes without any job.

    Agents say at once that they hold a node, while the nodes are as the last poll saw them: one
    that is held by now is not idle any more.
    """
    return sum(1 for n in nodes if n.state in FREE and n.name not in held_nodes)


def nodes_of(names: Iterable[str]) -> tuple[int, frozenset[str]]:
    """Return how many nodes these nodes and parts of nodes are, and the nodes of the parts."""
    n_whole = 0
    parted_nodes: set[str] = set()
    for name in names:
        if PART_MARK in name:
            parted_nodes.add(node_of(name))
        else:
            n_whole += 1
    return n_whole + len(parted_nodes), frozenset(parted_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The state of the daemon."""

    incarnation: int
    pid: int
    started_s: float
    batch_system: str
    observed: str  # "present" | "unknown"
    failures: tuple[str, ...]
    policy_hash: str
    nodes_total: int
    nodes_idle: int
    nodes_held: int
    nodes_requested: int
    decisions: int
    last_decision_ms: float
    last_decision_s: float | None
    rescales: int
    give_backs: int  # nodes released before the batch system took them
    preemptions: int  # nodes the batch system took
    trainers: tuple[TrainerView, ...]
    polling: PollingView | None = None
    back_off: str = ""  # one sentence while the daemon backs off (docs/design/give-back.md)
    slow_nodes: tuple[str, ...] = ()  # a sentence each (docs/design/estimators.md)
    cooling_nodes: tuple[str, ...] = ()  # a sentence each (docs/reference/failures.md)
    cuts: tuple[str, ...] = ()  # trainers of which nodes cannot reach each other, likewise
    left_out: tuple[str, ...] = ()  # left out of decisions, a sentence each (docs/design/solver.md)
    measured: Measured = NOTHING  # of pilots (docs/design/give-back.md)
    draining: str = ""  # one sentence while no node is taken (docs/howto/operate.md)
    policy_notes: tuple[str, ...] = ()  # of the last reload, a sentence each
    late_agents: tuple[str, ...] = ()  # not connected, a sentence each (docs/howto/slurm-site.md)
    slept: str = ""  # one sentence if the daemon did not run of late (docs/reference/failures.md)
    not_proven: str = ""  # one sentence if a better decision may exist (docs/design/solver.md)
    policy_files: tuple[str, ...] = ()  # that the daemon was started with, absolute
    batch_pairs: tuple[str, ...] = ()  # options of the batch system likewise, KEY=VALUE
    other_trainers: int = 0  # of other users, not shown (policy ``visibility``)
    lent_gpus: LentGpuTotals | None = None  # null: no node lends its GPUs one by one

    @property
    def notes(self) -> list[tuple[str, str]]:
        """What needs attention: kinds and sentences."""
        texts_of = {
            "drained": _unless_empty(self.draining),
            "policy": self.policy_notes,
            "optimum": _unless_empty(self.not_proven),
            "back-off": _unless_empty(self.back_off),
            "slept": _unless_empty(self.slept),
            "slow node": self.slow_nodes,
            "bad node": self.cooling_nodes,
            "late agent": self.late_agents,
            "cut": self.cuts,
            "left out": self.left_out,
            "failure": self.failures,
        }
        notes: list[tuple[str, str]] = []
        for kind, texts in texts_of.items():
            notes += [(kind, text) for text in texts]
        return notes


def _unless_empty(text: str) -> tuple[str, ...]:
    return (text,) if text else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A setting of the policy that has another value; values as in a policy file."""

    setting: str
    before: str
    after: str
    restart: str = ""  # why only a restart of the daemon changes it; "": a reload does


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadView:
    """The policy as it was read again."""

    policy_hash: str  # of what the next decision goes by
    changes: tuple[SettingChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainView:
    """Nodes that are given back."""

    nodes: tuple[str, ...]
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSpeed:
    """Speed of a trainer at one size, as decisions assume it."""

    size: int  # in nodes
    samples_per_s: float
    left_s: float | None  # until its training is complete at this rate; None: not known
    change_samples: float | None  # over T_fwd against the planned size, with the rescale's pause


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintEffect:
    """Constraints on any policy's answer, and the nodes that a trainer has for them."""

    # The same in all releases (docs/design/constraints.md); several: one alone changes nothing.
    names: tuple[str, ...]
    meanings: tuple[str, ...]
    nodes: tuple[str, ...]
    nodes_without: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The reasons for a trainer's size."""

    trainer_id: str
    state: str
    planned_size: int
    observed_size: int
    sentences: tuple[str, ...]  # most important first
    decision_id: int | None
    node_price: float
    gain_of_one_more: float | None
    loss_of_one_fewer: float | None
    policy: str = "milp"
    terms: tuple[Term, ...] = ()  # what the policy went by; (): the three figures above
    speeds: tuple[SizeSpeed, ...] = ()  # near the planned size; (): its throughput is not measured
    t_fwd_s: float = 0.0
    unheard_nodes: tuple[str, ...] = ()  # as in ``TrainerView``
    constraints: tuple[ConstraintEffect, ...] = ()  # those that shaped its nodes
    gpus_per_unit: int = 0  # what its sizes count; 0: nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A worker's log file."""

    worker_id: str
    node: str
    path: str
    generation: int  # the first generation it was in, 0 if none yet
    rank: int | None
