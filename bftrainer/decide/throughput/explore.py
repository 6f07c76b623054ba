"""Among allocations of nearly equal worth, chooses the one that improves the curves most.

A trainer that is rescaled anyway may as well go to a size of poorly known throughput. Given the
problem, its best allocation and the error of each trainer's curve, returns that allocation or
one that is worth at most ``budget`` less (a share of the objective). Trainers that do not move are
left alone. Deterministic and stateless.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from bftrainer.decide.constraints.chain import Ask, Constraint
from bftrainer.decide.policies.base import Decided
from bftrainer.decide.throughput.curves import fitted
from bftrainer.model.trainer import TrainerRecord
from milp.portable import exp2, log2
from milp.problem import Allocation, Curve, Marginal, Objective, Problem, ProblemTrainer, names_of
from milp.worth import allocation_value, curve_at

ErrorAt = Callable[[int], float]  # size -> relative error of the curve there

FULL_ERROR = 0.2  # at this error, measuring is worth most
LEAST_ERROR = 0.02  # below this error, measuring is worth nothing
MOST_SIZES = 64  # considered per trainer


def explore(
    problem: Problem,
    best: Allocation,
    allocate: Callable[[Problem], Allocation],
    errors: Mapping[str, ErrorAt],
    budget: float,
) -> Allocation:
    """Return ``best``, or an allocation that teaches more at a cost of at most ``budget``.

    Args:
        problem: with the estimated curves.
        best: the policy's answer to it.
        allocate: the policy.
        errors: error of each trainer's curve by size; trainers missing here do not explore.
        budget: share of the objective, >= 0.
    """
    if budget <= 0.0 or best.objective <= 0.0 or problem.objective is Objective.UTILITY:
        return best
    sizes, before = best.unit_sizes(problem), _present(problem)
    movers: dict[str, ErrorAt] = {}
    stayers: list[str] = []
    for trainer in problem.trainers:
        trainer_id = trainer.trainer_id
        moves = sizes.get(trainer_id, 0) not in (0, before[trainer_id])
        if moves and trainer_id in errors:
            movers[trainer_id] = errors[trainer_id]
        else:
            stayers.append(trainer_id)
    if not movers:
        return best
    taught = _taught(sizes, movers)
    offered = _with_bonus(problem, movers, sizes, before, budget)
    if offered is problem:
        return best
    alternative = allocate(offered)
    other_sizes = alternative.unit_sizes(problem)
    is_better = _taught(other_sizes, movers) > taught
    for trainer_id in stayers:
        is_better = is_better and other_sizes.get(trainer_id, 0) == sizes.get(trainer_id, 0)
    if not is_better:
        return best
    value = allocation_value(problem, alternative.assignment)
    if value < (1.0 - budget) * best.objective:
        return best
    return replace(
        best,
        assignment=alternative.assignment,
        objective=value,
        gap=best.gap + max(0.0, best.objective - value),
        marginals=_unmoved(best.marginals, sizes, other_sizes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Explores(Constraint[Problem, Decided]):
    """Sizes that improve curves are preferred, within a budget."""

    records: Sequence[TrainerRecord]
    budget: float  # share of the objective, > 0
    name: ClassVar[str] = "exploration"
    in_words: ClassVar[str] = "trials of sizes that are to be measured (explore_budget)"

    def answer(self, problem: Problem, ask: Ask) -> Decided:
        """Return the answer, or one that teaches more; the state is that of the first."""
        best = ask(problem)
        terms = best.terms

        def allocate_again(offered: Problem) -> Allocation:
            nonlocal terms
            alternative = ask(offered)
            terms = alternative.terms
            return alternative.allocation

        errors: dict[str, ErrorAt] = {}
        for record in self.records:
            errors[record.trainer_id] = fitted(record, explores=True).error_at
        allocation = explore(problem, best.allocation, allocate_again, errors, self.budget)
        if allocation is best.allocation:
            return best
        return replace(best, allocation=allocation, terms=terms)


def teaches(error: float) -> float:
    """Value of measuring a size, 0 to 1."""
    return min(1.0, max(0.0, error - LEAST_ERROR) / (FULL_ERROR - LEAST_ERROR))


def _taught(sizes: Mapping[str, int], movers: Mapping[str, ErrorAt]) -> float:
    """Return what measuring these sizes is worth in all."""
    values: list[float] = []
    for trainer_id, error_at in movers.items():
        size = sizes.get(trainer_id, 0)
        if size:
            values.append(_lesson(error_at, size))
    return math.fsum(values)


def _lesson(error_at: ErrorAt, size: int) -> float:
    return teaches(error_at(size))


def _present(problem: Problem) -> dict[str, int]:
    pool = set(names_of(problem.nodes))
    return {t.trainer_id: len(pool.intersection(t.current)) for t in problem.trainers}


def _with_bonus(
    problem: Problem,
    movers: Mapping[str, ErrorAt],
    sizes: Mapping[str, int],
    before: Mapping[str, int],
    budget: float,
) -> Problem:
    """Return the problem in which movers earn a bonus where they teach, and others stay."""
    trainers: list[ProblemTrainer] = []
    earns_more = False
    for trainer in problem.trainers:
        size = sizes.get(trainer.trainer_id, 0)
        offered = trainer
        if trainer.trainer_id in movers:
            error_at = movers[trainer.trainer_id]
            offered = _earning_more(trainer, error_at, len(problem.nodes), budget)
            earns_more = earns_more or offered.curve is not trainer.curve
        elif size and size == before[trainer.trainer_id]:
            offered = replace(trainer, n_min=size, n_max=size)
        trainers.append(offered)
    if not earns_more:
        return problem
    return replace(problem, trainers=tuple(trainers))


def _earning_more(
    trainer: ProblemTrainer, error_at: ErrorAt, n_nodes: int, budget: float
) -> ProblemTrainer:
    """Add the bonus, except at one node, because the objective may be relative to it."""
    curve = _with_more(trainer.curve, error_at, max(1, min(trainer.n_max, n_nodes)), budget)
    if curve is trainer.curve:
        return trainer
    return replace(trainer, curve=curve)


@lru_cache(maxsize=1024)  # curves and what is known of them change seldom
def _with_more(curve: Curve, error_at: ErrorAt, last: int, budget: float) -> Curve:
    sizes = _grid(curve, last)
    rates: list[float] = []
    teaches_more = False
    for size in sizes:
        bonus = 0.0
        if size > 1:
            bonus = budget * _lesson(error_at, size)
        teaches_more = teaches_more or bonus > 0.0
        rates.append((1.0 + bonus) * curve_at(curve, size))
    if not teaches_more:
        return curve
    return Curve(sizes=tuple(sizes), samples_per_s=tuple(rates))


def _grid(curve: Curve, last: int) -> list[int]:
    """Every size up to ``last``, or about ``MOST_SIZES`` of them, and the sizes of the curve."""
    grid = {1, last}
    if last <= MOST_SIZES:
        grid.update(range(1, last + 1))
    else:
        step = log2(last) / MOST_SIZES
        for k in range(MOST_SIZES + 1):
            grid.add(min(last, round(exp2(step * k))))
    for size in curve.sizes:
        if size <= last:
            grid.add(size)
    return sorted(grid)


def _unmoved(
    marginals: Mapping[str, Marginal], sizes: Mapping[str, int], found: Mapping[str, int]
) -> dict[str, Marginal]:
    """Drop marginals of trainers whose size changed: they hold for one size only."""
    return {t: m for t, m in marginals.items() if sizes.get(t, 0) == found.get(t, 0)}
