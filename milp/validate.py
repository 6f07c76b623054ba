"""Refuses malformed problems, naming the field; called before anything is computed.

Takes a Problem, returns nothing, raises ProblemError for the first thing wrong.
"""

from __future__ import annotations

import itertools
import math

from milp.errors import ProblemError
from milp.problem import Curve, Objective, Problem, ProblemTrainer

LARGEST_NUMBER = 1e15  # beyond any rate or time; keeps every product finite
SMALLEST_RATE = 1e-9  # samples per second on one node


def validate(problem: Problem) -> None:
    """Raise ``ProblemError`` unless every field makes sense.

    A trainer's current node that is not in the pool is no error: it has left.
    """
    _require_number("t_fwd_s", problem.t_fwd_s)
    if problem.p_jmax < 0:
        raise ProblemError(
            "BFT-3001", f"p_jmax is {problem.p_jmax}.", "Give 0 or a positive number of trainers."
        )
    _validate_nodes(problem)
    owners: dict[str, str] = {}
    trainer_ids: set[str] = set()
    for trainer in problem.trainers:
        if trainer.trainer_id in trainer_ids:
            raise ProblemError(
                "BFT-3002",
                f"Trainer {trainer.trainer_id} is listed twice.",
                "Give every trainer its own trainer_id.",
            )
        trainer_ids.add(trainer.trainer_id)
        _validate_trainer(trainer, problem.objective)
        for name in trainer.current:
            first = owners.setdefault(name, trainer.trainer_id)
            if first != trainer.trainer_id:
                raise ProblemError(
                    "BFT-3003",
                    f"Node {name} is current of two trainers, {first} and {trainer.trainer_id}.",
                    "List each node in the current of one trainer only.",
                )


def _validate_nodes(problem: Problem) -> None:
    names: set[str] = set()
    for node in problem.nodes:
        if node.name in names:
            raise ProblemError(
                "BFT-3004",
                f"Node {node.name} is listed twice in nodes.",
                "List each node once.",
            )
        names.add(node.name)
        if node.expected_remaining_s is not None and math.isnan(node.expected_remaining_s):
            raise ProblemError(
                "BFT-3005",
                f"Node {node.name}: expected_remaining_s is not a number.",
                "Give seconds, or None when no end is in sight.",
            )


def _validate_trainer(trainer: ProblemTrainer, objective: Objective) -> None:
    where = f"Trainer {trainer.trainer_id}"
    if not 1 <= trainer.n_min <= trainer.n_max:
        raise ProblemError(
            "BFT-3006",
            f"{where}: n_min {trainer.n_min} and n_max {trainer.n_max} leave no size.",
            "Choose 1 <= n_min <= n_max.",
        )
    if len(set(trainer.current)) != len(trainer.current):
        raise ProblemError(
            "BFT-3007", f"{where}: current names a node twice.", "List each node once."
        )
    _require_number(f"{where}: rescale_up_s", trainer.rescale_up_s)
    _require_number(f"{where}: rescale_down_s", trainer.rescale_down_s)
    _require_number(f"{where}: weight", trainer.weight)
    _validate_curve(where, trainer.curve, objective)


def _validate_curve(where: str, curve: Curve, objective: Objective) -> None:
    sizes = curve.sizes
    if not sizes or len(sizes) != len(curve.samples_per_s):
        raise ProblemError(
            "BFT-3008",
            f"{where}: curve has {len(sizes)} sizes and {len(curve.samples_per_s)} values.",
            "Give at least one size and as many values as sizes.",
        )
    if sizes[0] < 1 or any(left >= right for left, right in itertools.pairwise(sizes)):
        raise ProblemError(
            "BFT-3009",
            f"{where}: curve sizes are not strictly increasing from 1.",
            "Sort the sizes, remove repetitions and leave out size 0.",
        )
    for value in curve.samples_per_s:
        _require_number(f"{where}: curve samples_per_s", value)
    if objective is not Objective.THROUGHPUT and curve.samples_per_s[0] < SMALLEST_RATE * sizes[0]:
        raise ProblemError(
            "BFT-3010",
            f"{where}: the objective {objective.value} divides by O(1), which is below"
            f" {SMALLEST_RATE:g}.",
            "Give a curve that is positive at its first size, or use the objective throughput.",
        )


def _require_number(field: str, value: float) -> None:
    if not 0 <= value <= LARGEST_NUMBER:  # also false for NaN
        raise ProblemError(
            "BFT-3011", f"{field} is {value}.", f"Give a number from 0 to {LARGEST_NUMBER:g}."
        )
