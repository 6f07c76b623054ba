"""Times of recent commits, from which a worker derives the age of a checkpoint.

Keeps a subset of the committed steps. Used by ``writer`` when it takes over from another worker.
"""

from __future__ import annotations

from collections import deque

PER_INTERVAL = 32  # resolution
INTERVALS = 2  # an older checkpoint is overdue anyway


class Ages:
    """Times of committed steps, a few dozen of them at most."""

    def __init__(self, interval_s: float) -> None:
        self._apart_s = interval_s / PER_INTERVAL
        self._known: deque[tuple[int, float]] = deque(maxlen=PER_INTERVAL * INTERVALS)

    def note(self, step: int, now_s: float) -> None:
        """Record a step committed now, unless one was recorded just before."""
        if not self._known or now_s - self._known[-1][1] >= self._apart_s:
            self._known.append((step, now_s))

    def committed_s(self, step: int) -> float | None:
        """Return the earliest time at which this step was committed, None if unknown."""
        # A step may be repeated after a failure: its earlier commit counts.
        known = [(at, -at_s) for at, at_s in list(self._known) if at <= step]
        return -max(known)[1] if known else None
