"""Which nodes are open when: backfill's table of what it has planned, in slots.

``next_plan`` asks it for each job in turn and closes what the job is planned on. The rounding is
Slurm's (slurm.conf(5), 22.05, ``bf_resolution``): begin and end of a plan are both rounded
down, and a plan has at least one slot. Pure.
"""

from __future__ import annotations

from bftrainer.decide.nodesets import NodeSet
from bftrainer.decide.waiting import slot_begin_s

ALL = -1  # nodes


class Slots:
    """A row of spans; in each other nodes are open."""

    def __init__(self, begin_s: float, slot_s: float) -> None:
        """Open everything from ``begin_s`` on."""
        self._slot_s = slot_s
        self._begins_s: list[float] = [begin_s]
        self._open: list[NodeSet] = [ALL]

    def open_during(
        self, from_s: float, until_s: float, among: NodeSet
    ) -> tuple[NodeSet, float | None]:
        """Say which of these nodes are open all the time, and when to ask next.

        That is the end of the span of ``from_s``, or of a later one, after which others are open;
        None: never.
        """
        open_, next_s = among, None
        for n, nodes in enumerate(self._open):
            end_s = self._end_s(n)
            if end_s <= from_s:
                continue
            has_next = next_s is None and n + 1 < len(self._open)
            if has_next and among & self._open[n + 1] & ~(open_ & nodes):
                next_s = end_s
            if self._begins_s[n] > until_s:
                break
            open_ &= nodes
        return open_, next_s

    def are_open(self, from_s: float, until_s: float, nodes: NodeSet) -> bool:
        """Whether nobody is planned on any of these nodes while a job of that time runs."""
        begin_s, end_s = self._rounded(from_s, until_s)
        return not any(
            nodes & ~open_
            for n, open_ in enumerate(self._open)
            if self._end_s(n) > begin_s and self._begins_s[n] < end_s
        )

    def close(self, from_s: float, until_s: float, nodes: NodeSet) -> None:
        """Plan a job."""
        begin_s, end_s = self._rounded(from_s, until_s)
        begin_s = max(begin_s, self._begins_s[0])
        end_s = max(end_s, begin_s + self._slot_s)
        first, beyond = self._cut(begin_s), self._cut(end_s)
        for n in range(first, beyond):
            self._open[n] &= ~nodes
        for n in range(len(self._open) - 1, 0, -1):  # spans that are alike are one
            if self._open[n] == self._open[n - 1]:
                del self._open[n], self._begins_s[n]

    def _rounded(self, from_s: float, until_s: float) -> tuple[float, float]:
        return slot_begin_s(from_s, self._slot_s), slot_begin_s(until_s, self._slot_s)

    def _end_s(self, n: int) -> float:
        return self._begins_s[n + 1] if n + 1 < len(self._begins_s) else float("inf")

    def _cut(self, at_s: float) -> int:
        """Make a span begin there; returns which. At the end of time none does."""
        for n, begin_s in enumerate(self._begins_s):
            if begin_s == at_s:
                return n
            if begin_s > at_s:
                self._begins_s.insert(n, at_s)
                self._open.insert(n, self._open[n - 1])
                return n
        if at_s == float("inf"):
            return len(self._begins_s)
        self._begins_s.append(at_s)
        self._open.append(self._open[-1])
        return len(self._begins_s) - 1
