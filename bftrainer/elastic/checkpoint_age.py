"""When a step was committed here, for a worker that has to know how old a checkpoint is.

Committed steps with their times come in, one of them in a while is kept; asked by
``writer`` when it takes over from a worker whose clock it never saw.
"""

from __future__ import annotations

from collections import deque

PER_INTERVAL = 32  # how finely an interval is told apart
INTERVALS = 2  # an older one is overdue anyway


class Ages:
    """Times of committed steps, a few dozen of them at most."""

    def __init__(self, interval_s: float) -> None:
        self._apart_s = interval_s / PER_INTERVAL
        self._known: deque[tuple[int, float]] = deque(maxlen=PER_INTERVAL * INTERVALS)

    def note(self, step: int, now_s: float) -> None:
        """Remember a step committed now, unless one was remembered just before."""
        if not self._known or now_s - self._known[-1][1] >= self._apart_s:
            self._known.append((step, now_s))

    def committed_s(self, step: int) -> float | None:
        """Return when this step was committed at the earliest, None where that is not known."""
        # Steps may be taken back after a failure: of the same step the earlier one counts.
        known = [(at, -at_s) for at, at_s in list(self._known) if at <= step]
        return -max(known)[1] if known else None
