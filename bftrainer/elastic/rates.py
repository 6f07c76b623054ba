"""The learning rate of a run whose batch grows with its workers.

The size of the generation and the measured squares of gradients come in; the factor on
the optimizer's learning rate goes out. The estimates are part of the run's common
state. Applied around the update only, so that schedulers see what they set. The gain
is that of AdaScale (Johnson et al., "AdaScale SGD: A User-Friendly Algorithm for
Distributed Training", ICML 2020, section 3). Used by ``run``.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from bftrainer.elastic.batch import GlobalBatch, PerWorkerBatch
from bftrainer.elastic.registered_models import parts_of

KEY = "bft-rates"  # where the state is kept among the registered objects


class Rates:
    """Factor on the learning rate, and for ``adascale`` the noise of the gradients."""

    def __init__(self, rule: GlobalBatch | PerWorkerBatch) -> None:
        self._rule = rule if isinstance(rule, PerWorkerBatch) else None
        self.noise = 0.0  # of the gradient of one worker's batch: sum of variances, averaged
        self.signal = 0.0  # square of the true gradient, averaged
        self.seen = 0.0  # weight of all observations in these averages, below 1

    @property
    def measures(self) -> bool:
        """Whether squares of gradients are needed."""
        return self._rule is not None and self._rule.rule == "adascale"

    def factor(self, size: int) -> float:
        """Return what the learning rate is multiplied by at ``size`` workers."""
        if self._rule is None:
            return 1.0
        scale = size / self._rule.base_workers
        if self._rule.rule == "linear":
            return scale
        return math.sqrt(scale) if self._rule.rule == "sqrt" else self._gain(scale)

    def _gain(self, scale: float) -> float:
        cautious = min(1.0, scale)  # as long as nothing is known
        if self.seen == 0.0 or self._rule is None:
            return cautious
        noise = self.noise / self._rule.base_workers
        total = noise / scale + self.signal
        gain = (noise + self.signal) / total if total > 0 else cautious
        return min(max(gain, cautious), max(1.0, scale))

    def observe(self, size: int, sum_of_squares: float, square_of_mean: float) -> None:
        """Learn from one step: squares of all workers' gradients and of their mean.

        Only of steps in which all had a share of the same size.
        """
        if size < 2 or not (math.isfinite(sum_of_squares) and math.isfinite(square_of_mean)):
            return  # mixed precision skips such a step, too
        noise = max(0.0, (sum_of_squares - size * square_of_mean) / (size - 1))
        signal = max(0.0, square_of_mean - noise / size)
        # The paper's decay; larger steps forget faster. Divided by the weight so far, so
        # that the first observations count in full.
        decay = max(1.0 - size / 1000, 0.0)
        kept = decay * self.seen
        self.seen = kept + (1 - decay)
        self.noise += (noise - self.noise) * (1 - decay) / self.seen
        self.signal += (signal - self.signal) * (1 - decay) / self.seen

    def state_dict(self) -> dict[str, float]:
        """Return the estimates."""
        return {"noise": self.noise, "signal": self.signal, "seen": self.seen}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take over estimates."""
        self.noise, self.signal, self.seen = state["noise"], state["signal"], state["seen"]


class Updater:
    """Applies the averaged gradients: mixed precision and learning rate included."""

    def __init__(self, optimizer: Any, extra: dict[str, Any]) -> None:
        self._optimizer = optimizer
        scalers = [thing for thing in extra.values() if isinstance(thing, torch.amp.GradScaler)]
        self._scaler = scalers[0] if scalers else None

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
            # The very objects: a scheduler may hold on to a tensor of them.
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
        """No update follows this pass: the scaler may look at the gradients again."""
        scaler = self._scaler
        if scaler is not None and scaler.is_enabled() and scaler._scale is not None:  # noqa: SLF001
            scaler.update(scaler.get_scale())  # a scale of its own ends the iteration

    @property
    def scale(self) -> float:
        """What the gradients are multiplied by, by mixed precision."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())
