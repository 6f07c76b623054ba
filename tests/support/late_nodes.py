"""What a trainer makes when some of its nodes come from another user and join later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from bftrainer.decide.constraints.swaps import Owners
from milp.problem import Problem, ProblemTrainer
from milp.reference.timeline import change_of, made_within_horizon, rate_by_count


def made_with_swaps(
    problem: Problem,
    trainer: ProblemTrainer,
    assignment: Mapping[str, str],
    owners: Owners,
    swap_s: float,
) -> Fraction:
    """Return what it makes within T_fwd; ``swap_s``: how much later than others such nodes join."""
    nodes = {node for node, its in assignment.items() if its == trainer.trainer_id}
    change = change_of(problem, trainer, nodes)
    late = [node for node in change.warm_at_s if owners.is_swap(node, trainer.trainer_id)]
    warm_at_s = {**change.warm_at_s, **dict.fromkeys(late, trainer.warm_up_s + swap_s)}
    return made_within_horizon(
        trainer,
        replace(change, warm_at_s=warm_at_s),
        horizon_s=problem.t_fwd_s,
        rate=rate_by_count(trainer, problem.objective),
    )
