"""Trainers that rest after a shrink: they get no more than they train on. Pure.

``TrainerRecord.rests_until_s`` tells until when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from bftrainer.decide.constraints.chain import Ask, Constraint
from bftrainer.decide.policies.base import Decided
from bftrainer.model.decision import DecisionInput
from bftrainer.model.trainer import TrainerRecord
from milp.problem import Problem, ProblemTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rests(Constraint[Problem, Decided]):
    """They do not grow, and the next decision is due when they may."""

    given: DecisionInput
    name: ClassVar[str] = "rest-after-shrink"
    in_words: ClassVar[str] = "rests after a shrink (--rescale-rest)"

    def answer(self, problem: Problem, ask: Ask) -> Decided:
        """Ask for the problem in which they do not grow."""
        resting = self._resting()
        if not resting:
            return ask(problem)
        decided = ask(self._bounded(problem, resting))
        wake_at_s = decided.wake_at_s
        for record in resting:
            if wake_at_s is None or record.rests_until_s < wake_at_s:
                wake_at_s = record.rests_until_s
        return replace(decided, wake_at_s=wake_at_s)

    def _resting(self) -> list[TrainerRecord]:
        now_s = self.given.now_s
        return [record for record in self.given.trainers if now_s < record.rests_until_s]

    def _bounded(self, problem: Problem, resting: Sequence[TrainerRecord]) -> Problem:
        sizes = Counter[str]()
        for node in problem.nodes:
            sizes[self.given.training.get(node.name, "")] += 1
        bounds: dict[str, int] = {}
        for record in resting:
            if sizes[record.trainer_id]:
                bounds[record.trainer_id] = sizes[record.trainer_id]
        if not bounds:
            return problem
        trainers: list[ProblemTrainer] = []
        for trainer in problem.trainers:
            size = bounds.get(trainer.trainer_id)
            if size is None:
                trainers.append(trainer)
            else:
                n_max = max(trainer.n_min, min(trainer.n_max, size))
                trainers.append(replace(trainer, n_max=n_max))
        return replace(problem, trainers=tuple(trainers))
