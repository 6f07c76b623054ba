"""Physical replay in which decisions do not know the true curves.

Trainers progress by their true curves; decisions use what users claim (or nothing) and noisy
measurements: one observation of the present size for every few seconds of training, processed by
the daemon's own ``actuate.costs``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from bftrainer.decide.throughput.curves import OBSERVE_S, SETTLE_S, WINDOW
from bftrainer.fleet.trainers.costs import learn_leaving, learn_throughput
from bftrainer.lab.simulator.physical import PhysicalCosts, PhysicalModel
from bftrainer.lab.simulator.trainers import SimTrainer, Tally
from bftrainer.lab.workloads import Submission
from milp.problem import Curve

Claim = Callable[[Submission], Curve | None]  # the throughput claimed by the user


@dataclass(slots=True)
class _Watch:
    """The present stay of a trainer at one size."""

    size: int
    next_s: float  # when the next observation is complete


class LearningModel(PhysicalModel):
    """A trainer model that hides the true curves from decisions."""

    def __init__(
        self,
        tally: Tally,
        costs: PhysicalCosts,
        *,
        seed: int,
        claim: Claim,
        noise: float,
        is_learning: bool = True,
    ) -> None:
        """Take the durations of ``PhysicalModel`` and what is known.

        Args:
            tally: sums of the replay.
            costs: durations.
            seed: of durations and noise.
            claim: what the user of a trainer says; None: nothing.
            noise: relative standard deviation of one observation.
            is_learning: False: decisions have the claims only.
        """
        super().__init__(tally, costs, seed=seed)
        self._claim, self._noise, self._is_learning = claim, noise, is_learning
        self._errors = random.Random(seed + 1)  # noqa: S311 - reproducible by its seed
        self._watches: dict[str, _Watch] = {}

    def admit(self, trainer: SimTrainer) -> None:
        """Admit a trainer; its record has the user's claim."""
        spec = replace(trainer.record.spec, curve=self._claim(trainer.submission))
        trainer.record = replace(trainer.record, spec=spec)
        super().admit(trainer)

    def advance(self, now_s: float) -> None:
        """Train up to ``now_s`` and observe it."""
        begin_s = self._now_s
        super().advance(now_s)
        for member in self._members.values() if self._is_learning else ():
            resumes_s = max(begin_s, member.resumes_at_s)
            self._observe(member.trainer, resumes_s, now_s)

    def _observe(self, trainer: SimTrainer, begin_s: float, now_s: float) -> None:
        """Record the observations completed at the present size."""
        size = len(trainer.nodes)
        watch = self._watches.get(trainer.trainer_id)
        if watch is None or watch.size != size:
            if watch is not None and watch.size:
                costs = learn_leaving(trainer.record.costs, watch.size)
                trainer.record = replace(trainer.record, costs=costs)
            watch = _Watch(size, begin_s + SETTLE_S + OBSERVE_S)
            self._watches[trainer.trainer_id] = watch
        if not size or watch.next_s > now_s:
            return
        complete = 1 + int((now_s - watch.next_s) / OBSERVE_S)
        costs = trainer.record.costs
        # More than these do not fit into the window.
        for _ in range(min(complete, 2 * int(WINDOW))):
            observed = trainer.rate * max(0.0, self._errors.gauss(1.0, self._noise))
            costs = learn_throughput(costs, size, observed, now_s)
        watch.next_s += complete * OBSERVE_S
        trainer.record = replace(trainer.record, costs=costs)
