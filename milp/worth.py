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

from milp.problem import (
    Curve,
    Objective,
    Problem,
    ProblemError,
    ProblemTrainer,
    names_of,
    names_outside,
    names_within,
    unit_sizes,
)

MOST_TRIES = 8  # with some of the slow nodes left out


def objective_value(problem: Problem, sizes: Mapping[str, int]) -> float:
    """Eq. 16 for these sizes in units (missing trainers: 0); those that join warm up."""
    pool = set(names_of(problem.nodes))
    counts_before = [len(pool.intersection(trainer.current)) for trainer in problem.trainers]
    return math.fsum(terms(problem, sizes, counts_before))


def allocation_value(problem: Problem, assignment: Mapping[str, str]) -> float:
    """The same for a map node -> trainer_id."""
    return objective_value(problem, unit_sizes(problem, assignment))


def terms(problem: Problem, sizes: Mapping[str, int], before: Sequence[int]) -> list[float]:
    """Per trainer what its nodes earn over t_fwd_s and what its rescale costs.

    ``before`` is the number each trainer has of the pool now (C_j), in their order.
    """
    all_terms: list[float] = []
    for trainer, n_before in zip(problem.trainers, before, strict=True):
        size = sizes.get(trainer.trainer_id, 0)
        all_terms += trainer_terms(problem, trainer, before=n_before, size=size)
    return all_terms


def trainer_terms(
    problem: Problem, trainer: ProblemTrainer, *, before: int, size: int
) -> tuple[float, ...]:
    """Return what it earns at its size and before, then, if it rescales, the cost (negative)."""
    warming_s, rescale_s = 0.0, trainer.rescale_down_s
    if size > before:
        warming_s, rescale_s = min(trainer.warm_up_s, problem.t_fwd_s), trainer.rescale_up_s
    earned = rate(trainer, size, problem.objective) * (problem.t_fwd_s - warming_s)
    if before in (size, 0):  # O_j(0) = 0: starting costs nothing
        return (earned,)
    rate_before = rate(trainer, before, problem.objective)
    if not warming_s:
        return (earned, -rate_before * rescale_s)
    # What it has goes on until those that join are warm.
    return (earned, rate_before * warming_s, -rate_before * rescale_s)


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
    samples_per_s = curve_at(trainer.curve, size)
    if objective is Objective.THROUGHPUT:
        return samples_per_s
    relative = samples_per_s / curve_at(trainer.curve, 1)
    if objective is Objective.WEIGHTED:
        return relative * trainer.weight
    return relative


def curve_at(curve: Curve, size: int) -> float:
    """A curve at a size: linear between breakpoints, (0, 0) before, flat after."""
    i = bisect_left(curve.sizes, size)
    if i == len(curve.sizes):
        return curve.samples_per_s[-1]
    size_1, rate_1 = 0, 0.0
    if i:
        size_1, rate_1 = curve.sizes[i - 1], curve.samples_per_s[i - 1]
    size_2, rate_2 = curve.sizes[i], curve.samples_per_s[i]
    # A mean of two values >= 0 loses no digits, however steep the curve falls.
    return (rate_1 * (size_2 - size) + rate_2 * (size - size_1)) / (size_2 - size_1)


def worth(problem: Problem, fractions: Mapping[str, float], assignment: Mapping[str, str]) -> float:
    """Return the worth of an assignment when a trainer is as quick as its slowest node.

    Args:
        problem: with all nodes.
        fractions: of slow nodes; others reach 1.
        assignment: node -> trainer.
    """
    pool, sizes = set(names_of(problem.nodes)), unit_sizes(problem, assignment)
    names_of_trainers: dict[str, list[str]] = {}
    for name, trainer_id in assignment.items():
        names_of_trainers.setdefault(trainer_id, []).append(name)

    def lowest_fraction(names: Iterable[str]) -> float:
        return min([fractions.get(name, 1.0) for name in names])

    all_terms: list[float] = []
    for trainer in problem.trainers:
        names = names_of_trainers.get(trainer.trainer_id, ())
        names_before = names_within(trainer.current, pool)
        warming_s, rescale_s = 0.0, trainer.rescale_down_s
        if not set(names).issubset(names_before):  # some node joins
            warming_s, rescale_s = min(trainer.warm_up_s, problem.t_fwd_s), trainer.rescale_up_s
        if names:
            rate_with_all = rate(trainer, sizes[trainer.trainer_id], problem.objective)
            earned = lowest_fraction(names) * rate_with_all
            all_terms.append(earned * (problem.t_fwd_s - warming_s))
        if names_before:
            rate_with_all = rate(trainer, len(names_before), problem.objective)
            rate_before = lowest_fraction(names_before) * rate_with_all
            all_terms.append(rate_before * warming_s)
            if set(names) != set(names_before):
                all_terms.append(-rate_before * rescale_s)
    return math.fsum(all_terms)


def without_some(problem: Problem, fractions: Mapping[str, float]) -> Iterator[Problem]:
    """Yield the problem as it is, without the slowest node, the slowest two and so on.

    Of nodes that are as slow first those that no trainer has. Of many several at once.
    """
    held_names: set[str] = set()
    for trainer in problem.trainers:
        held_names.update(trainer.current)
    slow_names = names_within(names_of(problem.nodes), fractions)
    slow_names.sort(key=lambda name: (fractions[name], name in held_names, name))
    step = max(1, math.ceil(len(slow_names) / MOST_TRIES))
    yield problem
    for count in range(step, len(slow_names) + step, step):
        hidden_names = frozenset(slow_names[:count])
        nodes = tuple([node for node in problem.nodes if node.name not in hidden_names])
        yield replace(problem, nodes=nodes, trainers=without(problem.trainers, hidden_names))


def without(
    trainers: Iterable[ProblemTrainer], gone: AbstractSet[str]
) -> tuple[ProblemTrainer, ...]:
    """Return the trainers as if they did not have those nodes."""
    changed_trainers: list[ProblemTrainer] = []
    for trainer in trainers:
        if gone.isdisjoint(trainer.current):
            changed_trainers.append(trainer)
        else:
            current = tuple(names_outside(trainer.current, gone))
            settled = tuple(names_outside(trainer.settled, gone))
            changed_trainers.append(replace(trainer, current=current, settled=settled))
    return tuple(changed_trainers)
