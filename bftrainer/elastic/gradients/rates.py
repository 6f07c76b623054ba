"""The batch and the learning rate of each generation of a run.

The factor on the learning rate follows from the batch and, for ``adascale``, from measured squares
of gradients. The estimates are part of the run's common state. The factor is applied around the
update only, so that schedulers see the rates they set. The gain is that of AdaScale (Johnson et
al., "AdaScale SGD: A User-Friendly Algorithm for Distributed Training", ICML 2020, section 3).

Its terms combine the script's batch rule (``batch``), the batch that it is told, and
the measured noise of the gradients. Used by ``run``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from bftrainer.elastic.script.batch import (
    Cutting,
    DecidedBatch,
    GlobalBatch,
    PerWorkerBatch,
    Terms,
)
from bftrainer.elastic.script.models import parts_of
from bftrainer.elastic.script.torch_compat import scale_of
from bftrainer.ground.protocol import WorkerConfig

KEY = "bft-rates"  # key of the estimates among the registered objects
SURE = 0.05  # weight of the observations from which on the noise scale is known


class GradientSquares(NamedTuple):
    """Squared norms of the gradients of one step."""

    of_all: float  # added up over the workers
    of_mean: float  # of the average over the workers


class Rates:
    """Terms of a run's generations, and for ``adascale`` the noise of the gradients."""

    def __init__(self, cutting: Cutting, batch: int) -> None:
        """Begin without estimates; ``batch`` is the loader's."""
        self._cutting, self._batch, rule = cutting, batch, cutting.rule
        self._rule = "none"
        if not isinstance(rule, GlobalBatch):
            self._rule = rule.rule
        self._base = 1  # how many of the loader's batches the learning rate is meant for
        if isinstance(rule, PerWorkerBatch):
            self._base = rule.base_workers
        self.noise = 0.0  # of the gradient of one batch of the loader's: sum of variances, averaged
        self.signal = 0.0  # square of the true gradient, averaged
        self.seen = 0.0  # weight of all observations in these averages, below 1

    @property
    def measures(self) -> bool:
        """Return whether squares of gradients are needed."""
        return self._rule == "adascale"

    @property
    def noise_scale(self) -> float:
        """Noise scale of the gradients in samples; 0: not known, or nobody decides by it.

        The ratio of noise to signal, the "simple noise scale" of McCandlish et al., "An Empirical
        Model of Large-Batch Training" (2018), eq. 2.9.
        """
        is_known = self.seen > SURE and self.signal > 0.0
        is_used = isinstance(self._cutting.rule, DecidedBatch)
        if not (is_known and is_used):
            return 0.0
        return self.noise / self.signal * self._batch

    def factor(self, scale: float) -> float:
        """Return what the learning rate is multiplied by at ``scale`` times its batch."""
        if self._rule == "none":
            return 1.0
        if self._rule == "linear":
            return scale
        if self._rule == "sqrt":
            return math.sqrt(scale)
        return self._gain(scale)

    def _gain(self, scale: float) -> float:
        cautious = min(1.0, scale)  # until there is an estimate
        if self.seen == 0.0:
            return cautious
        noise = self.noise / self._base
        total = noise / scale + self.signal
        gain = cautious
        if total > 0:
            gain = (noise + self.signal) / total
        return min(max(gain, cautious), max(1.0, scale))

    def observe(
        self, size: int, sum_of_squares: float, square_of_mean: float, share: float = 1.0
    ) -> None:
        """Update the estimates with one step.

        Args:
            size: number of workers, all with shares of equal size.
            sum_of_squares: over the workers, of the squared norms of their gradients.
            square_of_mean: squared norm of the averaged gradient.
            share: of a worker, in batches of the loader's.
        """
        if size < 2 or not (math.isfinite(sum_of_squares) and math.isfinite(square_of_mean)):
            return  # mixed precision skips such a step, too
        noise = max(0.0, (sum_of_squares - size * square_of_mean) / (size - 1))
        signal = max(0.0, square_of_mean - noise / size)
        noise *= share
        # The paper's decay; larger steps decay faster. Normalised by the weight so far, so
        # that the first observations count in full.
        decay = max(1.0 - size / 1000, 0.0)
        self.seen = decay * self.seen + (1 - decay)
        self.noise += (noise - self.noise) * (1 - decay) / self.seen
        self.signal += (signal - self.signal) * (1 - decay) / self.seen

    def terms(self, size: int, told: int) -> Terms:
        """Return the terms of a generation of ``size`` workers that is told this batch."""
        cutting, batch = self._cutting, self._batch
        factor = self.factor(cutting.scale(batch, size, told))
        return cutting.terms(batch, size, factor, told)

    def measure(
        self, batch: int, passes: Sequence[int], squares: GradientSquares, loss_scale: float
    ) -> None:
        """Learn from one step over ``batch`` samples; nothing if shares were unequal.

        Args:
            batch: of all workers together.
            passes: of each worker; with several, the squares are of sums.
            squares: of the gradients.
            loss_scale: of mixed precision, in these gradients.
        """
        size = len(passes)
        if size > 1 and batch % size == 0 and max(passes) == 1:
            of_all = squares.of_all / loss_scale**2
            of_mean = squares.of_mean / loss_scale**2
            self.observe(size, of_all, of_mean, batch / size / self._batch)

    def state_dict(self) -> dict[str, float]:
        """Return the estimates."""
        return {"noise": self.noise, "signal": self.signal, "seen": self.seen}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore estimates."""
        self.noise, self.signal, self.seen = state["noise"], state["signal"], state["seen"]


class Updater:
    """Applies the averaged gradients, with mixed precision and scaled learning rate."""

    def __init__(self, optimizer: Any, extra: dict[str, Any]) -> None:
        self._optimizer = optimizer
        self._scaler: torch.amp.GradScaler | None = None
        for thing in extra.values():
            if self._scaler is None and isinstance(thing, torch.amp.GradScaler):
                self._scaler = thing

    def apply(self, factor: float) -> None:
        """Update the parameters with ``factor`` times the learning rate."""
        if factor == 1.0:
            self._step()
            return
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        try:
            for group in groups:
                group["lr"] = group["lr"] * factor
            self._step()
        finally:
            # The same objects: a scheduler may keep a reference to a rate that is a tensor.
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def _step(self) -> None:
        if self._scaler is None:
            self._optimizer.step()
        else:
            # All members see the same averaged gradients, so all skip the same steps.
            for part in parts_of(self._optimizer):
                self._scaler.step(part)
            self._scaler.update()

    def forget(self) -> None:
        """Reset the scaler after a pass without an update."""
        scaler = self._scaler
        if scaler is not None and scaler.is_enabled() and scale_of(scaler) is not None:
            scaler.update(scaler.get_scale())  # an explicit scale ends the iteration

    @property
    def scale_tensor(self) -> torch.Tensor | None:
        """The loss scale where it is kept, to be used without waiting; None: losses have none."""
        scaler = self._scaler
        if scaler is None or not scaler.is_enabled():
            return None
        return scale_of(scaler)

    @property
    def scale(self) -> float:
        """The loss scale of mixed precision."""
        if self._scaler is None:
            return 1.0
        return float(self._scaler.get_scale())


def decided_by(config: WorkerConfig) -> DecidedBatch | None:
    """Return what the submission says about the batch."""
    max_per_worker, rule = config.batch_per_worker, config.lr_rule
    if not max_per_worker:
        return None
    return DecidedBatch(max_per_worker=max_per_worker, rule=rule)  # type: ignore[arg-type]  # checked there
