"""The worth of an allocation, with slow nodes, too; shares no code with the solver.

Takes a Problem and sizes or a map node -> trainer, returns objective units times
seconds: the formula in ``milp.problem``, term by term. The checker judges stated
objectives by it, tests and reference models measure themselves with it.

A trainer trains in step: with a node that reaches the fraction f of the others' throughput
it is worth f O_j(n), whatever the others do. Which nodes it has is no part of the problem, so
the problem is stated several times, each time without some of the slow nodes, and the answer
that is truly worth most is taken:

    sum over j of  f_j O_j(n_j) (T - w_j) + f_j' O_j(C_j) w_j - f_j' O_j(C_j) R_j

(eq. 16 with fractions), f_j that of its slowest node then, f_j' now. Where a node joins, also in
place of another one, w_j is the warm-up, during which the nodes of now go on, and R_j = R_up;
where nodes only leave, w_j = 0 and R_j = R_down. Called by ``bftrainer.decide.slow_nodes``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from milp.problem import Curve, Objective, Problem, ProblemError, ProblemTrainer, unit_sizes


def objective_value(problem: Problem, sizes: Mapping[str, int]) -> float:
    """Eq. 16 for these sizes in units (missing trainers: 0); those that join warm up."""
    pool = {node.name for node in problem.nodes}
    before = [len(pool.intersection(trainer.current)) for trainer in problem.trainers]
    return math.fsum(terms(problem, sizes, before))


def allocation_value(problem: Problem, assignment: Mapping[str, str]) -> float:
    """The same for a map node -> trainer_id."""
    return objective_value(problem, unit_sizes(problem, assignment))


def terms(problem: Problem, sizes: Mapping[str, int], before: Sequence[int]) -> list[float]:
    """Per trainer what its nodes earn over t_fwd_s and what its rescale costs.

    ``before`` is the number each trainer has of the pool now (C_j), in their order.
    """
    found: list[float] = []
    for trainer, n_before in zip(problem.trainers, before, strict=True):
        size = sizes.get(trainer.trainer_id, 0)
        found += trainer_terms(problem, trainer, before=n_before, size=size)
    return found


def trainer_terms(
    problem: Problem, trainer: ProblemTrainer, *, before: int, size: int
) -> tuple[float, ...]:
    """Return what it earns at its size and before, then, if it rescales, the cost (negative)."""
    warming_s = min(trainer.warm_up_s, problem.t_fwd_s) if size > before else 0.0
    earned = rate(trainer, size, problem.objective) * (problem.t_fwd_s - warming_s)
    if before in (size, 0):  # O_j(0) = 0: starting costs nothing
        return (earned,)
    rescale_s = trainer.rescale_up_s if size > before else trainer.rescale_down_s
    held = rate(trainer, before, problem.objective)
    if not warming_s:
        return (earned, -held * rescale_s)
    # What it has goes on until those that join are warm.
    return (earned, held * warming_s, -held * rescale_s)


def rate(trainer: ProblemTrainer, size: int, objective: Objective) -> float:
    """O_j(size) in the unit of the objective."""
    if objective is Objective.UTILITY:
        if trainer.utility is None:
            raise ProblemError(
                "BFT-3091",
                f"Trainer {trainer.trainer_id}: the objective is utility, but it has none.",
                "Give the trainer a utility curve or choose another objective.",
            )
        return curve_at(trainer.utility, size)
    reached = curve_at(trainer.curve, size)
    if objective is Objective.THROUGHPUT:
        return reached
    relative = reached / curve_at(trainer.curve, 1)
    return relative * trainer.weight if objective is Objective.WEIGHTED else relative


def curve_at(curve: Curve, size: int) -> float:
    """A curve at a size: linear between breakpoints, (0, 0) before, flat after."""
    i = bisect_left(curve.sizes, size)
    if i == len(curve.sizes):
        return curve.samples_per_s[-1]
    right_size, right = curve.sizes[i], curve.samples_per_s[i]
    left_size, left = (curve.sizes[i - 1], curve.samples_per_s[i - 1]) if i else (0, 0.0)
    # A mean of two values >= 0 loses no digits, however steep the curve falls.
    return (left * (right_size - size) + right * (size - left_size)) / (right_size - left_size)


MOST_TRIES = 8  # with some of the slow nodes left out


def worth(problem: Problem, fractions: Mapping[str, float], assignment: Mapping[str, str]) -> float:
    """Return the worth of an assignment when a trainer is as quick as its slowest node.

    Args:
        problem: with all nodes.
        fractions: of slow nodes; others reach 1.
        assignment: node -> trainer.
    """
    nodes = {node.name for node in problem.nodes}
    sizes, own_of, worths = unit_sizes(problem, assignment), dict[str, list[str]](), list[float]()
    for name, trainer_id in assignment.items():
        own_of.setdefault(trainer_id, []).append(name)

    def lowest(names: Iterable[str]) -> float:
        return min([fractions.get(name, 1.0) for name in names])

    for trainer in problem.trainers:
        own = own_of.get(trainer.trainer_id, ())
        before = [name for name in trainer.current if name in nodes]
        joins = not set(own).issubset(before)
        warming_s = min(trainer.warm_up_s, problem.t_fwd_s) if joins else 0.0
        if own:
            reached = lowest(own) * rate(trainer, sizes[trainer.trainer_id], problem.objective)
            worths.append(reached * (problem.t_fwd_s - warming_s))
        if before:
            held = lowest(before) * rate(trainer, len(before), problem.objective)
            worths.append(held * warming_s)
            if set(own) != set(before):
                worths.append(-held * (trainer.rescale_up_s if joins else trainer.rescale_down_s))
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
