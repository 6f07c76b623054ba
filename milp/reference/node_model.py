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

from collections.abc import Mapping, Sequence
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
    own = trainer.utility if objective is Objective.UTILITY else None
    sizes = [0, *(size for size in (own or trainer.curve).sizes if size < n_nodes)]
    sizes += [n_nodes] * (n_nodes > 0)
    return tuple((size, rate(trainer, size, objective)) for size in sizes)


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
    held: float  # O_j(C_j)
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
    columns = [
        _add_variables(model, problem, trainer, node_classes) for trainer in problem.trainers
    ]
    # Constraints
    _one_trainer_per_node(model, columns)
    _keep_caps(model, problem, columns)
    for j, (trainer, own) in enumerate(zip(problem.trainers, columns, strict=True)):
        if j < problem.p_jmax:
            _bound_size(model, trainer, own)
            _restrict_classes(model, problem, j, own, node_classes)
        else:
            model.equal("p_jmax", _size(own), 0.0)
        _make_units(model, problem, trainer, own)
        _forbid_migration(model, own)
        _interpolate_curve(model, own)
        _tell_rescale(model, own)
        # Objective
        _add_objective(model, problem, trainer, own)
    return NodeModel(
        problem=problem, model=model, trainers=tuple(columns), node_classes=tuple(node_classes)
    )


# --- Variables ----------------------------------------------------------------------


def _add_variables(
    model: LinearModel, problem: Problem, trainer: ProblemTrainer, node_classes: Sequence[str]
) -> TrainerColumns:
    n_nodes = len(problem.nodes)
    names = frozenset(trainer.current)
    present = frozenset(n for n, node in enumerate(problem.nodes) if node.name in names)
    points = objective_points(trainer, problem.objective, n_nodes)
    classes = [] if trainer.mixes_classes else sorted(set(node_classes))
    gpus: dict[tuple[str, str], list[int]] = {}
    host_widths: dict[tuple[str, str], int] = {}
    for n, node in enumerate(problem.nodes):
        if node.host and not node.has_pilot:
            gpus.setdefault((node.host, node.eligibility), []).append(n)
            host_widths[node.host, node.eligibility] = node.host_width
    return TrainerColumns(
        x=tuple(model.binary("x") for _ in range(n_nodes)),
        u=tuple(model.binary("u") for _ in range(n_nodes)),
        y_lower=model.binary("y"),
        y_upper=model.binary("y"),
        z=model.binary("z"),
        weights=tuple(model.column("w", 0.0, 1.0) for _ in points),
        grows=model.binary("zu"),
        shrinks=model.binary("zd"),
        classes={name: model.binary("class") for name in classes},
        points=points,
        held=rate(trainer, len(present), problem.objective),
        present=present,
        units={key: model.column("units", 0.0, float(n_nodes), is_integer=True) for key in gpus},
        gpus={key: tuple(own) for key, own in gpus.items()},
        per_unit={key: trainer.width or host_width for key, host_width in host_widths.items()},
    )


def _alone(own: TrainerColumns) -> list[int]:
    """Return the nodes that are a unit each: all but free GPUs of hosts."""
    combined = {n for members in own.gpus.values() for n in members}
    return [n for n in range(len(own.x)) if n not in combined]


def _size(own: TrainerColumns) -> Terms:
    """Eq. 2: N_j is the sum of x_jn over the nodes; free GPUs of a host count by the unit."""
    units: Terms = [(column, 1.0) for column in own.units.values()]
    return [(own.x[n], 1.0) for n in _alone(own)] + units


# --- Constraints --------------------------------------------------------------------


def _bound_size(model: LinearModel, trainer: ProblemTrainer, own: TrainerColumns) -> None:
    """Eq. 3 as eq. 4: size 0, or n_min..n_max."""
    size, n_nodes = _size(own), len(own.x)
    n_min = min(trainer.n_min, n_nodes + 1)  # more cannot be had in any case
    big = float(n_nodes + 1)
    model.row("eq. 4", [*size, (own.y_lower, big)], at_least=n_min)
    model.row("eq. 4", [*size, (own.y_lower, big)], at_most=big)
    model.row("eq. 4", [*size, (own.y_upper, -big)], at_most=trainer.n_max)
    model.row("eq. 4", [*size, (own.y_upper, big)], at_most=big)


def _one_trainer_per_node(model: LinearModel, columns: Sequence[TrainerColumns]) -> None:
    """Eq. 5."""
    for claims in zip(*(own.x for own in columns), strict=True):
        model.row("eq. 5", [(column, 1.0) for column in claims], at_most=1.0)


def _make_units(
    model: LinearModel, problem: Problem, trainer: ProblemTrainer, own: TrainerColumns
) -> None:
    """Beyond the paper: parts of its width only, and free GPUs of a host by the unit."""
    for key, members in own.gpus.items():
        terms: Terms = [(own.x[n], 1.0) for n in members]
        model.equal("units", [*terms, (own.units[key], -float(own.per_unit[key]))], 0.0)
    for n in _alone(own):
        node = problem.nodes[n]
        width = node.width if node.host else 0
        is_whole = not node.host or node.width == node.host_width
        if not (is_whole if trainer.width == 0 else width == trainer.width):
            model.row("width", [(own.x[n], 1.0)], at_most=0.0)


def _forbid_migration(model: LinearModel, own: TrainerColumns) -> None:
    """Eq. 6 as eq. 9 and 10: as many nodes change hands as the size changes by."""
    for n, (x, u) in enumerate(zip(own.x, own.u, strict=True)):
        c = float(n in own.present)
        model.row("eq. 9", [(u, 1.0), (x, -1.0)], at_most=c)
        model.row("eq. 9", [(u, 1.0), (x, -1.0)], at_least=-c)
        model.row("eq. 9", [(u, 1.0), (x, 1.0)], at_least=c)
        model.row("eq. 9", [(u, 1.0), (x, 1.0)], at_most=2.0 - c)
    n_present, big, alone = float(len(own.present)), float(2 * len(own.x) + 1), _alone(own)
    size: Terms = [(own.x[n], 1.0) for n in alone]
    changes: Terms = [(own.u[n], 1.0) for n in alone]
    # Units of free GPUs, which are nobody's yet, are of the size and of the change likewise.
    twice: Terms = [(column, 2.0) for column in own.units.values()]
    model.row("eq. 10", [*size, *negative(changes), (own.z, big)], at_least=n_present)
    model.row("eq. 10", [*size, *changes, *twice, (own.z, big)], at_most=n_present + big)


def _interpolate_curve(model: LinearModel, own: TrainerColumns) -> None:
    """Eq. 11: the weights are an SOS2 set whose mean breakpoint is the size."""
    model.equal("eq. 11", [(w, 1.0) for w in own.weights], 1.0)
    mean: Terms = [(w, float(n)) for w, (n, _) in zip(own.weights, own.points, strict=True)]
    model.equal("eq. 11", [*mean, *negative(_size(own))], 0.0)
    if len(own.weights) > 2:
        model.sos2.append(own.weights)


def _tell_rescale(model: LinearModel, own: TrainerColumns) -> None:
    """Eq. 13 as eq. 15: whether the trainer grows or shrinks."""
    size, n_present, big = _size(own), float(len(own.present)), float(len(own.x) + 1)
    model.row("eq. 15", [*size, (own.grows, n_present - big)], at_most=n_present)
    model.row("eq. 15", [*size, (own.grows, -(n_present + 1.0))], at_least=0.0)
    model.row("eq. 15", [*size, (own.shrinks, big - (n_present - 1.0))], at_most=big)
    model.row("eq. 15", [*size, (own.shrinks, n_present)], at_least=n_present)


def _keep_caps(model: LinearModel, problem: Problem, columns: Sequence[TrainerColumns]) -> None:
    """Beyond the paper: nodes that trainers have together."""
    sizes = {t.trainer_id: _size(own) for t, own in zip(problem.trainers, columns, strict=True)}
    for cap in problem.caps:
        own = [term for name in sorted(set(cap.trainers)) for term in sizes.get(name, [])]
        model.row("cap", own, at_most=float(cap.most))


def _restrict_classes(
    model: LinearModel, problem: Problem, j: int, own: TrainerColumns, node_classes: Sequence[str]
) -> None:
    """Beyond the paper: accepted nodes only, of one class unless the trainer mixes them."""
    accepted = problem.trainers[j].eligible
    for x, node in zip(own.x, problem.nodes, strict=True):
        if accepted and node.eligibility not in accepted:
            model.row("eligibility", [(x, 1.0)], at_most=0.0)
    if len(own.classes) > 1:
        model.row("one class", [(c, 1.0) for c in own.classes.values()], at_most=1.0)
        for x, name in zip(own.x, node_classes, strict=True):
            model.row("one class", [(x, 1.0), (own.classes[name], -1.0)], at_most=0.0)


# --- Objective ----------------------------------------------------------------------


def _add_objective(
    model: LinearModel, problem: Problem, trainer: ProblemTrainer, own: TrainerColumns
) -> None:
    """Eq. 16 with O_j by eq. 12 and R_j by eq. 14."""
    for weight, (_, value) in zip(own.weights, own.points, strict=True):
        model.costs[weight] = problem.t_fwd_s * value
    model.costs[own.grows] = -own.held * trainer.rescale_up_s
    model.costs[own.shrinks] = -own.held * trainer.rescale_down_s


# --- Read back, and the way in ------------------------------------------------------


def read_map(node_model: NodeModel, values: Sequence[float]) -> dict[str, str]:
    """The map node -> trainer_id in a solver's values."""
    problem = node_model.problem
    return {
        problem.nodes[n].name: trainer.trainer_id
        for trainer, own in zip(problem.trainers, node_model.trainers, strict=True)
        for n, column in enumerate(own.x)
        if values[column] > 0.5
    }


def values_of_map(node_model: NodeModel, assignment: Mapping[str, str]) -> list[float]:
    """Values of all variables for a map: where a solver may start, and a way to check.

    A map that keeps every rule breaks no row, and its worth is its objective.
    """
    problem = node_model.problem
    values = [0.0] * len(node_model.model.costs)
    for trainer, own in zip(problem.trainers, node_model.trainers, strict=True):
        has = {
            n
            for n, node in enumerate(problem.nodes)
            if assignment.get(node.name) == trainer.trainer_id
        }
        for n in has:
            values[own.x[n]] = 1.0
        for n in has ^ own.present:
            values[own.u[n]] = 1.0
        for key, members in own.gpus.items():
            values[own.units[key]] = float(len(has.intersection(members)) // own.per_unit[key])
        for name in {node_model.node_classes[n] for n in has} & set(own.classes):
            values[own.classes[name]] = 1.0
        values[own.y_lower] = values[own.y_upper] = float(not has)
        size = round(sum([values[column] for column, _ in _size(own)]))
        values[own.z] = float(size < len(own.present))
        values[own.grows] = float(size > len(own.present))
        values[own.shrinks] = float(size < len(own.present))
        for weight, share in zip(own.weights, _shares(own.points, size), strict=True):
            values[weight] = share
    return values


def _shares(points: Sequence[Point], size: int) -> list[float]:
    """Weights of the two neighbouring breakpoints that a size lies between."""
    shares = [0.0] * len(points)
    for i, (n, _) in enumerate(points):
        if n >= size:
            before = points[i - 1][0] if i else n
            part = (n - size) / (n - before) if i else 0.0
            shares[i] = 1.0 - part
            if i:
                shares[i - 1] = part
            return shares
    raise ValueError(f"size {size} lies beyond the last breakpoint")
