"""How fast the run is: what ``Progress`` says, from the newest committed steps."""

from __future__ import annotations

import time
from collections import deque
from statistics import median

from bftrainer.elastic.membership import GenerationInfo
from bftrainer.elastic.protocol import Progress

PROGRESS_INTERVAL_S = 0.5


class Pace:
    """Durations of the last steps at the present size."""

    def __init__(self) -> None:
        self._step_s: deque[float] = deque(maxlen=20)
        self._last_s: float | None = None
        self._batch = 0
        self._reported_s = 0.0

    def note(self, batch: int) -> None:
        """Remember a committed step over ``batch`` samples."""
        now = time.monotonic()
        if self._last_s is not None:
            self._step_s.append(now - self._last_s)
        self._last_s = now
        self._batch = batch

    def forget(self) -> None:
        """Start again: the size changes."""
        self._last_s = None
        self._step_s.clear()

    def is_due(self) -> bool:
        """Whether there is something to report, and long enough after the last time."""
        return bool(self._step_s) and time.monotonic() - self._reported_s >= PROGRESS_INTERVAL_S

    def progress(self, info: GenerationInfo) -> Progress:
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
        )
