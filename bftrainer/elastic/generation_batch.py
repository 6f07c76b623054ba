"""The batch and the learning rate of each generation of a run, and the noise they depend on.

Brings together how the script cuts its batches (``batch``), what a generation is told, and the
measured noise of the gradients (``rates``). Used by ``run``.
"""

from __future__ import annotations

from collections.abc import Sequence

from bftrainer.elastic.batch import Cutting, DecidedBatch, Terms
from bftrainer.elastic.protocol import WorkerConfig
from bftrainer.elastic.rates import Rates


class Scaling:
    """Terms of a run's generations; ``batch`` is the loader's."""

    def __init__(self, cutting: Cutting, batch: int) -> None:
        self.rates = Rates(cutting.rule)
        self._cutting, self._batch = cutting, batch

    def terms(self, size: int, told: int) -> Terms:
        """Return the terms of a generation of ``size`` workers that is told this batch."""
        cutting, batch = self._cutting, self._batch
        factor = self.rates.factor(cutting.scale(batch, size, told))
        return cutting.terms(batch, size, factor, told)

    def factor(self, terms: Terms) -> float:
        """Return what the learning rate is multiplied by now."""
        return self.rates.factor(terms.scale)

    def measure(
        self, batch: int, passes: Sequence[int], squares: tuple[float, float], loss_scale: float
    ) -> None:
        """Learn from one step over ``batch`` samples; nothing if shares were unequal.

        Args:
            batch: of all workers together.
            passes: of each worker; with several, the squares are of sums.
            squares: of the gradients, as ``Rates.observe`` has them.
            loss_scale: of mixed precision, in these gradients.
        """
        size = len(passes)
        if size > 1 and batch % size == 0 and max(passes) == 1:
            of_all, of_mean = (square / loss_scale**2 for square in squares)
            self.rates.observe(size, of_all, of_mean, batch / size / self._batch)

    @property
    def noise_scale(self) -> float:
        """Noise scale of the gradients in samples; 0: not known, or nobody decides by it."""
        is_decided = isinstance(self._cutting.rule, DecidedBatch)
        return self.rates.noise_scale * self._batch if is_decided else 0.0


def decided_by(config: WorkerConfig) -> DecidedBatch | None:
    """Return what the submission says about the batch."""
    most, rule = config.batch_per_worker, config.lr_rule
    if not most:
        return None
    return DecidedBatch(max_per_worker=most, rule=rule)  # type: ignore[arg-type]  # checked there
