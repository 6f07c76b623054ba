"""How a map stands: marginal values of its trainers, a price, and a bound on the optimum.

A Problem and sizes come in, numbers go out. For maps whose solver gives no such numbers;
the exact solver gives its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from milp.problem import Marginal, Problem, ProblemTrainer
from milp.worth import trainer_terms


def marginals(problem: Problem, sizes: Mapping[str, int]) -> dict[str, Marginal]:
    """What one node more and one fewer would change for each trainer, others unchanged.

    Nodes are taken to earn for t_fwd, as in eq. 16.
    """
    present = {node.name for node in problem.nodes}
    steps: dict[str, Marginal] = {}
    for rank, trainer in enumerate(problem.trainers):
        size = sizes.get(trainer.trainer_id, 0)
        before = sum(name in present for name in trainer.current)
        now = _value(problem, trainer, before, size)
        gain: float | None = None
        largest = min(trainer.n_max, _eligible_nodes(problem, trainer) + 1)
        if rank < problem.p_jmax and trainer.n_min <= size + 1 <= largest:
            gain = _value(problem, trainer, before, size + 1) - now
        loss: float | None = None
        if size:
            fewer = size - 1 if size > trainer.n_min else 0
            loss = now - _value(problem, trainer, before, fewer)
        steps[trainer.trainer_id] = Marginal(gain_of_one_more=gain, loss_of_one_fewer=loss)
    return steps


def price_of_best_step(steps: Mapping[str, Marginal]) -> float:
    """What one node more is worth when no other trainer changes.

    The value of one node more (lambda) is at least this, and more only when several
    trainers would have to change together.
    """
    gains = [step.gain_of_one_more for step in steps.values()]
    return max([0.0, *(gain for gain in gains if gain is not None)])


def gap_below(problem: Problem, value: float) -> float:
    """The optimum is worth at most this much more: every trainer at its very best."""
    present = {node.name for node in problem.nodes}
    best = 0.0
    for rank, trainer in enumerate(problem.trainers):
        before = sum(name in present for name in trainer.current)
        sizes = [0]
        if rank < problem.p_jmax:
            largest = min(trainer.n_max, _eligible_nodes(problem, trainer))
            sizes += range(trainer.n_min, largest + 1)
        best += max(_value(problem, trainer, before, size) for size in sizes)
    return max(best - value, 0.0)


def _eligible_nodes(problem: Problem, trainer: ProblemTrainer) -> int:
    if not trainer.eligible:
        return len(problem.nodes)
    return sum(node.eligibility in trainer.eligible for node in problem.nodes)


def _value(problem: Problem, trainer: ProblemTrainer, before: int, size: int) -> float:
    return math.fsum(trainer_terms(problem, trainer, before=before, size=size))
