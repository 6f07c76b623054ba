"""Allocations when nodes earn unequally: some end before t_fwd.

Takes a validated Problem, returns the Allocation of the extended objective in
``milp.problem`` with a measured gap; called by ``solve`` when sizes alone do not decide.

Which of the costs leave the size-only form exact (docs/adr/0007-costs.md has the why):
pauses (R_up, R_dw) and warm-up always, for they depend on C_j and the size alone; horizons
only when they come to the same for every node. Such problems have one grade, and the first
bound proves the first answer.
"""

from __future__ import annotations

import numpy as np

from milp.graded.answer import make_graded_allocation
from milp.graded.earning import horizon_s, view_grades
from milp.graded.rows import build_rows
from milp.graded.search import search
from milp.problem import Allocation, Problem

TOLERANCE = 1e-11  # of what the trainers could be worth together: float noise


def is_graded(problem: Problem) -> bool:
    """Whether it can matter which nodes a trainer gets, not only how many."""
    if not problem.trainers[: problem.p_jmax]:
        return False
    return problem.per_node_horizon and any(
        horizon_s(problem, node) < problem.t_fwd_s for node in problem.nodes
    )


def solve_graded(problem: Problem) -> Allocation:
    """The best allocation found and how far the optimum can be (``Allocation.gap``).

    The same problem always has the same answer. ``node_price`` is the dual price of a
    node of the dearest grade; a marginal gain is that of the best idle node, or of one
    like the best in the pool where none is idle.
    """
    grades = view_grades(problem)
    rows = build_rows(grades, problem.objective)
    most = np.abs(rows.constant) + rows.need * rows.profit.max(axis=1, initial=0.0)
    magnitude = float(np.maximum.reduceat(most, rows.starts()).sum())
    found = search(
        rows,
        counts=grades.counts,
        seconds=grades.joined_s.max(axis=0),
        class_of=grades.class_of,
        current=grades.present,
        tolerance=TOLERANCE * magnitude,
    )
    return make_graded_allocation(problem, grades, found)
