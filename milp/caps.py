"""Caps that several trainers have together, and trainers that must run.

Called by ``milp.solve`` when the optimum without them breaks one; where it breaks none it is the
optimum with them, too. In one class of nodes, with caps that are nested (those of users within
those of accounts), ``milp.exact.group_caps`` solves it; otherwise HiGHS does (``milp.classes``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from milp.answer import answer_of_one, answer_of_several
from milp.classes import solve_classes
from milp.exact.group_caps import Infeasible, Members, is_nested, solve_nested
from milp.options import build_options
from milp.pool import PoolView, view_pool
from milp.problem import Allocation, Problem, ProblemError


def is_kept(problem: Problem, sizes: Mapping[str, int]) -> bool:
    """Return whether these sizes keep the caps and all trainers that must run do."""
    return all(
        sum([sizes.get(name, 0) for name in cap.trainers]) <= cap.most for cap in problem.caps
    ) and all(t.trainer_id in sizes for t in problem.trainers[: problem.p_jmax] if t.must_run)


def solve_capped(problem: Problem) -> Allocation:
    """Return the optimum under the caps; ``gap`` says what a better one could gain.

    Raises:
        ProblemError: BFT-1542, not all that must run can have their n_min nodes.
    """
    pool = view_pool(problem)
    options = build_options(problem, pool)
    caps = binding(problem, pool)
    must_run = np.array([trainer.must_run for trainer in pool.trainers], dtype=np.bool_)
    try:
        if len(pool.names) == 1 and is_nested(caps):
            one = solve_nested(
                options.allowed[0],
                options.current,
                must_run,
                caps,
                options.counts[0],
                options.tolerance,
            )
            return answer_of_one(problem, pool, options, one)
        several = solve_classes(options, pool, caps, must_run.tolist())
    except Infeasible:
        raise ProblemError(
            "BFT-1542",
            "The trainers that must run (must_run) cannot all have their n_min nodes at once.",
            "Let fewer of them have to run, or raise their cap.",
        ) from None
    return answer_of_several(problem, pool, options, several)


def binding(problem: Problem, pool: PoolView) -> list[tuple[Members, int]]:
    """Return the caps that sizes could break, by trainers that may run."""
    index = {trainer.trainer_id: j for j, trainer in enumerate(pool.trainers)}
    n_nodes = len(problem.nodes)
    found: dict[Members, int] = {}
    for cap in problem.caps:
        members = tuple(sorted({index[name] for name in cap.trainers if name in index}))
        if cap.most < min(n_nodes, sum([pool.trainers[j].n_max for j in members])):
            found[members] = min(cap.most, found.get(members, cap.most))
    return list(found.items())


def with_full_caps(problem: Problem, allocation: Allocation) -> Allocation:
    """Say that a trainer under a full cap cannot have one node more."""
    sizes, full = allocation.sizes(), set[str]()
    for cap in problem.caps:
        if sum([sizes.get(name, 0) for name in cap.trainers]) >= cap.most:
            full.update(cap.trainers)
    if not full:
        return allocation
    marginals = {
        name: replace(one, gain_of_one_more=None) if name in full else one
        for name, one in allocation.marginals.items()
    }
    return replace(allocation, marginals=marginals)
