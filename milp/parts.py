"""Splits a problem into parts whose trainers have no class of nodes in common.

Takes a validated Problem, returns the smaller ones that can be solved one by one, and puts
their answers together. Called by ``solve``: what is hard about several classes grows with
their number, and trainers bound to one type of nodes share none with others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from milp.answer import NO_MARGINAL, values_of_stopped
from milp.problem import Allocation, Problem


def split(problem: Problem) -> list[Problem]:
    """Return independent problems of the trainers that may run, in FCFS order; or only it."""
    classes = dict.fromkeys(node.eligibility for node in problem.nodes)
    if len(classes) < 2:
        return [problem]
    class_of = {node.name: node.eligibility for node in problem.nodes}
    groups: list[tuple[set[str], set[str]]] = []  # classes, trainers
    for trainer in problem.trainers[: problem.p_jmax]:
        # What it holds counts for C_j, accepted or not.
        own = {class_of[name] for name in trainer.current if name in class_of}
        own |= classes.keys() & trainer.eligible if trainer.eligible else classes.keys()
        names = {trainer.trainer_id}
        apart = []
        for group in groups:
            if own.isdisjoint(group[0]):
                apart.append(group)
            else:
                own |= group[0]
                names |= group[1]
        groups = [*apart, (own, names)]
    if len(groups) < 2:
        return [problem]
    return [_part(problem, own, names) for own, names in groups]


def _part(problem: Problem, classes: set[str], trainers: set[str]) -> Problem:
    return replace(
        problem,
        nodes=tuple([node for node in problem.nodes if node.eligibility in classes]),
        trainers=tuple([t for t in problem.trainers if t.trainer_id in trainers]),
        p_jmax=len(trainers),
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
