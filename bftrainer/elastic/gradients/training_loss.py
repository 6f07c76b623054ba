"""The mean training loss of this worker's samples, for people who watch a training.

What the script takes the gradient of is seen anyway (``loss_alarm``), pass by pass of an update,
and comes from a GPU some updates later: nothing is waited for. The mean is over the samples of all
updates since the last report, so that it says the same at every size:

* a mean over the samples counts by its samples, one over something else by ``run.weight``
* a sum over the samples is divided by them
* several backward passes over the same samples are added up, as their gradients are; where each of
  them is averaged (``backward_passes``) the first one counts
* of a loss that a ``GradScaler`` has multiplied the scale is taken away again. Where something was
  done to it afterwards, what it was is not known, and it does not count
* an update in which a loss was NaN or infinite leaves no mean

The daemon puts the members' means together by their weights. Used by ``loss_alarm``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bftrainer.elastic.process.control import Control
from bftrainer.ground.fields import MOST
from bftrainer.ground.protocol import BY_AGENT, TELLS_LOSS, TrainingLoss

if TYPE_CHECKING:
    from bftrainer.elastic.gradients.loss_alarm import PassLoss

REPORT_EVERY_S = 5.0  # as often as curves have points


class LossMean:
    """The losses of the updates since the last report."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._updates = 0
        self._weight = self._weighted = self._added = 0.0  # the losses times their weights; plain
        self._is_finite = True

    def add(self, passes: Sequence[PassLoss]) -> None:
        """Add an update, and the losses of this worker's passes in it; (): it had no samples."""
        self._updates += 1
        for part in passes:
            if part.is_unclear or not part.n_counted:
                continue
            first, *later = part.values[: part.n_counted]
            loss, weight = first.number, part.weight
            for value in later:
                loss += value.number
            self._is_finite &= math.isfinite(loss)
            self._weight += weight
            self._weighted += loss * weight
            self._added += loss

    @property
    def is_there(self) -> bool:
        """Whether there is anything to tell."""
        return self._weight > 0.0

    def take(self, *, is_sum: bool) -> tuple[float | None, float] | None:
        """Return the mean, None if it is no finite number, and its weight; begin anew.

        Args:
            is_sum: each loss is a sum over its samples.

        Returns:
            The weight is that of one update, on average: members that have seen more updates
            do not count for more. None if there is nothing to tell.
        """
        if not self.is_there:
            return None
        mean = (self._added if is_sum else self._weighted) / self._weight
        weight = min(self._weight / self._updates, float(MOST))
        is_finite = self._is_finite and math.isfinite(mean)
        self._clear()
        return mean if is_finite else None, weight


class LossReporter:
    """Sends the mean to the daemon once in a while."""

    def __init__(self, control: Control) -> None:
        self._control, self.mean = control, LossMean()
        self._reported_s = -math.inf

    def is_due(self) -> bool:
        """Return whether there is something to report, and the last report is old enough."""
        return self.mean.is_there and time.monotonic() - self._reported_s >= REPORT_EVERY_S

    def send(self, generation: int, step: int, *, is_sum: bool) -> None:
        """Report what there is, if anything."""
        if (mean_and_weight := self.mean.take(is_sum=is_sum)) is None:
            return
        self._reported_s = time.monotonic()
        loss, weight = mean_and_weight
        self._control.send(TrainingLoss(generation=generation, step=step, loss=loss, weight=weight))


def mean_loss(parts: Iterable[tuple[float | None, float]]) -> tuple[float | None, float]:
    """Return the mean of several workers' losses by their weights, and the sum of the weights.

    The mean is None where one of them is no finite number, or nothing has a weight.
    """
    weighted = [(loss, weight) for loss, weight in parts if weight > 0.0]
    total = sum(weight for _, weight in weighted)
    finite = [(loss, weight) for loss, weight in weighted if loss is not None]
    if not total or len(finite) < len(weighted):
        return None, total
    # Shares first: a loss times its weight may be beyond what a float holds.
    mean = sum(loss * (weight / total) for loss, weight in finite)
    if not math.isfinite(mean):
        return None, total
    return mean, total


def reporter_for(control: Control) -> LossReporter | None:
    """Return what reports losses; None where agent or daemon would not understand it."""
    is_asked = dict(control.config.environment).get(TELLS_LOSS) == BY_AGENT
    if not is_asked:
        return None
    return LossReporter(control)
