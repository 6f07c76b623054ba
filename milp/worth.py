"""The worth of an allocation, straight from the definition; shares no code with the solvers.

Takes a Problem and sizes or a map node -> trainer, returns objective units times
seconds: the formula in ``milp.problem``, term by term. The checker judges stated
objectives by it, tests and reference models measure themselves with it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from milp.errors import ProblemError
from milp.problem import Curve, Objective, Problem, ProblemTrainer


def objective_value(problem: Problem, sizes: Mapping[str, int]) -> float:
    """Eq. 16 for these sizes (missing trainers: 0); nodes beyond the present ones warm up."""
    pool = {node.name for node in problem.nodes}
    before = [len(pool.intersection(trainer.current)) for trainer in problem.trainers]
    return math.fsum(terms(problem, sizes, before))


def allocation_value(problem: Problem, assignment: Mapping[str, str]) -> float:
    """The same for a map node -> trainer_id."""
    return objective_value(problem, Counter(assignment.values()))


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
    """Return what the trainer earns, then, if it rescales, what that costs (negative)."""
    earned = mean_earning_s(problem, trainer, kept=min(size, before), size=size)
    earned *= rate(trainer, size, problem.objective)
    if before in (size, 0):  # O_j(0) = 0: starting costs nothing
        return (earned,)
    rescale_s = trainer.rescale_up_s if size > before else trainer.rescale_down_s
    held = rate(trainer, before, problem.objective)
    return (earned, -held * rescale_s)


def mean_earning_s(problem: Problem, trainer: ProblemTrainer, *, kept: int, size: int) -> float:
    """Seconds of t_fwd_s that one of ``size`` nodes trains, of which ``kept`` did before."""
    if kept == size or not trainer.warm_up_s:
        return problem.t_fwd_s
    joined_s = max(0.0, problem.t_fwd_s - trainer.warm_up_s)
    return (kept * problem.t_fwd_s + (size - kept) * joined_s) / size


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
