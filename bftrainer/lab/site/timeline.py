"""Backfill's view of the future on whole nodes: which are free from when until when.

A ``Timeline`` is built from the running jobs' limits; each planned job closes a part of it. As
Slurm does it (slurm.conf(5), ``SchedulerParameters``; measured on 22.05): running jobs that end
close together, within spans that begin with 30 s and double, end with the last of them; begin and
end of a plan are rounded down to slots of ``bf_resolution``, and a job whose limit reaches into a
closed slot does not fit; what may be preempted is no obstacle.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from bftrainer.lab.site.sharing import NodeSet

FIRST_SPAN_S = 30.0
Gap = tuple[float, float, NodeSet]  # free from, until, which nodes


def lowest(nodes: NodeSet, count: int) -> NodeSet:
    """Return the ``count`` lowest nodes of a set, or all of it."""
    higher = nodes
    for _ in range(count):
        higher &= higher - 1
        if not higher:
            break
    return nodes ^ higher


def positions(nodes: NodeSet) -> Iterator[int]:
    """Yield the numbers of the nodes, ascending."""
    while nodes:
        bit = nodes & -nodes
        yield bit.bit_length() - 1
        nodes ^= bit


def neighbours(nodes: NodeSet, count: int) -> NodeSet:
    """Choose as Slurm does without a topology: neighbours in the order of slurm.conf.

    Of the shortest row that is long enough; while there is none, all of the longest. At least
    ``count`` nodes have to be in ``nodes``.
    """
    choice = 0
    rows = sorted(_rows(nodes), key=itemgetter(1), reverse=True)
    for n, (row, length) in enumerate(rows):
        if length >= count:
            enough = [long_row for long_row in rows[n:] if long_row[1] >= count]
            tightest, _ = min(enough, key=itemgetter(1))
            return choice | lowest(tightest, count)
        choice |= row
        count -= length
    return choice


def union_of(sets: Iterable[NodeSet]) -> NodeSet:
    """Return all nodes of several sets."""
    every = 0
    for nodes in sets:
        every |= nodes
    return every


def _rows(nodes: NodeSet) -> list[tuple[NodeSet, int]]:
    rows = []
    while nodes:
        row = nodes & ~(nodes + (nodes & -nodes))
        rows.append((row, row.bit_count()))
        nodes ^= row
    return rows


class EarliestStart(NamedTuple):
    """When so many nodes are first free for a whole limit, and all that are then."""

    at_s: float
    nodes: NodeSet


@dataclass(frozen=True, slots=True)
class EndsTogether:
    """Running jobs whose limits strike so close together that backfill takes them for one."""

    bound_s: float  # jobs that end before belong to these or earlier ones
    last_s: float  # of their limits
    nodes: NodeSet  # of all these jobs


def ends_together(now_s: float, ends: Iterable[tuple[float, NodeSet]]) -> Iterator[EndsTogether]:
    """Put the ends of running jobs together, within spans that begin with 30 s and double.

    A limit that is overdue is taken to strike in a second.
    """
    in_order = sorted((max(end_s, now_s + 1.0), nodes) for end_s, nodes in ends)
    if not in_order:
        return
    first_s, _ = in_order[0]
    span_s = FIRST_SPAN_S
    mark_s = first_s // FIRST_SPAN_S * FIRST_SPAN_S + FIRST_SPAN_S
    together: NodeSet = 0
    last_s = first_s
    for end_s, nodes in in_order:
        if end_s > mark_s + span_s:  # never the first: the mark lies behind it
            yield EndsTogether(mark_s + span_s, last_s, together)
            together = 0
            while end_s > mark_s + span_s:
                span_s *= 2.0
        together |= nodes
        last_s = end_s
    yield EndsTogether(mark_s + span_s, last_s, together)


class Timeline:
    """Free gaps in order of their begin; a node may have several."""

    def __init__(
        self, now_s: float, free: NodeSet, ends: Iterable[tuple[float, NodeSet]], slot_s: float
    ) -> None:
        """Begin with nothing planned.

        Args:
            now_s: when the plan is made.
            free: nodes without an ordinary job now.
            ends: of running jobs: when their limit strikes, and their nodes.
            slot_s: bf_resolution.
        """
        self.now_s, self._slot_s = now_s, slot_s
        self._bounds_s: list[float] = []  # of the spans in which ends are one
        self._last_s: list[float] = []  # end in each
        self._gaps: list[Gap] = [(now_s, math.inf, free)]
        for span in ends_together(now_s, ends):
            self._bounds_s.append(span.bound_s)
            self._last_s.append(span.last_s)
            self._gaps.append((span.last_s, math.inf, span.nodes))

    def advance(self, now_s: float) -> None:
        """Let time pass in which no job started or ended."""
        self.now_s = now_s
        self._gaps = [(max(b, now_s), e, nodes) for b, e, nodes in self._gaps if e > now_s]

    def earliest(
        self, count: int, limit_s: float, among: NodeSet, _need: object = None
    ) -> EarliestStart | None:
        """Return the earliest start of a job on some of these nodes; None: there is none."""
        total, closing = 0, list[tuple[float, int]]()
        for begin_s, end_s, nodes in self._gaps:
            if end_s - begin_s <= limit_s:
                continue
            size = (nodes & among).bit_count()
            if not size:
                continue
            while closing and closing[0][0] <= begin_s:
                total -= heapq.heappop(closing)[1]
            total += size
            if end_s != math.inf:
                heapq.heappush(closing, (end_s - limit_s, size))
            if total >= count:
                return EarliestStart(begin_s, among & _union(self._gaps, begin_s, limit_s))
        return None

    def choose(self, start: EarliestStart, count: int, _need: object = None) -> NodeSet:
        """Return the nodes of a planned start."""
        return neighbours(start.nodes, count)

    def close(self, start_s: float, end_s: float, nodes: NodeSet) -> None:
        """Plan a job, in slots."""
        begin_s = max(self._slot(start_s), self.now_s)
        self.cut(begin_s, max(self._slot(end_s), begin_s + self._slot_s), nodes)

    def start(self, end_s: float, nodes: NodeSet, _need: object = None) -> None:
        """Let a job run from now until its limit."""
        at = min(bisect_right(self._bounds_s, end_s), len(self._last_s) - 1)
        if at >= 0:
            end_s = max(end_s, self._last_s[at])
        self.cut(self.now_s, end_s, nodes)

    def cut(self, begin_s: float, end_s: float, nodes: NodeSet) -> None:
        """Take nodes out of all gaps from one moment to another."""
        gaps, parts = [], []
        for gap in self._gaps:
            from_s, to_s, free = gap
            part = free & nodes
            if not part or to_s <= begin_s or from_s >= end_s:
                gaps.append(gap)
                continue
            if free != part:
                gaps.append((from_s, to_s, free ^ part))
            if from_s < begin_s:
                parts.append((from_s, begin_s, part))
            if end_s < to_s:
                parts.append((end_s, to_s, part))
        for gap in parts:
            insort(gaps, gap)
        self._gaps = gaps

    def open_now(self, limit_s: float) -> NodeSet:
        """Return the nodes that are free now for the whole limit."""
        return _union(self._gaps, self.now_s, limit_s)

    def _slot(self, at_s: float) -> float:
        if math.isinf(at_s):
            return at_s
        return math.floor(at_s / self._slot_s) * self._slot_s


def _union(gaps: Iterable[Gap], at_s: float, limit_s: float) -> NodeSet:
    union = 0
    for begin_s, end_s, nodes in gaps:
        if begin_s <= at_s and end_s - limit_s > at_s:
            union |= nodes
    return union
