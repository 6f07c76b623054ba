"""The speed of a run, as reported in ``Progress``, from the last committed steps.

A step takes as long as its slowest worker, so step durations do not identify that worker. A
worker's own part of a step does: from the end of one reduction until it only waits in the next.
"""

from __future__ import annotations

import time
from collections import deque
from statistics import median
from typing import Protocol

from bftrainer.elastic.protocol import Progress

PROGRESS_INTERVAL_S = 0.5


class Where(Protocol):
    """A position in a run; ``membership.GenerationInfo`` is one."""

    @property
    def generation(self) -> int:
        """Number of the generation."""

    @property
    def step(self) -> int:
        """Steps done."""

    @property
    def epoch(self) -> int:
        """Passes over the data done."""

    @property
    def samples(self) -> int:
        """Samples used."""

    @property
    def share(self) -> int:
        """Samples of this worker in a full batch; 0: unknown."""


class StepDurations:
    """Durations of the last steps at the present size."""

    def __init__(self, total: int = 0) -> None:
        self._total = total  # samples of the whole run
        self._step_s: deque[float] = deque(maxlen=20)
        self._own_s: deque[float] = deque(maxlen=20)
        self._last_s: float | None = None
        self._batch = 0
        self._reported_s = 0.0

    def note(self, batch: int, waited_s: float | None = None) -> None:
        """Record a committed step over ``batch`` samples.

        Args:
            batch: of all workers together.
            waited_s: time this worker only waited for others; None: not measured (one worker,
                or not a full batch).
        """
        now = time.monotonic()
        if self._last_s is not None:
            self._step_s.append(now - self._last_s)
            if waited_s is not None:
                self._own_s.append(max(0.0, now - self._last_s - waited_s))
        self._last_s = now
        self._batch = batch

    def forget(self) -> None:
        """Clear the durations because the size changes."""
        self._last_s = None
        self._step_s.clear()
        self._own_s.clear()

    def is_due(self) -> bool:
        """Whether there is something to report and the last report is old enough."""
        return bool(self._step_s) and time.monotonic() - self._reported_s >= PROGRESS_INTERVAL_S

    def progress(self, info: Where, noise_scale: float = 0.0) -> Progress:
        """Return the report."""
        self._reported_s = time.monotonic()
        step_s = median(self._step_s)
        return Progress(
            generation=info.generation,
            step=info.step,
            epoch=info.epoch,
            samples=info.samples,
            step_s=step_s,
            samples_per_s=self._batch / step_s if step_s > 0 else 0.0,
            own_s=median(self._own_s) if self._own_s else 0.0,
            share=info.share,
            total=self._total,
            noise_scale=noise_scale,
        )
