"""The paper's node-level MILP (Liu et al., arXiv 2106.12091, eq. 1-16).

``build_node_model`` makes a model as plain data of a Problem, ``read_map`` a map of a solver's
values. Section order: data, variables, constraints, objective, read back. Solved by
``milp.reference.backends``; the exact solver is compared with it and shares no code with it.
The breakpoints of a trainer's curve and its present rate are those of ``milp.worth``, which judges
answers; the exact solver has its own (``milp.tables``). Beyond the paper, nodes may be free GPUs of
hosts: a trainer has so many units of the free GPUs of each host, and that many times the width of
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from milp.problem import Objective, Problem, ProblemError, ProblemTrainer
from milp.reference.linear_model import LinearModel, Terms, negative
from milp.worth import rate

Point: TypeAlias = tuple[int, float]  # size, value


def objective_points(
    trainer: ProblemTrainer, objective: Objective, n_nodes: int
) -> tuple[Point, ...]:
    """Breakpoints from (0, 0) to ``n_nodes``; between them O_j is linear."""
    curve = trainer.curve
    if objective is Objective.UTILITY and trainer.utility is not None:
        curve = trainer.utility
    sizes = [0]
    if n_nodes > 0:
        sizes += [size for size in curve.sizes if size < n_nodes]
        sizes.append(n_nodes)
    return tuple([(size, rate(trainer, size, objective)) for size in sizes])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerColumns:
    """The columns of one trainer's variables in the model, with its constants."""

    x: tuple[int, ...]  # [n] x_jn: it has node n
    u: tuple[int, ...]  # [n] u_jn: node n changes hands (x_jn xor c_jn)
    y_lower: int  # 1: below n_min, so the size is 0 (eq. 4)
    y_upper: int  # 1: above n_max, so the size is 0 (eq. 4)
    z: int  # 1: it may only lose nodes (eq. 10)
    weights: tuple[int, ...]  # [i] w_ji of breakpoint i (eq. 11)
    grows: int  # zu_j (eq. 15)
    shrinks: int  # zd_j (eq. 15)
    classes: Mapping[str, int]  # class -> 1 when it has nodes of that class
    points: tuple[Point, ...]  # (N_ji, O_ji), the first is (0, 0)
    rate_now: float  # O_j(C_j)
    present: frozenset[int]  # n with c_jn = 1
    units: Mapping[tuple[str, str], int]  # host and class -> units of its free GPUs together
    gpus: Mapping[tuple[str, str], tuple[int, ...]]  # likewise -> n of these GPUs
    per_unit: Mapping[tuple[str, str], int]  # likewise -> how many of them one unit is


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeModel:
    """The model of a problem and where its variables are."""

    problem: Problem
    model: LinearModel
    trainers: tuple[TrainerColumns, ...]
    node_classes: tuple[str, ...]  # [n]


def build_node_model(problem: Problem) -> NodeModel:
    """Write the model down; the problem must have passed ``milp.check``.

    Raises:
        ProblemError: it has what these equations cannot say: a warm-up, a trainer that must run, or
            one that may have certain sizes only.
    """
    # Eq. 16 lets every node earn for t_fwd, from 0 nodes on.
    for name in ("warm_up_s", "must_run", "sizes"):
        if any(getattr(trainer, name) for trainer in problem.trainers):
            raise ProblemError(
                "BFT-3045",
                f"The paper's node-level model knows no {name}.",
                "Use the exact solver, or leave it out.",
            )
    # Data: classes; eq. 1 (C_j) and the breakpoints of O_j are in the columns
    node_classes = [node.eligibility for node in problem.nodes]
    model = LinearModel()
    # Variables, in the order of the trainers; x first
    all_columns = [
        _add_variables(model, problem, trainer, node_classes) for trainer in problem.trainers
    ]
    # Constraints
    _one_trainer_per_node(model, all_columns)
    _keep_caps(model, problem, all_columns)
    for j, (trainer, columns) in enumerate(zip(problem.trainers, all_columns, strict=True)):
        if j < problem.p_jmax:
            _bound_size(model, trainer, columns)
            _restrict_classes(model, problem, j, columns, node_classes)
        else:
            model.equal("p_jmax", _size(columns), 0.0)
        _make_units(model, problem, trainer, columns)
        _forbid_migration(model, columns)
        _interpolate_curve(model, columns)
        _tell_rescale(model, columns)
        # Objective
        _add_objective(model, problem, trainer, columns)
    return NodeModel(
        problem=problem, model=model, trainers=tuple(all_columns), node_classes=tuple(node_classes)
    )


# --- Variables ----------------------------------------------------------------------


def _add_variables(
    model: LinearModel, problem: Problem, trainer: ProblemTrainer, node_classes: Sequence[str]
) -> TrainerColumns:
    n_nodes = len(problem.nodes)
    points = objective_points(trainer, problem.objective, n_nodes)
    classes: list[str] = []
    if not trainer.mixes_classes:
        classes = sorted(set(node_classes))
    names, present = frozenset(trainer.current), set[int]()
    gpus: dict[tuple[str, str], tuple[int, ...]] = {}
    per_unit: dict[tuple[str, str], int] = {}
    for n, node in enumerate(problem.nodes):
        if node.name in names:
            present.add(n)
        if node.host and not node.has_pilot:
            key = node.host, node.eligibility
            gpus[key] = (*gpus.get(key, ()), n)
            per_unit[key] = trainer.width or node.host_width
    # The columns are numbered in the order of these lines.
    return TrainerColumns(
        x=_binaries(model, "x", n_nodes),
        u=_binaries(model, "u", n_nodes),
        y_lower=model.binary("y"),
        y_upper=model.binary("y"),
        z=model.binary("z"),
        weights=tuple([model.column("w", 0.0, 1.0) for _ in points]),
        grows=model.binary("zu"),
        shrinks=model.binary("zd"),
        classes={name: model.binary("class") for name in classes},
        points=points,
        rate_now=rate(trainer, len(present), problem.objective),
        present=frozenset(present),
        units={key: model.column("units", 0.0, float(n_nodes), is_integer=True) for key in gpus},
        gpus=gpus,
        per_unit=per_unit,
    )


def _binaries(model: LinearModel, name: str, count: int) -> tuple[int, ...]:
    return tuple([model.binary(name) for _ in range(count)])


def _sum(columns: Iterable[int], factor: float = 1.0) -> Terms:
    return [(column, factor) for column in columns]


def _sum_over(nodes: Iterable[int], columns: Sequence[int]) -> Terms:
    """Return the sum of the columns of some nodes; ``columns`` has one for each node."""
    return [(columns[n], 1.0) for n in nodes]


def _alone(columns: TrainerColumns) -> list[int]:
    """Return the nodes that are a unit each: all but free GPUs of hosts."""
    free_gpus: set[int] = set()
    free_gpus.update(*columns.gpus.values())
    return [n for n in range(len(columns.x)) if n not in free_gpus]


def _size(columns: TrainerColumns) -> Terms:
    """Eq. 2: N_j is the sum of x_jn over the nodes; free GPUs of a host count by the unit."""
    return _sum_over(_alone(columns), columns.x) + _sum(columns.units.values())


# --- Constraints --------------------------------------------------------------------


def _bound_size(model: LinearModel, trainer: ProblemTrainer, columns: TrainerColumns) -> None:
    """Eq. 3 as eq. 4: size 0, or n_min..n_max."""
    size, n_nodes = _size(columns), len(columns.x)
    n_min = min(trainer.n_min, n_nodes + 1)  # more cannot be had in any case
    big = float(n_nodes + 1)
    model.row("eq. 4", [*size, (columns.y_lower, big)], at_least=n_min)
    model.row("eq. 4", [*size, (columns.y_lower, big)], at_most=big)
    model.row("eq. 4", [*size, (columns.y_upper, -big)], at_most=trainer.n_max)
    model.row("eq. 4", [*size, (columns.y_upper, big)], at_most=big)


def _one_trainer_per_node(model: LinearModel, all_columns: Sequence[TrainerColumns]) -> None:
    """Eq. 5."""
    for claims in zip(*(columns.x for columns in all_columns), strict=True):
        model.row("eq. 5", _sum(claims), at_most=1.0)


def _make_units(
    model: LinearModel, problem: Problem, trainer: ProblemTrainer, columns: TrainerColumns
) -> None:
    """Beyond the paper: parts of its width only, and free GPUs of a host by the unit."""
    for key, members in columns.gpus.items():
        terms = _sum_over(members, columns.x)
        model.equal("units", [*terms, (columns.units[key], -float(columns.per_unit[key]))], 0.0)
    for n in _alone(columns):
        node = problem.nodes[n]
        if trainer.width == 0:
            is_unit = not node.host or node.width == node.host_width
        else:
            is_unit = bool(node.host) and node.width == trainer.width
        if not is_unit:
            model.row("width", [(columns.x[n], 1.0)], at_most=0.0)


def _forbid_migration(model: LinearModel, columns: TrainerColumns) -> None:
    """Eq. 6 as eq. 9 and 10: as many nodes change hands as the size changes by."""
    for n, (x, u) in enumerate(zip(columns.x, columns.u, strict=True)):
        c = float(n in columns.present)
        model.row("eq. 9", [(u, 1.0), (x, -1.0)], at_most=c)
        model.row("eq. 9", [(u, 1.0), (x, -1.0)], at_least=-c)
        model.row("eq. 9", [(u, 1.0), (x, 1.0)], at_least=c)
        model.row("eq. 9", [(u, 1.0), (x, 1.0)], at_most=2.0 - c)
    n_present, big, alone = (
        float(len(columns.present)),
        float(2 * len(columns.x) + 1),
        _alone(columns),
    )
    size = _sum_over(alone, columns.x)
    changes = _sum_over(alone, columns.u)
    # Units of free GPUs, which are nobody's yet, are of the size and of the change likewise.
    twice = _sum(columns.units.values(), 2.0)
    model.row("eq. 10", [*size, *negative(changes), (columns.z, big)], at_least=n_present)
    model.row("eq. 10", [*size, *changes, *twice, (columns.z, big)], at_most=n_present + big)


def _interpolate_curve(model: LinearModel, columns: TrainerColumns) -> None:
    """Eq. 11: the weights are an SOS2 set whose mean breakpoint is the size."""
    model.equal("eq. 11", _sum(columns.weights), 1.0)
    mean: Terms = [(w, float(n)) for w, (n, _) in zip(columns.weights, columns.points, strict=True)]
    model.equal("eq. 11", [*mean, *negative(_size(columns))], 0.0)
    if len(columns.weights) > 2:
        model.sos2.append(columns.weights)


def _tell_rescale(model: LinearModel, columns: TrainerColumns) -> None:
    """Eq. 13 as eq. 15: whether the trainer grows or shrinks."""
    size, n_present, big = _size(columns), float(len(columns.present)), float(len(columns.x) + 1)
    model.row("eq. 15", [*size, (columns.grows, n_present - big)], at_most=n_present)
    model.row("eq. 15", [*size, (columns.grows, -(n_present + 1.0))], at_least=0.0)
    model.row("eq. 15", [*size, (columns.shrinks, big - (n_present - 1.0))], at_most=big)
    model.row("eq. 15", [*size, (columns.shrinks, n_present)], at_least=n_present)


def _keep_caps(model: LinearModel, problem: Problem, all_columns: Sequence[TrainerColumns]) -> None:
    """Beyond the paper: nodes that trainers have together."""
    sizes: dict[str, Terms] = {}
    for trainer, columns in zip(problem.trainers, all_columns, strict=True):
        sizes[trainer.trainer_id] = _size(columns)
    for cap in problem.caps:
        terms: Terms = []
        for trainer_id in sorted(set(cap.trainers)):
            terms += sizes.get(trainer_id, [])
        model.row("cap", terms, at_most=float(cap.most))


def _restrict_classes(
    model: LinearModel,
    problem: Problem,
    j: int,
    columns: TrainerColumns,
    node_classes: Sequence[str],
) -> None:
    """Beyond the paper: accepted nodes only, of one class unless the trainer mixes them."""
    eligible = problem.trainers[j].eligible
    for x, node in zip(columns.x, problem.nodes, strict=True):
        if eligible and node.eligibility not in eligible:
            model.row("eligibility", [(x, 1.0)], at_most=0.0)
    if len(columns.classes) > 1:
        model.row("one class", _sum(columns.classes.values()), at_most=1.0)
        for x, name in zip(columns.x, node_classes, strict=True):
            model.row("one class", [(x, 1.0), (columns.classes[name], -1.0)], at_most=0.0)


# --- Objective ----------------------------------------------------------------------


def _add_objective(
    model: LinearModel, problem: Problem, trainer: ProblemTrainer, columns: TrainerColumns
) -> None:
    """Eq. 16 with O_j by eq. 12 and R_j by eq. 14."""
    for weight, (_, value) in zip(columns.weights, columns.points, strict=True):
        model.costs[weight] = problem.t_fwd_s * value
    model.costs[columns.grows] = -columns.rate_now * trainer.rescale_up_s
    model.costs[columns.shrinks] = -columns.rate_now * trainer.rescale_down_s


# --- Read back, and the way in ------------------------------------------------------


def read_map(node_model: NodeModel, values: Sequence[float]) -> dict[str, str]:
    """The map node -> trainer_id in a solver's values."""
    problem = node_model.problem
    assignment: dict[str, str] = {}
    for trainer, columns in zip(problem.trainers, node_model.trainers, strict=True):
        for node, column in zip(problem.nodes, columns.x, strict=True):
            if values[column] > 0.5:
                assignment[node.name] = trainer.trainer_id
    return assignment


def values_of_map(node_model: NodeModel, assignment: Mapping[str, str]) -> list[float]:
    """Values of all variables for a map: where a solver may start, and a way to check.

    A map that keeps every rule breaks no row, and its worth is its objective.
    """
    problem = node_model.problem
    values = [0.0] * len(node_model.model.costs)
    for trainer, columns in zip(problem.trainers, node_model.trainers, strict=True):
        nodes: set[int] = set()  # those that it has
        for n, node in enumerate(problem.nodes):
            if assignment.get(node.name) == trainer.trainer_id:
                nodes.add(n)
                values[columns.x[n]] = 1.0
                if node.eligibility in columns.classes:
                    values[columns.classes[node.eligibility]] = 1.0
        for n in nodes ^ columns.present:
            values[columns.u[n]] = 1.0
        for key, members in columns.gpus.items():
            values[columns.units[key]] = float(
                len(nodes.intersection(members)) // columns.per_unit[key]
            )
        values[columns.y_lower] = values[columns.y_upper] = float(not nodes)
        size = round(sum([values[column] for column, _ in _size(columns)]))
        values[columns.z] = float(size < len(columns.present))
        values[columns.grows] = float(size > len(columns.present))
        values[columns.shrinks] = float(size < len(columns.present))
        for weight, share in zip(columns.weights, _shares(columns.points, size), strict=True):
            values[weight] = share
    return values


def _shares(points: Sequence[Point], size: int) -> list[float]:
    """Weights of the two neighbouring breakpoints that a size lies between."""
    shares = [0.0] * len(points)
    size_before = 0
    for i, (point_size, _) in enumerate(points):
        if point_size >= size:
            share_before = 0.0
            if i:
                share_before = (point_size - size) / (point_size - size_before)
                shares[i - 1] = share_before
            shares[i] = 1.0 - share_before
            return shares
        size_before = point_size
    raise ValueError(f"size {size} lies beyond the last breakpoint")
