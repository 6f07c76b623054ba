"""A network hands out a slot's tasks: one action after the other, until void (section 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bftrainer.decide.policies.dl2_network import Array, Mask, probabilities
from bftrainer.lab.papers.dl2.cluster import TASKS, Cluster, Job
from bftrainer.lab.teach.learner import Step

Scores = Callable[[Array], Array]  # (J, F) -> (J K + 1,)
OnAction = Callable[[Array, Mask, int], None]  # rows and mask before an action, and the action
Override = Callable[[Cluster, int, Mask], int]  # another action than the one chosen


@dataclass(slots=True, kw_only=True)
class Acting:
    """A network's rule; actions are drawn, as in the paper."""

    scores: Scores
    chance: np.random.Generator
    on_action: OnAction | None = None
    override: Override | None = None

    def __call__(self, cluster: Cluster) -> None:
        """Hand out a slot's tasks."""
        cluster.give_first_tasks()
        if not cluster.seen:
            return
        rows, mask, per_job = cluster.rows(), cluster.mask(), cluster.setting.per_job
        void = len(mask) - 1
        while mask[:-1].any():
            action = self._choose(rows, mask)
            if self.override is not None:
                action = self.override(cluster, action, mask)
            if action == void:
                if self.on_action is not None:
                    self.on_action(rows, mask, void)
                return
            place, task = divmod(action, per_job)
            job = cluster.seen[place]
            if self.on_action is not None:
                # A task that does not fit is no experience: nothing has been learnt of it.
                before = rows.copy(), mask.copy()
            if not cluster.give(job, *TASKS[task]):
                return
            if self.on_action is not None:
                self.on_action(*before, action)
            rows[place] = cluster.row(job)
            mask[per_job * place : per_job * (place + 1)] = cluster.allowed(job)

    def _choose(self, rows: Array, mask: Mask) -> int:
        share = probabilities(self.scores(rows), mask).cumsum()
        drawn = int(np.searchsorted(share, self.chance.random() * share[-1], side="right"))
        return min(drawn, len(share) - 1)


def step_of(rows: Array, mask: Mask, action: int) -> Step:
    """Return a step whose wanted action is the one taken."""
    wanted = np.zeros(len(mask))
    wanted[action] = 1.0
    return Step(rows=rows, mask=mask, wanted=wanted)


class Labels:
    """Notes the steps of another scheduler, as the warm-up imitates them (section 4.2)."""

    def __init__(self, cluster: Cluster) -> None:
        """Begin a slot."""
        self._cluster = cluster
        self.steps: list[Step] = []

    def note(self, job: Job, more: tuple[int, int]) -> None:
        """Note a step before its tasks are placed; jobs beyond the window are not seen."""
        cluster = self._cluster
        if job in cluster.seen:
            task = TASKS.index(more)
            action = cluster.seen.index(job) * cluster.setting.per_job + task
            self.steps.append(step_of(cluster.rows(), cluster.mask(), action))

    def end(self) -> None:
        """Note that the scheduler stops here."""
        if self._cluster.seen:
            rows, mask = self._cluster.rows(), self._cluster.mask()
            self.steps.append(step_of(rows, mask, len(mask) - 1))
