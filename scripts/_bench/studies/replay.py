"""A replay in which a study is the source of trainers; all else is as in ``Replay``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from _bench.studies.trials import SimStudy, Trials
from bftrainer.batch.traces.fragments import Fragments
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.physical import CLOCK_STEP_S
from bftrainer.lab.simulator.replay import Outcome, Replay
from bftrainer.lab.simulator.trainers import SimTrainer, make_trainer
from bftrainer.lab.workloads import Submission
from bftrainer.model.decision import DecisionInput, Plan, Settings


class StudyReplay(Replay):
    """One replay of one study; it ends with the study, or with the trace."""

    def __init__(
        self,
        trace: Fragments,
        study: SimStudy,
        *,
        settings: Settings,
        policy: AllocationPolicy,
        books: PaperModel,
        seed: int = 0,
        on_plan: Callable[[DecisionInput, Plan], None] | None = None,
    ) -> None:
        super().__init__(
            trace, (), settings=settings, policy=policy, books=books, seed=seed, on_plan=on_plan
        )
        self.trials = Trials(study=study, make=self._made)

    def run(self) -> Outcome:
        """Play it."""
        outcome = super().run()
        return replace(outcome, trainers=tuple(one.trainer for one in self.trials.every))

    def _made(self, submission: Submission, number: int) -> SimTrainer:
        after_s = self._now_s - self._begin_s
        submission = replace(submission, submit_s=submission.submit_s + after_s)
        costs = self._books.known_costs(submission)
        return make_trainer(submission, number, self._begin_s, costs)

    def _next_arrival_s(self) -> float:
        """Trials start when others report, and at the first event."""
        return math.inf

    def _turn_over(self) -> bool:
        """Trials report, wait, grow, stop and start; whether that calls for a decision."""
        # An event comes at the very instant, as exactly as a clock of floats can tell.
        reached = [t for t in self._running if t.goal - t.done <= CLOCK_STEP_S * t.rate]
        if not reached and self.trials.every:
            return False
        ended = {t.trainer_id for t in self._books.completed()}
        self.trials.hear(reached, self._now_s)
        self.trials.judge(self._now_s)
        admitted = {t.trainer_id for t in self._running} - ended
        active = self.trials.active
        stopped = admitted - {t.trainer_id for t in active}
        self._books.dismiss([t for t in self._running if t.trainer_id in stopped])
        for trainer in active:
            if trainer.trainer_id not in admitted:
                self._books.admit(trainer)
        is_same = not ended and active == self._running  # who reported something goes on
        self._running = active
        if self.trials.over_s is not None:
            self._end_s = self._now_s
        return not is_same
