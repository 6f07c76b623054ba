"""The extended objective as a MILP on HiGHS, by grade: the yardstick of the graded solver.

Shares no code with it: rates and seconds are those of ``milp.worth``, the rules are
written here once more. A binary per trainer and size, a column per trainer, size and
grade (equal class, end and holder) for the nodes of that grade.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import highspy
import numpy as np

from milp.problem import Problem, ProblemNode
from milp.worth import earning_s, rate, trainer_terms

Terms = list[tuple[int, float]]


class _Model:
    """Columns and rows, handed to HiGHS as they come."""

    def __init__(self) -> None:
        self.highs = highspy.Highs()
        for option, value in (
            ("output_flag", False),
            ("threads", 1),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 0.0),
            ("mip_feasibility_tolerance", 1e-9),
            # With it HiGHS 1.15 calls one in 6,000 of these models infeasible; none is.
            ("presolve", "off"),
        ):
            self.highs.setOptionValue(option, value)
        self.n_columns = 0

    def column(self, cost: float, upper: float, *, is_integer: bool) -> int:
        self.highs.addCol(cost, 0.0, upper, 0, np.array([], dtype=np.int32), np.array([]))
        if is_integer:
            self.highs.changeColIntegrality(self.n_columns, highspy.HighsVarType.kInteger)
        self.n_columns += 1
        return self.n_columns - 1

    def row(self, terms: Terms, low: float, high: float) -> None:
        columns = np.array([column for column, _ in terms], dtype=np.int32)
        factors = np.array([factor for _, factor in terms], dtype=np.float64)
        self.highs.addRow(low, high, len(terms), columns, factors)

    def maximum(self) -> float:
        if not self.n_columns:
            return 0.0
        self.highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self.highs.run()
        status = self.highs.getModelStatus()
        assert status == highspy.HighsModelStatus.kOptimal, status
        return float(self.highs.getInfo().objective_function_value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grade:
    """Nodes that are alike."""

    like: ProblemNode  # any of them
    count: float
    holder: str | None
    accepted_by: frozenset[str]  # trainers that may run


def solve_graded_model(problem: Problem) -> float:
    """The optimum of the extended objective (small problems only)."""
    holder = {name: t.trainer_id for t in problem.trainers for name in t.current}
    grades = _grades(problem, holder)
    model = _Model()
    used: list[Terms] = [[] for _ in grades]
    for rank, trainer in enumerate(problem.trainers):
        before = sum(holder.get(node.name) == trainer.trainer_id for node in problem.nodes)
        of_class = {
            k: model.column(0.0, 1.0, is_integer=True)
            for k in dict.fromkeys(g.like.eligibility for g in grades)
        }
        if not trainer.mixes_classes:
            model.row([(use, 1.0) for use in of_class.values()], 0.0, 1.0)
        largest = min(trainer.n_max, len(problem.nodes)) if rank < problem.p_jmax else 0
        chosen: Terms = []
        for size in (0, *range(trainer.n_min, largest + 1)):
            costs = trainer_terms(problem, trainer, before=before, size=size, earned_s=0.0)
            y = model.column(sum(costs), 1.0, is_integer=True)
            chosen.append((y, 1.0))
            shares: Terms = [(y, -float(size))]
            kept: Terms = [(y, -float(before))]
            for grade, terms in zip(grades, used, strict=True):
                if not size or trainer.trainer_id not in grade.accepted_by:
                    continue
                is_own = grade.holder == trainer.trainer_id
                if not is_own and size <= before:  # eq. 6: it gets nothing new
                    continue
                seconds = earning_s(problem, trainer, grade.like, grade.holder)
                earned = rate(trainer, size, problem.objective) / size * seconds
                p = model.column(earned, grade.count, is_integer=False)
                shares.append((p, 1.0))
                terms.append((p, 1.0))
                kept += [(p, 1.0)] if is_own else []
                model.row([(p, 1.0), (y, -grade.count)], -highspy.kHighsInf, 0.0)
                model.row(
                    [(p, 1.0), (of_class[grade.like.eligibility], -grade.count)],
                    -highspy.kHighsInf,
                    0.0,
                )
            if size >= before and size:  # eq. 6: it keeps all it has
                model.row(kept, 0.0, 0.0)
            model.row(shares, 0.0, 0.0)
        model.row(chosen, 1.0, 1.0)
    for grade, terms in zip(grades, used, strict=True):
        model.row(terms, 0.0, grade.count)
    return model.maximum()


def _grades(problem: Problem, holder: Mapping[str, str]) -> list[_Grade]:
    """Nodes of equal class, end and holder."""
    may_run = problem.trainers[: problem.p_jmax]
    groups: defaultdict[tuple[object, ...], list[ProblemNode]] = defaultdict(list)
    for node in problem.nodes:
        key = (node.eligibility, node.expected_remaining_s, holder.get(node.name))
        groups[key].append(node)
    return [
        _Grade(
            like=nodes[0],
            count=float(len(nodes)),
            holder=holder.get(nodes[0].name),
            accepted_by=frozenset(
                t.trainer_id
                for t in may_run
                if not t.eligible or nodes[0].eligibility in t.eligible
            ),
        )
        for nodes in groups.values()
    ]
