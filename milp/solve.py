"""The exact allocation: sizes first, then nodes.

Takes a Problem, returns the Allocation that maximises eq. 16 of the paper under its
constraints: the first p_jmax trainers in FCFS order may run, sizes are 0 or within
bounds, a node has one trainer, nobody migrates, a trainer's nodes are of one class.
Ties: fewest rescales, then earlier trainers get more. Called by the milp policy.
"""

from __future__ import annotations

import numpy as np

from milp.answer import make_allocation
from milp.classes import solve_classes
from milp.dual import solve_pool, solve_pool_dense
from milp.errors import ProblemError
from milp.options import build_options
from milp.pool import view_pool
from milp.problem import Allocation, Problem
from milp.validate import validate


def solve(problem: Problem) -> Allocation:
    """Return the exact optimum; the same problem always has the same answer.

    Raises:
        ProblemError: the problem is malformed or tells more than three classes apart.
    """
    validate(problem)
    pool = view_pool(problem)
    options = build_options(problem, pool)
    solver = "exact"
    if len(pool.names) == 1:
        one = solve_pool(options.allowed[0], options.current, options.counts[0], options.tolerance)
        classes, sizes = np.zeros_like(one.sizes), one.sizes
        price = one.value_of_one_more - one.value
    else:
        several = solve_classes(options)
        classes, sizes = several.classes, several.sizes
        price = several.price
        if several.gap > 0:
            solver = f"bounded: at most {several.gap:.6g} below the optimum"
    return make_allocation(
        problem,
        pool,
        options,
        sizes=sizes.tolist(),
        classes=classes.tolist(),
        node_price=price,
        solver=solver,
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
    one = solve_pool_dense(
        options.allowed[0], options.current, options.counts[0], options.tolerance
    )
    return make_allocation(
        problem,
        pool,
        options,
        sizes=one.sizes.tolist(),
        classes=[0] * len(one.sizes),
        node_price=one.value_of_one_more - one.value,
        solver="dense",
    )
