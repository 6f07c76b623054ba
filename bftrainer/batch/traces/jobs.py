"""Jobs of an accounting log, as columns, and the idle fragments between them.

The readers of SWF, sacct and LSF fill a ``JobTable``; ``idle_fragments`` turns it into
``Fragments``. A node is idle while no job runs on it; which idle time no pending job
could have used is worked out in ``queue``.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.errors import TraceError, malformed
from bftrainer.batch.traces.fragments import Fragments, Indices, Times, make_fragments
from bftrainer.batch.traces.queue import Pending, mark_unfillable

Progress = Callable[[float], None]
MAX_PAIRS = 1_000_000_000  # (job, node) pairs: beyond any year of logs
PAIRS_AT_ONCE = 2_000_000  # expanded at a time: about 150 MB
MAX_NAMES = 1_000_000
MAX_TIME_S = 1e11  # the year 5138: later times are invalid
NEVER_S = math.inf


@dataclass(slots=True, kw_only=True)
class JobTable:
    """Jobs in columns, a few bytes per job and node.

    ``runs`` are times on nodes, ``waits`` times in the queue; a job that was requeued has
    several of both. Nodes are ranges of indices, because a job's are mostly neighbours.
    """

    path: Path
    names: dict[str, int] = field(default_factory=dict)
    run_start_s: array[float] = field(default_factory=lambda: array("d"))
    run_end_s: array[float] = field(default_factory=lambda: array("d"))
    run_of: array[int] = field(default_factory=lambda: array("q"))  # range -> run
    first: array[int] = field(default_factory=lambda: array("q"))  # range: first node
    count: array[int] = field(default_factory=lambda: array("q"))  # range: nodes
    wait_from_s: array[float] = field(default_factory=lambda: array("d"))
    wait_to_s: array[float] = field(default_factory=lambda: array("d"))
    wait_nodes: array[int] = field(default_factory=lambda: array("q"))
    wait_limit_s: array[float] = field(default_factory=lambda: array("d"))  # inf: not known
    notes: list[str] = field(default_factory=list)
    n_pairs: int = 0

    def index(self, name: str) -> int:
        """Return the index of a node, a new one for a new name.

        Raises:
            ValueError: there are more nodes than any machine has.
        """
        if len(self.names) >= MAX_NAMES and name not in self.names:
            raise ValueError(f"more than {MAX_NAMES:,} nodes")
        return self.names.setdefault(name, len(self.names))

    def add_run(
        self, start_s: float, end_s: float, ranges: Iterable[tuple[int, int]], line: int
    ) -> None:
        """Add a run on nodes; ``end_s`` is infinite for a running job."""
        self._check(start_s, line)
        if end_s != NEVER_S:
            self._check(end_s, line)
        run = len(self.run_start_s)
        self.run_start_s.append(start_s)
        self.run_end_s.append(end_s)
        for first, count in ranges:
            self.run_of.append(run)
            self.first.append(first)
            self.count.append(count)
            self.n_pairs += count
        if self.n_pairs > MAX_PAIRS:
            raise TraceError(
                "BFT-4001",
                f"{self.path.name}:{line}: more than {MAX_PAIRS:,} nodes of jobs.",
                "Export a shorter time.",
            )

    def add_wait(
        self, from_s: float, to_s: float, n_nodes: int, limit_s: float | None, line: int
    ) -> None:
        """Add a wait in the queue; ``to_s`` is infinite for a pending job."""
        self._check(from_s, line)
        if to_s > from_s and n_nodes > 0:
            self.wait_from_s.append(from_s)
            self.wait_to_s.append(to_s)
            self.wait_nodes.append(n_nodes)
            self.wait_limit_s.append(NEVER_S if limit_s is None else limit_s)

    def _check(self, at_s: float, line: int) -> None:
        if not abs(at_s) < MAX_TIME_S:
            raise malformed(self.path, line, f"{at_s:g} is not a time of a job")


def neighbours(indices: Iterable[int]) -> list[tuple[int, int]]:
    """Return node indices as ranges (first, count); a node named twice counts once."""
    ranges: list[tuple[int, int]] = []
    for index in sorted(set(indices)):
        if ranges and sum(ranges[-1]) == index:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((index, 1))
    return ranges


def idle_fragments(
    table: JobTable, *, names: Sequence[str] | None = None, progress: Progress | None = None
) -> Fragments:
    """Return when each node ran no job, from the first start to the last known instant.

    Raises:
        TraceError: BFT-4008, there is no job with nodes in it.
    """
    starts = np.array(table.run_start_s)
    ends = np.array(table.run_end_s)
    if not len(table.run_of):
        raise TraceError(
            "BFT-4008",
            f"{table.path.name}: no job in it ever ran on a node.",
            "Export finished jobs, with their nodes.",
        )
    known = np.concatenate((starts, ends[np.isfinite(ends)]))
    span_s = (float(starts.min()), float(known.max()))
    if not span_s[1] > span_s[0]:
        raise TraceError(
            "BFT-4008", f"{table.path.name}: its jobs take no time.", "Export a longer time."
        )
    ends = np.minimum(ends, span_s[1])  # running jobs keep their nodes to the end
    labels = list(table.names) if names is None else list(names)
    node, begin, end = _gaps(table, starts, ends, len(labels), span_s)
    trace = make_fragments(
        names=labels,
        node=node,
        start_s=begin,
        end_s=end,
        span_s=span_s,
        notes=table.notes,
        source=table.path.name,
    )
    pending = Pending(
        from_s=np.array(table.wait_from_s),
        to_s=np.minimum(np.array(table.wait_to_s), span_s[1]),
        n_nodes=np.array(table.wait_nodes, dtype=np.int64),
        limit_s=np.array(table.wait_limit_s),
    )
    return mark_unfillable(trace, pending, progress)


def _gaps(
    table: JobTable, starts: Times, ends: Times, n_nodes: int, span_s: tuple[float, float]
) -> tuple[Indices, Times, Times]:
    """Nodes, starts and ends of the times without a job."""
    run = np.array(table.run_of)
    first = np.array(table.first)
    last = first + np.array(table.count)
    at_once = max(1, n_nodes * PAIRS_AT_ONCE // max(1, table.n_pairs))
    parts = []
    for low in range(0, n_nodes, at_once):
        high = min(low + at_once, n_nodes)
        keep = (first < high) & (last > low)
        part = _Busy(
            run=run[keep],
            first=np.maximum(first[keep], low),
            last=np.minimum(last[keep], high),
        )
        parts.append(_gaps_of(part, starts, ends, range(low, high), span_s))
    node, begin, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    return node, begin, end


@dataclass(frozen=True, slots=True, kw_only=True)
class _Busy:
    """Ranges of nodes and their runs."""

    run: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]  # exclusive


def _gaps_of(
    busy: _Busy, starts: Times, ends: Times, nodes: range, span_s: tuple[float, float]
) -> tuple[Indices, Times, Times]:
    """Return the gaps of some nodes, whose (job, node) pairs must fit into memory."""
    count = busy.last - busy.first
    run = np.repeat(busy.run, count)
    within = np.arange(len(run)) - np.repeat(np.cumsum(count) - count, count)
    node = (np.repeat(busy.first, count) + within).astype(np.int32)
    # Two sentinels of length 0 per node give the gaps before its first and after its last job.
    everyone = np.arange(nodes.start, nodes.stop, dtype=np.int32)
    opens, closes = np.full(len(nodes), span_s[0]), np.full(len(nodes), span_s[1])
    node = np.concatenate((node, everyone, everyone))
    begin = np.concatenate((starts[run], opens, closes))
    end = np.concatenate((ends[run], opens, closes))
    order = np.lexsort((begin, node))
    node, begin, end = node[order], begin[order], end[order]
    busy_until = _running_maximum(node, end, span_s)
    gap = np.flatnonzero((node[1:] == node[:-1]) & (begin[1:] > busy_until[:-1]))
    return node[gap], busy_until[gap], begin[gap + 1]


def _running_maximum(node: Indices, end: Times, span_s: tuple[float, float]) -> NDArray[np.float64]:
    """Return the latest end so far of each node."""
    at = np.unique(end, return_inverse=True)
    values, rank = at[0], at[1].astype(np.int64)
    lifted = rank + node.astype(np.int64) * len(values)
    highest: NDArray[np.int64] = np.maximum.accumulate(lifted)
    latest: Times = values[highest - node.astype(np.int64) * len(values)]
    return np.minimum(latest, span_s[1])
