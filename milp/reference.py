"""The paper's node-level MILP (eq. 1-16) on HiGHS: slow, faithful, for comparison.

Takes a Problem, returns the optimum and one optimal map. Used by tests and benchmarks
only (it is not imported by the package): ties are broken as the solver likes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import highspy
import numpy as np

from milp.check import objective_value
from milp.errors import ProblemError
from milp.problem import Objective, Problem, ProblemTrainer
from milp.validate import validate


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceAnswer:
    """What HiGHS found."""

    objective: float  # eq. 16, recomputed from the map
    claimed: float  # the value HiGHS states
    assignment: dict[str, str]


@dataclass(slots=True)
class _Model:
    """A MILP under construction, rows and columns in the order they are added."""

    costs: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    is_integer: list[bool] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)

    def binary(self) -> int:
        """Add a 0/1 column, return its index."""
        return self.column(0.0, 1.0, is_integer=True)

    def column(self, lower: float, upper: float, *, is_integer: bool = False) -> int:
        """Add a column, return its index."""
        self.costs.append(0.0)
        self.lower.append(lower)
        self.upper.append(upper)
        self.is_integer.append(is_integer)
        return len(self.costs) - 1

    def row(
        self,
        terms: Sequence[tuple[int, float]],
        *,
        at_least: float = -math.inf,
        at_most: float = math.inf,
    ) -> None:
        """Add ``at_least <= sum of factor * column <= at_most``."""
        self.columns += [column for column, _ in terms]
        self.factors += [factor for _, factor in terms]
        self.starts.append(len(self.columns))
        self.row_lower.append(at_least)
        self.row_upper.append(at_most)

    def equal(self, terms: Sequence[tuple[int, float]], value: float) -> None:
        """Add ``sum of factor * column = value``."""
        self.row(terms, at_least=value, at_most=value)


def solve_reference(problem: Problem) -> ReferenceAnswer:
    """Solve the node-level model to proven optimality (small problems only)."""
    validate(problem)
    # Data
    trainers = problem.trainers
    pool = {node.name: n for n, node in enumerate(problem.nodes)}
    model = _Model()
    # Variables: x[j][n] = 1 when trainer j has node n
    x = [[model.binary() for _ in problem.nodes] for _ in trainers]
    # Constraints
    for column in zip(*x, strict=True):  # eq. 5: a node has at most one trainer
        model.row([(variable, 1.0) for variable in column], at_most=1.0)
    for j, trainer in enumerate(trainers):
        may_run = j < problem.p_jmax
        present = {pool[name] for name in trainer.current if name in pool}
        size = [(variable, 1.0) for variable in x[j]]
        _bound_size(model, trainer, size, n_nodes=len(pool), may_run=may_run)
        _forbid_migration(model, x[j], size, present)
        # Objective, with the rows that define its variables
        _earn(model, trainer, size, problem, n_nodes=len(pool))
        _pay_for_rescale(model, trainer, size, problem, n_present=len(present))
    _restrict_classes(model, problem, x)
    # Solve
    solution, claimed = _run(model)
    # Read back
    assignment = {
        node.name: trainer.trainer_id
        for j, trainer in enumerate(trainers)
        for n, node in enumerate(problem.nodes)
        if solution[x[j][n]] > 0.5
    }
    sizes = {t.trainer_id: sum(o == t.trainer_id for o in assignment.values()) for t in trainers}
    return ReferenceAnswer(
        objective=objective_value(problem, sizes), claimed=claimed, assignment=assignment
    )


_Terms = list[tuple[int, float]]


def _negative(terms: _Terms) -> _Terms:
    return [(column, -factor) for column, factor in terms]


def _bound_size(
    model: _Model, trainer: ProblemTrainer, size: _Terms, *, n_nodes: int, may_run: bool
) -> None:
    """Eq. 3-4: size 0, or n_min..n_max; and 0 when the trainer must wait (p_jmax)."""
    if not may_run:
        model.equal(size, 0.0)
        return
    big = float(n_nodes + trainer.n_max + 1)
    for bound, sign in ((trainer.n_min, 1.0), (trainer.n_max, -1.0)):
        y = model.binary()  # 1: the bound may be broken, then the size must be 0
        terms = size if sign > 0 else _negative(size)
        model.row([*terms, (y, big)], at_least=sign * bound)
        model.row([*size, (y, big)], at_most=big)


def _forbid_migration(model: _Model, x: list[int], size: _Terms, present: set[int]) -> None:
    """Eq. 6-10: as many nodes change hands as the size changes by."""
    n_present, big = float(len(present)), float(2 * len(x))
    changes: _Terms = []
    for n, variable in enumerate(x):
        u, c = model.binary(), float(n in present)  # u = x xor c
        model.row([(u, 1.0), (variable, -1.0)], at_most=c)
        model.row([(u, 1.0), (variable, -1.0)], at_least=-c)
        model.row([(u, 1.0), (variable, 1.0)], at_least=c)
        model.row([(u, 1.0), (variable, 1.0)], at_most=2.0 - c)
        changes.append((u, 1.0))
    z = model.binary()  # 0: grows or stays, 1: shrinks
    model.row([*size, *_negative(changes), (z, big)], at_least=n_present)
    model.row([*size, *changes, (z, big)], at_most=n_present + big)


def _earn(
    model: _Model, trainer: ProblemTrainer, size: _Terms, problem: Problem, *, n_nodes: int
) -> None:
    """Eq. 11-12 and the first sum of eq. 16: the curve as an SOS2 set.

    The set is written with one binary per segment: two neighbouring weights at most.
    """
    points = [(0.0, 0.0)]
    points += zip(map(float, trainer.curve.sizes), trainer.curve.samples_per_s, strict=True)
    if points[-1][0] < n_nodes:
        points.append((float(n_nodes), points[-1][1]))
    weights = [model.column(0.0, 1.0) for _ in points]
    segments = [model.binary() for _ in points[1:]]
    model.equal([(w, 1.0) for w in weights], 1.0)
    model.equal([(s, 1.0) for s in segments], 1.0)
    model.equal(
        [*((w, at) for w, (at, _) in zip(weights, points, strict=True)), *_negative(size)], 0.0
    )
    for i, weight in enumerate(weights):
        around = [(s, -1.0) for s in segments[max(i - 1, 0) : i + 1]]
        model.row([(weight, 1.0), *around], at_most=0.0)
    scale = problem.t_fwd_s * _scale(trainer, problem.objective)
    for weight, (_, rate) in zip(weights, points, strict=True):
        model.costs[weight] = scale * rate


def _pay_for_rescale(
    model: _Model, trainer: ProblemTrainer, size: _Terms, problem: Problem, *, n_present: int
) -> None:
    """Eq. 13-15 and the second sum of eq. 16."""
    big = float(len(problem.nodes) + 1)
    grows, shrinks = model.binary(), model.binary()
    model.row([*size, (grows, -(big - n_present))], at_most=n_present)
    model.row([*size, (grows, -(n_present + 1.0))], at_least=0.0)
    model.row([*size, (shrinks, big - (n_present - 1.0))], at_most=big)
    model.row([*size, (shrinks, float(n_present))], at_least=n_present)
    xs, ys = (0, *trainer.curve.sizes), (0.0, *trainer.curve.samples_per_s)
    held = float(np.interp(n_present, xs, ys)) * _scale(trainer, problem.objective)
    model.costs[grows] = -held * trainer.rescale_up_s
    model.costs[shrinks] = -held * trainer.rescale_down_s


def _scale(trainer: ProblemTrainer, objective: Objective) -> float:
    if objective is Objective.THROUGHPUT:
        return 1.0
    single = trainer.curve.samples_per_s[0] / trainer.curve.sizes[0]
    return (trainer.weight if objective is Objective.WEIGHTED else 1.0) / single


def _restrict_classes(model: _Model, problem: Problem, x: list[list[int]]) -> None:
    """Beyond the paper: accepted nodes only, of one class per trainer.

    Classes accepted by the same of the trainers that may run are one class.
    """
    runners = problem.trainers[: problem.p_jmax]
    kinds = [
        tuple(not t.eligible or node.eligibility in t.eligible for t in runners)
        for node in problem.nodes
    ]
    for j in range(len(runners)):
        uses = {kind: model.binary() for kind in sorted(set(kinds))}
        model.row([(use, 1.0) for use in uses.values()], at_most=1.0)
        for n, kind in enumerate(kinds):
            model.row([(x[j][n], 1.0), (uses[kind], -1.0 if kind[j] else 0.0)], at_most=0.0)


def _run(model: _Model) -> tuple[list[float], float]:
    """Maximise with gap 0 on one thread; anything but proven optimality is an error."""
    if not model.costs:  # no trainers; HiGHS calls such a model empty, not optimal
        return [], 0.0
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(model.costs), len(model.row_lower)
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = np.array(model.costs)
    lp.col_lower_, lp.col_upper_ = np.array(model.lower), np.array(model.upper)
    lp.row_lower_, lp.row_upper_ = np.array(model.row_lower), np.array(model.row_upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array(model.starts)
    lp.a_matrix_.index_ = np.array(model.columns, dtype=np.int32)
    lp.a_matrix_.value_ = np.array(model.factors)
    lp.integrality_ = [
        highspy.HighsVarType.kInteger if integer else highspy.HighsVarType.kContinuous
        for integer in model.is_integer
    ]
    new_solver: Any = highspy.Highs  # highspy is typed in part only
    highs = new_solver()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 0.0),
        ("mip_feasibility_tolerance", 1e-9),
    ):
        highs.setOptionValue(option, value)
    highs.passModel(lp)
    highs.run()
    status = highs.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        raise ProblemError(
            "BFT-3040",
            f"HiGHS ended with {highs.modelStatusToString(status)}.",
            "Give it a smaller problem; the exact solver needs no limit.",
        )
    return list(highs.getSolution().col_value), float(highs.getInfo().objective_function_value)
