"""The exact allocation: sizes first, then nodes.

Takes a Problem, returns the Allocation that maximises eq. 16 of the paper under its
constraints: the first p_jmax trainers in FCFS order may run, sizes are 0 or within
bounds, a node has one trainer, no trainer migrates, a trainer's nodes are of one class.
Ties: fewest rescales, then earlier trainers get more. Called by the milp policy.
"""

from __future__ import annotations

from milp.answer import answer_of_one, answer_of_several
from milp.caps import is_kept, solve_capped, with_full_caps
from milp.classes import solve_classes
from milp.exact.dual import PoolAnswer, solve_pool
from milp.options import Options, build_options
from milp.parts import join, split
from milp.pool import view_pool
from milp.problem import Allocation, Problem, ProblemError
from milp.validate import validate


def solve(problem: Problem) -> Allocation:
    """Return the exact optimum; the same problem always has the same answer.

    Raises:
        ProblemError: the problem is malformed; BFT-1542, not all that must run can.
    """
    validate(problem)
    answer = _solve_freely(problem)
    if not is_kept(problem, answer.sizes()):
        answer = solve_capped(problem)
    return with_full_caps(problem, answer) if problem.caps else answer


def _solve_freely(problem: Problem) -> Allocation:
    """Return the optimum without caps, as if no trainer had to run."""
    parts = split(problem)
    if len(parts) == 1:
        return _solve_part(problem)
    return join(problem, [_solve_part(part) for part in parts])


def _solve_part(problem: Problem) -> Allocation:
    pool = view_pool(problem)
    options = build_options(problem, pool)
    if len(pool.names) > 1:  # which class a trainer has is part of the question
        return answer_of_several(problem, pool, options, solve_classes(options, pool))
    return answer_of_one(problem, pool, options, solve_sizes(options))


def solve_sizes(options: Options, *, is_dense: bool = False) -> PoolAnswer:
    """Return the best sizes of one class of nodes; ``is_dense``: as ``solve_pool`` has it."""
    return solve_pool(
        options.allowed[0],
        options.current,
        options.counts[0],
        options.tolerance,
        options.price(),
        is_dense=is_dense,
    )


def solve_dense(problem: Problem) -> Allocation:
    """Return the same answer from the dense dynamic program alone, for comparison.

    Raises:
        ProblemError: as ``solve``; also when there is more than one class.
    """
    validate(problem)
    pool = view_pool(problem)
    if len(pool.names) > 1:
        raise ProblemError(
            "BFT-3021",
            f"The dense program covers one class of nodes, not {len(pool.names)}.",
            "Use the exact solver.",
        )
    options = build_options(problem, pool)
    return answer_of_one(
        problem, pool, options, solve_sizes(options, is_dense=True), solver="dense"
    )
