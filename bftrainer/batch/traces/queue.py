"""Finds idle time that no pending job could have used.

At an instant t a pending job (submitted, not started, its limit L known) *fits* when at
least as many nodes as it wants are idle and stay idle until t + L; every one of these
nodes is then fillable. This is evaluated whenever a node or such a job comes or goes, and
holds until the next such instant. A fragment is split where the result changes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import Fragments, Times, make_fragments

Progress = Callable[[float], None]
NOBODY_FITS_S = np.inf
CELLS_AT_ONCE = 4_000_000  # (fragment, interval) pairs at a time: bounds the memory
EVENTS_PER_REPORT = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Times in the queue; ``limit_s`` is infinite where the limit is not known."""

    from_s: Times
    to_s: Times
    n_nodes: NDArray[np.int64]
    limit_s: Times


def mark_unfillable(
    trace: Fragments, pending: Pending, progress: Progress | None = None
) -> Fragments:
    """Return the trace with each fragment split into unfillable and fillable parts.

    Without a single pending job whose limit is known nothing is said about the queue.
    """
    if len(pending.from_s) and not np.isfinite(pending.limit_s).any():
        note = "no time limits of jobs in the source: unfillable or not is unknown"
        return replace(trace, notes=(*trace.notes, note))
    at_s, least_s = _least_limits(trace, pending, progress)
    node, start, end, flags = _cut(trace, at_s, least_s)
    return make_fragments(
        names=trace.names,
        node=node,
        start_s=start,
        end_s=end,
        observed_s=trace.observed_s,
        span_s=trace.span_s,
        is_unfillable=flags,
        notes=trace.notes,
    )


def _least_limits(
    trace: Fragments, pending: Pending, progress: Progress | None
) -> tuple[Times, Times]:
    """The instants, and the least limit of a job that fits then (infinite: none does).

    Whatever stays idle for that long is fillable.
    """
    begin_s = trace.span_s[0]
    is_there = (pending.from_s < pending.to_s) & (pending.to_s > begin_s)
    known = np.flatnonzero(is_there & np.isfinite(pending.limit_s))
    moments = [trace.start_s, trace.end_s, pending.to_s[known]]
    moments.append(np.maximum(pending.from_s[known], begin_s))
    at_s = np.unique(np.concatenate([[begin_s], *moments]))
    at_s = at_s[at_s < trace.span_s[1]]
    queue = _Queue()
    ends: list[float] = []  # of the fragments idle now, ascending
    comes = _Agenda(at_s, np.maximum(pending.from_s[known], begin_s), known)
    goes = _Agenda(at_s, pending.to_s[known], known)
    begins = _Agenda(at_s, trace.start_s, np.arange(len(trace)))
    least_s = np.full(len(at_s), NOBODY_FITS_S)
    for k, now_s in enumerate(at_s.tolist()):
        del ends[: bisect_left(ends, np.nextafter(now_s, np.inf))]
        for i in begins.at(k):
            insort(ends, float(trace.end_s[i]))
        for j in goes.at(k):
            queue.take(float(pending.limit_s[j]), int(pending.n_nodes[j]))
        for j in comes.at(k):
            queue.put(float(pending.limit_s[j]), int(pending.n_nodes[j]))
        least_s[k] = queue.least_that_fits(now_s, ends)
        if progress is not None and k % EVENTS_PER_REPORT == 0:
            progress(k / len(at_s))
    return at_s, least_s


class _Queue:
    """Pending jobs, counted by (limit, nodes)."""

    def __init__(self) -> None:
        self._count: Counter[tuple[float, int]] = Counter()
        self._sorted: list[tuple[float, int]] = []

    def put(self, limit_s: float, n_nodes: int) -> None:
        """Add a job."""
        if not self._count[limit_s, n_nodes]:
            insort(self._sorted, (limit_s, n_nodes))
        self._count[limit_s, n_nodes] += 1

    def take(self, limit_s: float, n_nodes: int) -> None:
        """Remove a job."""
        kind = (limit_s, n_nodes)
        self._count[kind] -= 1
        if not self._count[kind]:
            del self._count[kind]
            del self._sorted[bisect_left(self._sorted, kind)]

    def least_that_fits(self, now_s: float, ends: list[float]) -> float:
        """Return the least limit of a job for which enough nodes stay idle."""
        smallest = len(ends) + 1  # a longer job fits only if it is smaller than the shorter ones
        for limit_s, n_nodes in self._sorted:
            if n_nodes < smallest:
                smallest = n_nodes
                if len(ends) - bisect_left(ends, now_s + limit_s) >= n_nodes:
                    return limit_s
        return NOBODY_FITS_S


class _Agenda:
    """Items by instant; items of no instant are left out."""

    def __init__(self, at_s: Times, when_s: Times, items: NDArray[np.int64]) -> None:
        place = np.searchsorted(at_s, when_s)
        order = np.argsort(place, kind="stable")
        self._items = items[order]
        self._offsets = np.searchsorted(place[order], np.arange(len(at_s) + 1)).tolist()

    def at(self, k: int) -> list[int]:
        """Return the items of the k-th instant."""
        low, high = self._offsets[k], self._offsets[k + 1]
        return list(self._items[low:high].tolist()) if high > low else []


def _cut(
    trace: Fragments, at_s: Times, least_s: Times
) -> tuple[NDArray[np.int64], Times, Times, NDArray[np.bool_]]:
    """Return fragments cut where they change between unfillable and fillable."""
    # An instant that changes nothing needs no cut.
    differs = np.ones(len(at_s), dtype=bool)
    differs[1:] = np.isfinite(least_s[1:]) | np.isfinite(least_s[:-1])
    at_s, least_s = at_s[differs], least_s[differs]
    first = np.searchsorted(at_s, trace.start_s, side="right") - 1
    last = np.searchsorted(at_s, trace.end_s, side="left")
    counts = np.maximum(last - first, 1)
    pieces: list[tuple[NDArray[np.int64], Times, Times, NDArray[np.bool_]]] = []
    bounds = np.searchsorted(
        np.cumsum(counts), np.arange(CELLS_AT_ONCE, counts.sum() + CELLS_AT_ONCE, CELLS_AT_ONCE)
    )
    low = 0
    for high in (min(int(b) + 1, len(trace)) for b in bounds):
        if high > low:
            pieces.append(_cut_some(trace, at_s, least_s, low, high, first, counts))
            low = high
    if not pieces:
        empty = np.zeros(0)
        return np.zeros(0, dtype=np.int64), empty, empty, np.zeros(0, dtype=bool)
    node, start, end, flags = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return node, start, end, flags


def _cut_some(
    trace: Fragments,
    at_s: Times,
    least_s: Times,
    low: int,
    high: int,
    first: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.int64], Times, Times, NDArray[np.bool_]]:
    count = counts[low:high]
    owner = np.repeat(np.arange(low, high), count)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    interval = first[owner] + within
    begin = np.maximum(at_s[interval], trace.start_s[owner])
    is_fillable = trace.end_s[owner] >= at_s[interval] + least_s[interval]
    turns = np.ones(len(owner), dtype=bool)
    turns[1:] = (owner[1:] != owner[:-1]) | (is_fillable[1:] != is_fillable[:-1])
    at = np.flatnonzero(turns)
    owner, begin = owner[at], begin[at]
    end = trace.end_s[owner]
    inner = owner[1:] == owner[:-1]
    end[:-1][inner] = begin[1:][inner]
    return trace.node[owner].astype(np.int64), begin, end, ~is_fillable[at]
