"""Finds lines that another relay has told already, and lines that come late. Pure.

Two relays may follow one file, and each line of it comes twice; two equal lines of one relay are
two jobs. A line that comes late announces a job that a poll has shown: it would look like another.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Final

KEPT_S: Final = 5.0  # at least; a line has its second, so equal ones are close together
MOST_KEPT: Final = 5000  # different lines
WINDOW_S: Final = 60.0
LATE_S: Final = 1.0  # longer on its way than the fastest word; a poll has shown the job


class Repeats:
    """Lines of the last seconds, by who told them."""

    def __init__(self) -> None:
        self._now: defaultdict[str, Counter[bytes]] = defaultdict(Counter)
        self._before: defaultdict[str, Counter[bytes]] = defaultdict(Counter)
        self._since_s = -math.inf

    def is_repeated(self, line: str, teller: bytes, now_s: float) -> bool:
        """Record a line; return whether others have told it as often before."""
        if now_s - self._since_s > KEPT_S or len(self._now) >= MOST_KEPT:
            is_recent = now_s - self._since_s <= 2 * KEPT_S
            self._before = self._now if is_recent else defaultdict(Counter)
            self._now, self._since_s = defaultdict(Counter), now_s
        told = self._now[line]
        told[teller] += 1
        told = told + self._before.get(line, Counter())
        others = max((count for one, count in told.items() if one != teller), default=0)
        return told[teller] <= others


class Lateness:
    """How late the words of one relay are, whatever its clock and ours show."""

    def __init__(self) -> None:
        self._now_s = self._before_s = math.inf  # smallest difference of the clocks, in two windows
        self._since_s = -math.inf

    def is_late(self, sent_s: float, heard_s: float) -> bool:
        """Record a word; return whether it was much longer on its way than the fastest."""
        if heard_s - self._since_s > WINDOW_S:
            self._before_s, self._now_s, self._since_s = self._now_s, math.inf, heard_s
        self._now_s = min(self._now_s, heard_s - sent_s)
        return heard_s - sent_s - min(self._now_s, self._before_s) > LATE_S
