"""Slow nodes: the worth of an allocation with them, and the best choice of those to leave out.

A trainer trains in step: with a node that reaches the fraction f of the others' throughput
it is worth f O_j(n), whatever the others do. Which nodes it has is no part of the problem, so
the problem is stated several times, each time without some of the slow nodes, and the answer
that is truly worth most is taken:

    sum over j of  f_j O_j(n_j) T  -  f_j' O_j(C_j) R_j        (eq. 16 with fractions)

f_j that of its slowest node then, f_j' now, R_j = R_up where a node joins, also in place of
another one, R_down where nodes only leave. Called by ``bftrainer.decide.slow_nodes``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from milp.problem import Problem, ProblemTrainer
from milp.worth import mean_earning_s, rate

MOST_TRIES = 8  # with some of the slow nodes left out


def worth(problem: Problem, fractions: Mapping[str, float], assignment: Mapping[str, str]) -> float:
    """Return the worth of an assignment when a trainer is as quick as its slowest node.

    Args:
        problem: with all nodes.
        fractions: of slow nodes; others reach 1.
        assignment: node -> trainer.
    """
    nodes = {node.name for node in problem.nodes}
    own_of, worths = dict[str, list[str]](), list[float]()
    for name, trainer_id in assignment.items():
        own_of.setdefault(trainer_id, []).append(name)

    def lowest(names: Iterable[str]) -> float:
        return min([fractions.get(name, 1.0) for name in names])

    for trainer in problem.trainers:
        own = own_of.get(trainer.trainer_id, ())
        before = [name for name in trainer.current if name in nodes]
        if own:
            kept, size = len(set(own).intersection(before)), len(own)
            each_s = mean_earning_s(problem, trainer, kept=kept, size=size)
            worths.append(lowest(own) * rate(trainer, size, problem.objective) * each_s)
        if before and set(own) != set(before):
            pause_s = trainer.rescale_up_s if set(own) - set(before) else trainer.rescale_down_s
            held = rate(trainer, len(before), problem.objective)
            worths.append(-pause_s * lowest(before) * held)
    return math.fsum(worths)


def without_some(problem: Problem, fractions: Mapping[str, float]) -> Iterator[Problem]:
    """Yield the problem as it is, without the slowest node, the slowest two and so on.

    Of nodes that are as slow first those that no trainer has. Of many several at once.
    """
    held = {name for t in problem.trainers for name in t.current}
    slow = [node.name for node in problem.nodes if node.name in fractions]
    slow.sort(key=lambda name: (fractions[name], name in held, name))
    step = max(1, math.ceil(len(slow) / MOST_TRIES))
    yield problem
    for count in range(step, len(slow) + step, step):
        hidden = frozenset(slow[:count])
        nodes = tuple(node for node in problem.nodes if node.name not in hidden)
        yield replace(problem, nodes=nodes, trainers=without(problem.trainers, hidden))


def without(
    trainers: Iterable[ProblemTrainer], gone: AbstractSet[str]
) -> tuple[ProblemTrainer, ...]:
    """Return the trainers as if they did not have those nodes."""

    def left(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name not in gone)

    return tuple(
        t
        if gone.isdisjoint(t.current)
        else replace(t, current=left(t.current), settled=left(t.settled))
        for t in trainers
    )
