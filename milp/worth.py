"""What an allocation is worth, straight from the definition; shares no code with the solvers.

Takes a Problem and sizes or a map node -> trainer, returns objective units times
seconds: the formula in ``milp.problem``, term by term. The checker judges stated
objectives by it, tests and reference models measure themselves with it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from milp.errors import ProblemError
from milp.problem import Curve, Objective, Problem, ProblemNode, ProblemTrainer


def objective_value(problem: Problem, sizes: Mapping[str, int]) -> float:
    """Eq. 16 for these sizes (missing trainers: 0) when only size matters.

    Warm-up counts: nodes beyond the present ones train that much less. What depends on
    the very nodes (horizon) does not: see ``allocation_value``.
    """
    pool = {node.name for node in problem.nodes}
    terms: list[float] = []
    for trainer in problem.trainers:
        before = len(pool.intersection(trainer.current))
        size = sizes.get(trainer.trainer_id, 0)
        earned_s: float | None = None
        if trainer.warm_up_s:
            kept = min(size, before)
            earned_s = kept * problem.t_fwd_s
            earned_s += (size - kept) * max(0.0, problem.t_fwd_s - trainer.warm_up_s)
        terms += trainer_terms(problem, trainer, before=before, size=size, earned_s=earned_s)
    return math.fsum(terms)


def allocation_value(problem: Problem, assignment: Mapping[str, str]) -> float:
    """The extended objective of this map: every node earns for the seconds it trains."""
    by_trainer: dict[str, list[str]] = {trainer.trainer_id: [] for trainer in problem.trainers}
    for name, trainer_id in assignment.items():
        if trainer_id in by_trainer:
            by_trainer[trainer_id].append(name)
    nodes = {node.name: node for node in problem.nodes}
    before = [len(nodes.keys() & trainer.current) for trainer in problem.trainers]
    return math.fsum(map_terms(problem, nodes, by_trainer, before))


def map_terms(
    problem: Problem,
    nodes: Mapping[str, ProblemNode],
    by_trainer: Mapping[str, Sequence[str]],
    before: Sequence[int],
) -> list[float]:
    """Per trainer what its nodes earn over t_fwd_s and what its rescale costs.

    ``nodes`` is the pool by name, ``by_trainer`` the names of every trainer's nodes,
    ``before`` the number each trainer has of the pool now (C_j), in their order.
    """
    earns_unevenly = (
        problem.per_node_horizon
        or max([trainer.warm_up_s for trainer in problem.trainers], default=0.0) > 0.0
    )
    holder_of: dict[str, str] = {}
    if earns_unevenly:
        holder_of = {name: t.trainer_id for t in problem.trainers for name in t.current}
    terms: list[float] = []
    for trainer, n_before in zip(problem.trainers, before, strict=True):
        names = by_trainer[trainer.trainer_id]
        earned_s: float | None = None
        if earns_unevenly and names:
            earned_s = math.fsum(
                [
                    earning_s(problem, trainer, nodes[name], holder_of.get(name))
                    for name in names
                    if name in nodes
                ]
            )
        terms += trainer_terms(
            problem, trainer, before=n_before, size=len(names), earned_s=earned_s
        )
    return terms


def earning_s(
    problem: Problem, trainer: ProblemTrainer, node: ProblemNode, holder: str | None
) -> float:
    """e_jn: seconds of t_fwd_s the node trains for the trainer; ``holder`` has it now."""
    until_s = problem.t_fwd_s
    if problem.per_node_horizon and node.expected_remaining_s is not None:
        until_s = min(until_s, node.expected_remaining_s)
    if holder != trainer.trainer_id:
        until_s -= trainer.warm_up_s
    return max(0.0, until_s)


def trainer_terms(
    problem: Problem,
    trainer: ProblemTrainer,
    *,
    before: int,
    size: int,
    earned_s: float | None,
) -> tuple[float, ...]:
    """What the trainer earns, then, if it rescales, what that costs (negative).

    ``before`` is C_j; ``earned_s`` the sum of e_jn, None when every node has t_fwd_s.
    """
    each_s = problem.t_fwd_s if earned_s is None else earned_s / max(size, 1)
    earned = each_s * rate(trainer, size, problem.objective)
    if before in (size, 0):  # O_j(0) = 0: starting costs nothing
        return (earned,)
    rescale_s = trainer.rescale_up_s if size > before else trainer.rescale_down_s
    held = rate(trainer, before, problem.objective, batch=trainer.current_batch)
    return (earned, -held * rescale_s)


def rate(
    trainer: ProblemTrainer, size: int, objective: Objective, *, batch: int | None = None
) -> float:
    """O_j(size) in the unit of the objective, with one batch or with the best."""
    if objective is Objective.UTILITY:
        if trainer.utility is None:
            raise ProblemError(
                "BFT-3091",
                f"Trainer {trainer.trainer_id}: the objective is utility, but it has none.",
                "Give the trainer a utility curve or choose another objective.",
            )
        return curve_at(trainer.utility, size)
    reached = samples_per_s(trainer, size, batch=batch)
    if objective is Objective.THROUGHPUT:
        return reached
    relative = reached / samples_per_s(trainer, 1)
    return relative * trainer.weight if objective is Objective.WEIGHTED else relative


def samples_per_s(trainer: ProblemTrainer, size: int, *, batch: int | None = None) -> float:
    """Throughput at a size with one of the admissible batches, or the best of them."""
    if not trainer.batch_curves:
        return curve_at(trainer.curve, size)
    return max(
        curve_at(one.curve, size)
        for one in trainer.batch_curves
        if batch is None or one.global_batch == batch
    )


def best_batches(problem: Problem, sizes: Mapping[str, int]) -> dict[str, int]:
    """The batch to train with at these sizes: the smallest that reaches the most samples."""
    return {
        trainer.trainer_id: min(
            trainer.batch_curves, key=lambda one: (-curve_at(one.curve, size), one.global_batch)
        ).global_batch
        for trainer in problem.trainers
        if trainer.batch_curves and (size := sizes.get(trainer.trainer_id, 0))
    }


def curve_at(curve: Curve, size: int) -> float:
    """A curve at a size: linear between breakpoints, (0, 0) before, flat after."""
    i = bisect_left(curve.sizes, size)
    if i == len(curve.sizes):
        return curve.samples_per_s[-1]
    right_size, right = curve.sizes[i], curve.samples_per_s[i]
    left_size, left = (curve.sizes[i - 1], curve.samples_per_s[i - 1]) if i else (0, 0.0)
    # A mean of two values >= 0 loses no digits, however steep the curve falls.
    return (left * (right_size - size) + right * (size - left_size)) / (right_size - left_size)
