"""The allocation problem, its answer and its errors as plain data, with units in the names.

Source: Liu et al., "BFTrainer" (arXiv 2106.12091), section 3: nodes N, trainers j
with N_j in {0} or [Nmin_j, Nmax_j] (eq. 6-10), piecewise-linear O_j (SOS2), and the
objective of eq. 16: max sum_j T_fwd O_j(N_j) - sum_j O_j(C_j) R_j.

Beyond the paper a node that joins trains warm_up_s later, and until then the trainer goes on with
what it has. One that grows from C_j to s nodes is then worth, with w = min(warm_up_s, T_fwd),

    O_j(s) (T_fwd - w) + O_j(C_j) w - O_j(C_j) R_j

samples (or units of the objective) within T_fwd; ``milp.reference.timeline`` is the definition.

Beyond the paper, too, trainers may have a cap together, one may have to run, and one may have
certain sizes only.

Where GPUs are lent, a node of the problem is a free GPU of a host, or a part of a host that a pilot
holds. Sizes count *units*: what a trainer calls one is a whole host, or so many GPUs of one host.

The errors are raised by the modules of this package; callers turn them into errors for users.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar


class Objective(enum.StrEnum):
    """The meaning of a curve's values when trainers are compared."""

    THROUGHPUT = "throughput"  # O_j(n) = samples per second at n nodes
    SCALING_EFFICIENCY = "scaling-efficiency"  # O_j(n) / O_j(1)
    WEIGHTED = "weighted"  # weight_j * O_j(n) / O_j(1): priority
    UTILITY = "utility"  # the trainer's own curve ``utility``, in any unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Throughput by size, linear between breakpoints, 0 at size 0.

    ``sizes`` strictly increasing, >= 1, in nodes; ``samples_per_s`` of equal length,
    >= 0. Beyond the last breakpoint the last value holds; below the first the line
    runs to (0, 0). Concavity and monotony are not required.
    """

    sizes: tuple[int, ...]
    samples_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemNode:
    """A node of the pool: a whole host, a free GPU of one, or the part of one that a pilot holds.

    A part with a pilot is lent and returned as it is. Free GPUs of one host and class may become
    one unit together.
    """

    name: str
    eligibility: str = "default"  # type or class; trainers name those they accept
    gpus: int = 0
    expected_remaining_s: float | None = None  # None: no end in sight; decides who gets it
    switch: str = ""
    has_pilot: bool = False  # one of ours is on it, or asked for
    host: str = ""  # whose GPUs are lent one by one; empty: the node is a whole host by itself
    width: int = 1  # GPUs of it, where there is a host; 1 without a pilot
    host_width: int = 0  # GPUs of the whole host
    ADDED: ClassVar = frozenset({"host", "width", "host_width"})  # not written while unused


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemTrainer:
    """A trainer that wants nodes; list order is FCFS order."""

    trainer_id: str
    n_min: int
    n_max: int
    curve: Curve
    rescale_up_s: float  # R_up: what a grow costs all its present nodes
    rescale_down_s: float  # R_dw
    current: tuple[str, ...] = ()  # names of the nodes it has now (C_j = len)
    settled: tuple[str, ...] = ()  # those of current that already train: given up last
    eligible: tuple[str, ...] = ()  # empty: any class, of one at a time unless it mixes
    weight: float = 1.0
    warm_up_s: float = 0.0  # what a joining node needs before it trains; others go on
    mixes_classes: bool = False  # may have nodes of several eligible classes at once
    must_run: bool = False  # has n_min nodes at least, whatever they are worth, if it may run
    utility: Curve | None = None  # what Objective.UTILITY maximises
    sizes: tuple[int, ...] = ()  # the only ones of n_min to n_max that it may have; empty: all
    width: int = 0  # GPUs of one host that are one unit of its sizes; 0: whole hosts
    ADDED: ClassVar = frozenset({"sizes", "width"})  # not written while unused

    def largest_of(self, most: int) -> int:
        """Return the largest size that it may have of ``most`` nodes; 0: none."""
        return largest_size(most, self.n_min, self.n_max, self.sizes)


def largest_size(most: int, n_min: int, n_max: int, sizes: Sequence[int] = ()) -> int:
    """Return the largest size up to ``most`` in n_min to n_max; 0: none.

    Args:
        most: nodes that there are.
        n_min: smallest size.
        n_max: largest size.
        sizes: the only ones, ascending; empty: all.
    """
    limit = min(most, n_max)
    if sizes:
        limit = max([size for size in sizes if size <= limit], default=0)
    return limit if limit >= n_min else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """Most nodes that some trainers have together, for example those of one user."""

    name: str
    trainers: tuple[str, ...]  # ids; those that the problem lacks have no nodes
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Everything one decision depends on."""

    nodes: tuple[ProblemNode, ...]
    trainers: tuple[ProblemTrainer, ...]
    t_fwd_s: float
    p_jmax: int  # at most this many trainers run at once; FCFS decides which
    objective: Objective = Objective.THROUGHPUT
    caps: tuple[Cap, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Marginal:
    """The change of a trainer's value by one node more or fewer, in objective units."""

    gain_of_one_more: float | None  # None: it cannot take another
    loss_of_one_fewer: float | None  # None: it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The answer: map node -> trainer, what it is worth and why."""

    REMOVED: ClassVar = frozenset({"batches"})  # in journals of earlier releases

    assignment: Mapping[str, str]  # node name -> trainer_id; unlisted nodes are unused
    objective: float
    node_price: float  # lambda: marginal value of one node over t_fwd_s
    marginals: Mapping[str, Marginal] = field(default_factory=dict)
    solver: str = "exact"
    gap: float = 0.0  # the optimum is worth at most this much more; 0: this is it

    def sizes(self) -> dict[str, int]:
        """Number of nodes per trainer that has any: its size, unless GPUs are lent."""
        return dict(Counter(self.assignment.values()))

    def unit_sizes(self, problem: Problem) -> dict[str, int]:
        """Size in units per trainer that has any nodes."""
        return unit_sizes(problem, self.assignment)


def nodes_by_name(nodes: Iterable[ProblemNode]) -> dict[str, ProblemNode]:
    """Return the nodes by their names."""
    return {node.name: node for node in nodes}


def names_of(nodes: Iterable[ProblemNode]) -> list[str]:
    """Return the names of the nodes, in their order."""
    return [node.name for node in nodes]


def classes_by_name(nodes: Iterable[ProblemNode]) -> dict[str, str]:
    """Return the class of each node by its name."""
    return {node.name: node.eligibility for node in nodes}


def names_within(names: Iterable[str], pool: Container[str]) -> list[str]:
    """Return those of the names that are in the pool, in their order."""
    return [name for name in names if name in pool]


def names_outside(names: Iterable[str], pool: Container[str]) -> list[str]:
    """Return those of the names that are not in the pool, in their order."""
    return [name for name in names if name not in pool]


def ids_of(trainers: Iterable[ProblemTrainer]) -> list[str]:
    """Return the trainer_ids, in the order of the trainers."""
    return [trainer.trainer_id for trainer in trainers]


def widths_by_id(trainers: Iterable[ProblemTrainer]) -> dict[str, int]:
    """Return how many GPUs a unit of each trainer is by its trainer_id; 0: a whole host."""
    return {trainer.trainer_id: trainer.width for trainer in trainers}


def lends_gpus(problem: Problem) -> bool:
    """Return whether some host's GPUs are lent one by one, or some trainer asks for GPUs."""
    nodes, trainers = problem.nodes, problem.trainers
    if nodes and nodes[0].host:  # as a rule where it does, and quicker
        return True
    return any([node.host for node in nodes]) or any([t.width for t in trainers])  # noqa: C419 - quicker


def unit_sizes(problem: Problem, assignment: Mapping[str, str]) -> dict[str, int]:
    """Return the size in units of each trainer that has any nodes.

    Free GPUs that are too few for a unit count as none.

    Args:
        problem: whose nodes and trainers these are; others count one unit for each name.
        assignment: node name -> trainer_id.
    """
    if not lends_gpus(problem):
        return dict(Counter(assignment.values()))
    width_of = widths_by_id(problem.trainers)
    units = dict.fromkeys(assignment.values(), 0)
    gpus: Counter[tuple[str, str, str, int]] = Counter()
    free_gpus = {node.name: node for node in problem.nodes if node.host and not node.has_pilot}
    for name, trainer_id in assignment.items():
        node = free_gpus.get(name)
        if node is None:
            units[trainer_id] += 1
        else:
            width = width_of.get(trainer_id, 1) or node.host_width
            if width == 1:
                units[trainer_id] += 1
            else:
                gpus[trainer_id, node.host, node.eligibility, width] += 1
    for (trainer_id, _, _, width), count in gpus.items():
        units[trainer_id] += count // width
    return units


class ProblemError(Exception):
    """A problem that cannot be solved as stated: code, one-sentence cause, next step.

    ``trainer_id`` and ``node`` name the one at fault, where it is a trainer or a node.
    """

    def __init__(
        self, code: str, cause: str, next_step: str, *, trainer_id: str = "", node: str = ""
    ) -> None:
        super().__init__(f"{code}: {cause} {next_step}")
        self.code = code
        self.cause = cause
        self.next_step = next_step
        self.trainer_id = trainer_id
        self.node = node


class CheckFailed(Exception):  # noqa: N818 - says what happened: the check failed
    """An allocation that breaks its problem's rules; ``violations`` names every one."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        super().__init__("BFT-3090: the allocation is not valid: " + "; ".join(violations))
        self.code = "BFT-3090"
        self.violations = violations
