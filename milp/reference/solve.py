"""The paper's node-level MILP solved to proven optimality: slow, faithful.

``solve_reference`` returns the optimum of a Problem and one optimal map. Called by tests and
benchmarks; ties are broken as the solver likes.

``marginals``, ``price_of_best_step`` and ``gap_below`` are for maps whose solver gives no such
numbers; the exact solver gives its own.

``keep_map`` returns a map node -> trainer_id that breaks no rule, whatever has left the pool or
changed in the policy (section 3.6 of the paper: "let x be c").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from milp.check import validate
from milp.hosts import usable_as
from milp.problem import (
    Marginal,
    Problem,
    ProblemError,
    ProblemTrainer,
    classes_by_name,
    lends_gpus,
    names_of,
)
from milp.reference.backends import ModelStatus, SolveOptions, load_backend
from milp.reference.node_model import build_node_model, read_map
from milp.worth import allocation_value, trainer_terms


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceAnswer:
    """The optimum that the solver found."""

    objective: float  # eq. 16, recomputed from the map
    claimed: float  # the value the solver states
    assignment: dict[str, str]


def solve_reference(problem: Problem, solver: str = "highs") -> ReferenceAnswer:
    """Solve the node-level model with gap 0 and no time limit (small problems only).

    The exact solver, which is compared with it, is ``milp.solve``.

    Raises:
        ProblemError: the problem is malformed, or the solver did not prove an optimum.
    """
    validate(problem)
    node_model = build_node_model(problem)
    answer = load_backend(solver)(node_model.model, SolveOptions())
    if answer.status is not ModelStatus.OPTIMAL:
        raise ProblemError(
            "BFT-3040",
            f"The solver {solver} ended without an optimum: {answer.status}: {answer.message}.",
            "Give it a smaller problem; the exact solver needs no limit.",
        )
    assignment = read_map(node_model, answer.values)
    worth = allocation_value(problem, assignment)
    return ReferenceAnswer(objective=worth, claimed=answer.objective, assignment=assignment)


def marginals(problem: Problem, sizes: Mapping[str, int]) -> dict[str, Marginal]:
    """Return the change by one node more and one fewer for each trainer, others unchanged.

    Nodes are taken to earn for t_fwd, as in eq. 16.
    """
    pool = set(names_of(problem.nodes))
    steps: dict[str, Marginal] = {}
    for rank, trainer in enumerate(problem.trainers):
        size = sizes.get(trainer.trainer_id, 0)
        before = len(pool.intersection(trainer.current))
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
    """Return the worth of one node more when no other trainer changes.

    The value of one node more (lambda) is at least this, and more only when several
    trainers would have to change together.
    """
    price = 0.0
    for step in steps.values():
        if step.gain_of_one_more is not None:
            price = max(price, step.gain_of_one_more)
    return price


def gap_below(problem: Problem, value: float) -> float:
    """The optimum is worth at most this much more: every trainer at its very best."""
    pool = set(names_of(problem.nodes))
    best_total = 0.0
    for rank, trainer in enumerate(problem.trainers):
        before = len(pool.intersection(trainer.current))
        best = _value(problem, trainer, before, 0)
        if rank < problem.p_jmax:
            largest = min(trainer.n_max, _eligible_nodes(problem, trainer))
            for size in range(trainer.n_min, largest + 1):
                best = max(best, _value(problem, trainer, before, size))
        best_total += best
    return max(best_total - value, 0.0)


def _eligible_nodes(problem: Problem, trainer: ProblemTrainer) -> int:
    if not trainer.eligible:
        return len(problem.nodes)
    return sum(node.eligibility in trainer.eligible for node in problem.nodes)


def _value(problem: Problem, trainer: ProblemTrainer, before: int, size: int) -> float:
    return math.fsum(trainer_terms(problem, trainer, before=before, size=size))


def keep_map(problem: Problem) -> dict[str, str]:
    """Current nodes that are still there, within the bounds of trainers that may run.

    A trainer above n_max gives up the nodes it settled on last, as does one above what earlier
    ones leave it of a cap; one below n_min, or beyond p_jmax, gives up all.
    """
    classes = classes_by_name(problem.nodes)
    is_lent = lends_gpus(problem)
    room = [cap.most for cap in problem.caps]  # by cap
    assignment: dict[str, str] = {}
    for trainer in problem.trainers[: problem.p_jmax]:
        if is_lent:  # parts of its width only
            nodes = [node for node in problem.nodes if usable_as(node, trainer.width)]
            classes = classes_by_name(nodes)
        caps_over = [c for c, cap in enumerate(problem.caps) if trainer.trainer_id in cap.trainers]
        limit = trainer.n_max
        for c in caps_over:
            limit = min(limit, room[c])
        names = _names_to_keep(trainer, classes, limit)
        assignment |= dict.fromkeys(names, trainer.trainer_id)
        for c in caps_over:
            room[c] -= len(names)
    return assignment


def _names_to_keep(trainer: ProblemTrainer, classes: Mapping[str, str], limit: int) -> list[str]:
    groups: dict[str, list[str]] = {}  # by class; one that mixes them has one group
    for name in trainer.current:
        eligibility = classes.get(name)
        if eligibility is None or (trainer.eligible and eligibility not in trainer.eligible):
            continue
        group = "" if trainer.mixes_classes else eligibility
        groups.setdefault(group, []).append(name)
    names = max(groups.values(), key=len, default=[])
    settled = set(trainer.settled)
    names = sorted(names, key=lambda name: name not in settled)[:limit]
    return names if len(names) >= trainer.n_min else []
