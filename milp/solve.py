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
from milp.problem import Allocation, Problem, ProblemError, lends_gpus
from milp.supply import chain_of

BROKEN = 1.1  # of a cap: a relaxed optimum above that is taken for one that no whole sizes mend


def solve(problem: Problem) -> Allocation:
    """Return the exact optimum; the same problem always has the same answer.

    Raises:
        ProblemError: the problem is malformed; BFT-1542, not all that must run can.
    """
    validate(problem)
    answer = None if _breaks_caps(problem) else _solve_freely(problem)
    if answer is None or not (_is_free(problem) or is_kept(problem, answer.unit_sizes(problem))):
        answer = solve_capped(problem)
    return with_full_caps(problem, answer) if problem.caps else answer


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
    return any(
        math.fsum([sizes[j] for j in members]) > most * BROKEN
        for members, most in binding(problem, pool)
    )


def _solve_freely(problem: Problem) -> Allocation:
    """Return the optimum without caps, as if no trainer had to run."""
    if lends_gpus(problem):
        return _solve_units(problem)
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
    class_of = {node.name: node.eligibility for node in problem.nodes}
    parts: list[ProblemPart] = []
    for trainer in problem.trainers[: problem.p_jmax]:
        # What it holds counts for C_j, accepted or not.
        held_classes = {class_of[name] for name in trainer.current if name in class_of}
        usable_classes = set(trainer.eligible or classes).intersection(classes)
        part = ProblemPart(held_classes | usable_classes, {trainer.trainer_id})
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
    stopped = problem.trainers[problem.p_jmax :]
    marginals = dict.fromkeys((trainer.trainer_id for trainer in stopped), NO_MARGINAL)
    assignment: dict[str, str] = {}
    for answer in answers:
        marginals |= answer.marginals
        assignment |= answer.assignment
    gap = math.fsum(answer.gap for answer in answers)
    kinds = {answer.solver for answer in answers}
    return Allocation(
        assignment=assignment,
        objective=math.fsum(
            [*(answer.objective for answer in answers), *values_of_stopped(problem)]
        ),
        node_price=max(answer.node_price for answer in answers),
        marginals=marginals,
        solver=next(iter(kinds)) if len(kinds) == 1 else "bounded" if gap > 0 else "exact",
        gap=gap,
    )


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
    sizes, full = allocation.unit_sizes(problem), set[str]()
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
