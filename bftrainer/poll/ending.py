"""When a look shows the nodes of an ended job idle: a wait that is learnt from the looks.

A job's end is announced before its nodes are idle: the batch system cleans up first, and a
look that comes meanwhile shows them completing and was for nothing. How long that takes
is the site's (its epilogs) and the machine's. So the wait between an end and its look
grows with each look that came too early and shrinks with each that did not; the two
factors are in balance where about one look in four is too early. A node that is still
completing is looked at again, after twice as long each time. Pure, all times are of one
clock; called by ``bftrainer.polling``.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

LEAST_S = 0.3
MOST_S = 5.0
GROWS, SHRINKS = 1.2, 0.93


@dataclass(frozen=True, slots=True)
class _Visit:
    due_s: float
    next_wait_s: float  # where it comes too early
    is_first: bool  # since the end of the job


class Ending:
    """The fold over ends and looks."""

    def __init__(self, again_s: float, longest_s: float) -> None:
        """``again_s``, ``longest_s``: the first wait for a node still completing, and the last."""
        self.wait_s = LEAST_S
        self._again_s, self._longest_s = again_s, longest_s
        self._visits: dict[str, _Visit] = {}

    def ended(self, nodes: Iterable[str], now_s: float) -> float:
        """Take over the end of a job; return in how many seconds to look."""
        visit = _Visit(now_s + self.wait_s, self._again_s, is_first=True)
        for node in nodes:
            self._visits.setdefault(node, visit)
        return self.wait_s

    def saw(self, completing: AbstractSet[str], now_s: float) -> float | None:
        """Take over a look; return in how many seconds to come back, None: no need."""
        due = {n: v for n, v in self._visits.items() if v.due_s <= now_s}
        early = {n: v for n, v in due.items() if n in completing}
        if any(v.is_first for v in early.values()):
            self.wait_s = min(MOST_S, GROWS * self.wait_s)
        elif any(v.is_first for v in due.values()):
            self.wait_s = max(LEAST_S, SHRINKS * self.wait_s)
        for node in due:
            del self._visits[node]
        waits_s = {n: v.next_wait_s for n, v in early.items()}
        waits_s |= dict.fromkeys(completing - due.keys() - self._visits.keys(), self._again_s)
        for node, wait_s in waits_s.items():
            longer_s = min(2.0 * wait_s, self._longest_s)
            self._visits[node] = _Visit(now_s + wait_s, longer_s, is_first=False)
        return min(waits_s.values(), default=None)
