"""Trainers that may have certain sizes only. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from bftrainer.decide.constraints.chain import Ask, Constraint, stated
from bftrainer.decide.policies.base import Decided
from bftrainer.model.assignments import nodes_by_trainer
from milp.problem import Problem, ProblemTrainer

ROUNDS: Final = 8  # in which a policy is asked again; then what is too much stays unused


@dataclass(frozen=True, slots=True, kw_only=True)
class InSizes(Constraint[Problem, Decided]):
    """Sets of sizes, for a policy that knows nothing of them."""

    is_kept_by_policy: bool = False
    name: ClassVar[str] = "size-sets"
    in_words: ClassVar[str] = "sets of sizes (--nodes)"

    def answer(self, problem: Problem, ask: Ask) -> Decided:
        """Return an answer in which every trainer has one of its sizes.

        A trainer with a size between two of its set is bound to the smaller one, and all are asked
        for again: others may use what it leaves.
        """
        trainers: dict[str, ProblemTrainer] = {}  # those with a set of sizes
        bounds: dict[str, int] = {}
        for trainer in problem.trainers:
            if trainer.sizes:
                trainers[trainer.trainer_id] = trainer
                bounds[trainer.trainer_id] = trainer.largest_of(trainer.n_max)
        if self.is_kept_by_policy or not bounds:
            return ask(problem)
        for _ in range(ROUNDS):
            decided = ask(_without_sets(problem, bounds))
            sizes = decided.allocation.unit_sizes(problem)
            lower: dict[str, int] = {}
            for trainer_id in bounds:
                size = sizes.get(trainer_id, 0)
                fitting = trainers[trainer_id].largest_of(size)
                if fitting < size:
                    lower[trainer_id] = fitting
            if not lower:
                break
            bounds |= lower
        assignment = dict(decided.allocation.assignment)
        for trainer_id, size in lower.items():
            nodes = nodes_by_trainer(assignment, assignment.keys())[trainer_id]
            trainer = trainers[trainer_id]
            n_left = size
            for name in dict.fromkeys([*trainer.settled, *trainer.current, *nodes]):
                if name in nodes and n_left:
                    n_left -= 1
                elif name in nodes:
                    del assignment[name]
        return stated(problem, decided, assignment)

    def lifted(self, problem: Problem) -> Problem:
        """Return the problem in which every trainer may have all sizes from n_min to n_max."""
        trainers = [replace(trainer, sizes=()) for trainer in problem.trainers]
        return replace(problem, trainers=tuple(trainers))


def _without_sets(problem: Problem, bounds: Mapping[str, int]) -> Problem:
    """Return the problem without sets of sizes; 0: a trainer may have no nodes."""
    never = len(problem.nodes) + 1  # a size that nobody can have

    trainers: list[ProblemTrainer] = []
    for trainer in problem.trainers:
        max_size = bounds.get(trainer.trainer_id)
        if max_size is None:
            trainers.append(trainer)
        elif max_size:
            n_max = max(trainer.n_min, max_size)
            trainers.append(replace(trainer, n_max=n_max, sizes=()))
        else:
            trainers.append(replace(trainer, n_min=never, n_max=never, sizes=()))
    return replace(problem, trainers=tuple(trainers))
