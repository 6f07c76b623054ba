"""A teacher's decisions as single steps.

A teacher says how many nodes each trainer has, not in which order they were handed out. So any
trainer that still lacks nodes is as right as another: the label of a step is spread over all of
them, and one of them, drawn at random, is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.dl2 import Filling, Options
from bftrainer.decide.policies.dl2_network import Array, Mask
from bftrainer.lab.teach.learner import Step
from milp.problem import Problem


def steps_of(
    problem: Problem, context: Context, sizes: Mapping[str, int], chance: np.random.Generator
) -> list[Step]:
    """Return the steps from an empty pool to these sizes, void at last."""
    filling = Filling(Handing(problem, admits=True), context)
    handing, steps = filling.handing, list[Step]()

    def choose(rows: Array, mask: Mask) -> int:
        lacks = [
            sizes.get(handing.trainers[j].trainer_id, 0) > handing.size(j) for j in filling.seen
        ]
        wanted = np.array([*lacks, False]) & mask
        if not wanted.any():
            wanted[-1] = True
        steps.append(Step(rows=rows, mask=mask, wanted=wanted / wanted.sum()))
        return int(chance.choice(np.flatnonzero(wanted)))

    filling.run(choose)
    return steps


class Watched:
    """A teacher whose decisions are noted as steps."""

    def __init__(self, teacher: AllocationPolicy, options: object, seed: int) -> None:
        """Watch a teacher.

        Args:
            teacher: that decides.
            options: its own; those of the caller are dl2's.
            seed: of the order of steps.
        """
        self._teacher, self._options = teacher, options
        self._chance = np.random.default_rng((seed, 61))
        self.steps: list[Step] = []
        self.name = teacher.name
        # dl2 compares times of trainers, so their curves are comparable whoever teaches.
        self.traits: Traits = replace(teacher.traits, options=type(options), reads_rates=True)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Let the teacher decide."""
        found = self._teacher.allocate(problem, context)
        sizes = found.allocation.sizes()
        known = replace(context, options=Options())
        self.steps += steps_of(problem, known, sizes, self._chance)
        return found
