"""The exact allocation: sizes first, then nodes.

Takes a Problem, returns the Allocation that maximises eq. 16 of the paper under its
constraints: the first p_jmax trainers in FCFS order may run, sizes are 0 or within
bounds, a node has one trainer, no trainer migrates, a trainer's nodes are of one class.
Ties: fewest rescales, then earlier trainers get more. Called by the milp policy.

A problem whose trainers have no class of nodes in common is solved in parts: what is hard about
several classes grows with their number. Caps that several trainers have together, and trainers
that must run, are left out at first; where the optimum without them breaks none it is the optimum
with them, too. In one class of nodes, with caps that are nested (those of users within those of
accounts), ``milp.exact.group_caps`` solves it; otherwise HiGHS does (``milp.classes``). Without
caps trainers of several widths, each of which divides the next, do not need it (``exact.kinds``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from milp.answer import (
    NO_MARGINAL,
    SizesAnswer,
    answer_of_one,
    answer_of_parts,
    answer_of_several,
    sizes_of_one,
    sizes_of_several,
    values_of_stopped,
)
from milp.check import validate
from milp.classes import relaxed_sizes, solve_classes
from milp.exact.dual import PoolAnswer, solve_pool
from milp.exact.group_caps import Infeasible, Members, is_nested, solve_nested
from milp.options import Options, build_options
from milp.pool import PoolView, independent, view_pool
from milp.problem import (
    Allocation,
    Cap,
    Problem,
    ProblemError,
    classes_by_name,
    ids_of,
    lends_gpus,
    names_within,
)
from milp.supply import chain_of

BROKEN = 1.1  # of a cap: a relaxed optimum above that is taken for one that no whole sizes mend


def solve(problem: Problem) -> Allocation:
    """Return the exact optimum; the same problem always has the same answer.

    Raises:
        ProblemError: the problem is malformed; BFT-1542, not all that must run can.
    """
    validate(problem)
    answer: Allocation | None = None
    if not _breaks_caps(problem):
        answer = _solve_freely(problem)
        if not _is_free(problem) and not is_kept(problem, answer.unit_sizes(problem)):
            answer = None
    if answer is None:
        answer = solve_capped(problem)
    if problem.caps:
        answer = with_full_caps(problem, answer)
    return answer


def _is_free(problem: Problem) -> bool:
    """Return whether there are no caps, and no trainer has to run."""
    return not problem.caps and not any(trainer.must_run for trainer in problem.trainers)


def _breaks_caps(problem: Problem) -> bool:
    """Return whether the optimum without caps would hardly keep them; False where that is cheap.

    Several classes take HiGHS as a rule, and their relaxation tells.
    """
    if not problem.caps:
        return False
    pool = view_pool(problem)
    if len(pool.names) == 1 or chain_of(pool) is not None:
        return False
    sizes = relaxed_sizes(build_options(problem, pool), pool)
    for members, limit in binding(problem, pool):
        total = math.fsum([sizes[j] for j in members])
        if total > limit * BROKEN:
            return True
    return False


def _solve_freely(problem: Problem) -> Allocation:
    """Return the optimum without caps, as if no trainer had to run."""
    if lends_gpus(problem):
        return _solve_units(problem)
    parts = split(problem)
    if len(parts) == 1:
        return _solve_part(problem)
    return join(problem, list(map(_solve_part, parts)))


def _solve_part(problem: Problem) -> Allocation:
    pool = view_pool(problem)
    options = build_options(problem, pool)
    if len(pool.names) > 1:  # which class a trainer has is part of the question
        return answer_of_several(problem, pool, options, solve_classes(options, pool))
    return answer_of_one(problem, pool, options, solve_sizes(options))


def _solve_units(problem: Problem) -> Allocation:
    """Return the same where GPUs are lent; placed at once, as kinds may share hosts."""
    pool = view_pool(problem)
    split_of = [[0] * len(pool.names) for _ in pool.trainers]
    answers: list[SizesAnswer] = []
    for members, kinds, part in independent(pool):
        options = build_options(problem, part)
        if len(part.names) > 1:
            several = solve_classes(options, part)
            answer = sizes_of_several(options, part, several)
        else:
            answer = sizes_of_one(options, part, solve_sizes(options))
        for j, sizes in zip(members, answer.split, strict=True):
            for k, size in zip(kinds, sizes, strict=True):
                split_of[j][k] = size
        answers.append(answer)
    return answer_of_parts(problem, pool, split_of, answers)


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


class ProblemPart(NamedTuple):
    """Trainers that share classes of nodes with each other alone."""

    classes: set[str]
    trainers: set[str]


def split(problem: Problem) -> list[Problem]:
    """Return independent problems of the trainers that may run, in FCFS order; or only it."""
    classes = dict.fromkeys(node.eligibility for node in problem.nodes)
    if len(classes) < 2:
        return [problem]
    class_of = classes_by_name(problem.nodes)
    parts: list[ProblemPart] = []
    for trainer in problem.trainers[: problem.p_jmax]:
        part = ProblemPart(set(trainer.eligible or classes), {trainer.trainer_id})
        part.classes.intersection_update(classes)
        # What it holds counts for C_j, accepted or not.
        for name in names_within(trainer.current, class_of):
            part.classes.add(class_of[name])
        separate_parts = []
        for other_part in parts:
            if part.classes.isdisjoint(other_part.classes):
                separate_parts.append(other_part)
            else:
                part.classes.update(other_part.classes)
                part.trainers.update(other_part.trainers)
        parts = [*separate_parts, part]
    if len(parts) < 2:
        return [problem]
    return [_problem_of(part, problem) for part in parts]


def _problem_of(part: ProblemPart, problem: Problem) -> Problem:
    return replace(
        problem,
        nodes=tuple([node for node in problem.nodes if node.eligibility in part.classes]),
        trainers=tuple([t for t in problem.trainers if t.trainer_id in part.trainers]),
        p_jmax=len(part.trainers),
    )


def join(problem: Problem, answers: Sequence[Allocation]) -> Allocation:
    """Return the answers to all parts as one; the price is that of the dearest node."""
    marginals = dict.fromkeys(ids_of(problem.trainers[problem.p_jmax :]), NO_MARGINAL)
    assignment: dict[str, str] = {}
    values: list[float] = []
    gaps: list[float] = []
    solvers: set[str] = set()
    node_price = 0.0
    for answer in answers:
        marginals |= answer.marginals
        assignment |= answer.assignment
        values.append(answer.objective)
        gaps.append(answer.gap)
        solvers.add(answer.solver)
        node_price = max(node_price, answer.node_price)
    gap = math.fsum(gaps)
    solver = "bounded" if gap > 0 else "exact"
    if len(solvers) == 1:
        (solver,) = solvers
    return Allocation(
        assignment=assignment,
        objective=math.fsum(values + values_of_stopped(problem)),
        node_price=node_price,
        marginals=marginals,
        solver=solver,
        gap=gap,
    )


def is_kept(problem: Problem, sizes: Mapping[str, int]) -> bool:
    """Return whether these sizes keep the caps and all trainers that must run do."""
    for cap in problem.caps:
        if _size_under(cap, sizes) > cap.most:
            return False
    may_run = problem.trainers[: problem.p_jmax]
    return all(trainer.trainer_id in sizes for trainer in may_run if trainer.must_run)


def _size_under(cap: Cap, sizes: Mapping[str, int]) -> int:
    """Return how many nodes the trainers under a cap have together."""
    return sum([sizes.get(name, 0) for name in cap.trainers])


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
            answer = solve_nested(
                options.allowed[0],
                options.current,
                must_run,
                caps,
                options.counts[0],
                options.tolerance,
            )
            return answer_of_one(problem, pool, options, answer)
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
    index = pool.index()
    n_nodes = len(problem.nodes)
    limits: dict[Members, int] = {}
    for cap in problem.caps:
        members = tuple(sorted({index[name] for name in cap.trainers if name in index}))
        if cap.most < min(n_nodes, sum([pool.trainers[j].n_max for j in members])):
            limits[members] = min(cap.most, limits.get(members, cap.most))
    return list(limits.items())


def with_full_caps(problem: Problem, allocation: Allocation) -> Allocation:
    """Say that a trainer under a full cap cannot have one node more."""
    sizes, full_trainers = allocation.unit_sizes(problem), set[str]()
    for cap in problem.caps:
        if _size_under(cap, sizes) >= cap.most:
            full_trainers.update(cap.trainers)
    if not full_trainers:
        return allocation
    marginals = dict(allocation.marginals)
    for trainer_id in full_trainers.intersection(marginals):
        marginals[trainer_id] = replace(marginals[trainer_id], gain_of_one_more=None)
    return replace(allocation, marginals=marginals)
