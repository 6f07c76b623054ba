"""The node time that pilots could have held if all starts and ends of jobs were known. Pure.

Bound by Slurm only, and by the reserve: while a job of the queue is blocked, a pilot starts at
the end of the first backfill cycle that began after its node fell idle, if a minute of it fits
what that cycle planned on the node; if no job is blocked, one tick of the main scheduler later.
It is gone in the moment in which the node's next job starts, and never asked for in vain.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from bftrainer.lab.site.jobs import SiteJob, positions
from bftrainer.lab.site.machine import Maintenance
from bftrainer.lab.site.scheduler import Opening

TICK_S = 2.0  # from a submission to the main scheduler's pass, in the mean
SHORTEST_S = 60.0  # limit that Slurm knows
Span = tuple[float, float]


def idle_spans(
    jobs: Iterable[SiteJob], n_nodes: int, window: Span, maintenance: Iterable[Maintenance] = ()
) -> list[list[Span]]:
    """Return when each node had no ordinary job and was not closed, within the window."""
    ends: list[list[Span]] = [[] for _ in range(n_nodes)]
    for closed in maintenance:
        for node in positions(closed.nodes):
            ends[node].append((closed.start_s, closed.end_s))
    for job in jobs:
        if job.start_s is None:
            continue
        span = (job.start_s, window[1] if job.end_s is None else job.end_s)
        for node in positions(job.nodes):
            ends[node].append(span)
    return [list(_between(sorted(spans), window)) for spans in ends]


def _between(busy: Sequence[Span], window: Span) -> Iterator[Span]:
    free_s, until_s = window
    for start_s, end_s in busy:
        if start_s > free_s:
            yield free_s, min(start_s, until_s)
        free_s = max(free_s, end_s)
        if free_s >= until_s:
            return
    yield free_s, until_s


class Oracle:
    """The times at which pilots could start on a machine."""

    def __init__(self, openings: Sequence[Opening], waits: Sequence[tuple[float, bool]]) -> None:
        """Take what the schedulers noted.

        Args:
            openings: cycles of backfill, as they came to preemptable jobs.
            waits: from when on a job of the queue was blocked, and from when none was.
        """
        self._openings = openings
        self._began_s = [opening.began_s for opening in openings]
        self._waits, self._waits_s = waits, [at_s for at_s, _ in waits]

    def node_s(self, idle: Sequence[Sequence[Span]], reserve: int) -> float:
        """Return the node-seconds held, ``reserve`` of the idle nodes being left alone."""
        usable = [s for node, spans in enumerate(idle) for s in self._held(1 << node, spans)]
        return _with_reserve(usable, [s for spans in idle for s in spans], reserve)

    def _held(self, node: int, spans: Sequence[Span]) -> Iterator[Span]:
        for from_s, until_s in spans:
            at_s = from_s
            while at_s < until_s:
                start_s, end_s = self._next(node, at_s)
                if end_s - start_s > SHORTEST_S and start_s < until_s:
                    yield start_s, min(end_s, until_s)
                    at_s = end_s
                else:
                    at_s = start_s

    def _next(self, node: int, at_s: float) -> Span:
        """Return when Slurm comes to a pilot next, and by when that has to be over."""
        open_s, close_s = self._unblocked(at_s)
        n = bisect_left(self._began_s, at_s)
        opening = self._openings[n] if n < len(self._openings) else None
        if opening is None or open_s + TICK_S < min(opening.at_s, close_s):
            return open_s + TICK_S, math.inf  # it goes on when somebody waits again
        planned = min((s for s, nodes in opening.planned if nodes & node), default=math.inf)
        return opening.at_s, planned

    def _unblocked(self, at_s: float) -> Span:
        """Return the first time from then on in which no job of the queue is blocked."""
        n = max(0, bisect_left(self._waits_s, at_s) - 1)
        for k in range(n, len(self._waits)):
            if not self._waits[k][1]:
                end_s = self._waits_s[k + 1] if k + 1 < len(self._waits) else math.inf
                if end_s > at_s:
                    return max(at_s, self._waits_s[k]), end_s
        return math.inf, math.inf


def _with_reserve(usable: Sequence[Span], idle: Sequence[Span], reserve: int) -> float:
    changes = [(at_s, step, 0) for span in usable for at_s, step in zip(span, (1, -1), strict=True)]
    changes += [(at_s, 0, step) for span in idle for at_s, step in zip(span, (1, -1), strict=True)]
    total, n_usable, n_idle, before_s = 0.0, 0, 0, 0.0
    for at_s, usable_step, idle_step in sorted(changes):
        total += (at_s - before_s) * max(0, min(n_usable, n_idle - reserve))
        n_usable, n_idle, before_s = n_usable + usable_step, n_idle + idle_step, at_s
    return total
