"""Jobs of an accounting log, and the idle time between them that no pending job could have used.

At an instant t a pending job (submitted, not started, its limit L known) *fits* when at
least as many nodes as it wants are idle and stay idle until t + L; every one of these
nodes is then fillable. This is evaluated whenever a node or such a job comes or goes, and
holds until the next such instant. A fragment is split where the result changes.

The readers of SWF, sacct and LSF fill a ``JobTable``; ``idle_fragments`` turns it into
``Fragments``. A node is idle while no job runs on it; ``mark_unfillable`` finds the idle time
that no pending job could have used.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import (
    Fragments,
    Indices,
    Times,
    UsedNodes,
    make_fragments,
)
from bftrainer.batch.traces.text import Progress, ReadOptions, TraceError, malformed
from bftrainer.batch.traces.window import Coverage, ramp_warnings, window_of

NOBODY_FITS_S = np.inf
CELLS_AT_ONCE = 4_000_000  # (fragment, interval) pairs at a time: bounds the memory
EVENTS_PER_REPORT = 20_000
MAX_PAIRS = 1_000_000_000  # (job, node) pairs: beyond any year of logs
PAIRS_AT_ONCE = 2_000_000  # expanded at a time: about 150 MB
MAX_NAMES = 1_000_000
SHORTEST_USE_S = 1.0  # of a partition's node: below it a sum is a rounding error
MAX_TIME_S = 1e11  # the year 5138: later times are invalid
NEVER_S = math.inf


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
    begin_s, until_s = trace.span_s
    is_there = (pending.from_s < pending.to_s) & (pending.to_s > begin_s)
    limited = np.flatnonzero(is_there & np.isfinite(pending.limit_s))
    moments = [trace.start_s, trace.end_s, pending.to_s[limited]]
    moments.append(np.maximum(pending.from_s[limited], begin_s))
    at_s = np.unique(np.concatenate([[begin_s], *moments]))
    at_s = at_s[at_s < until_s]
    queue = _Queue()
    ends: list[float] = []  # of the fragments idle now, ascending
    comes = _Agenda(at_s, np.maximum(pending.from_s[limited], begin_s), limited)
    goes = _Agenda(at_s, pending.to_s[limited], limited)
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
        if high <= low:  # at most instants: a slice of NumPy costs more than this question
            return []
        return list(self._items[low:high].tolist())


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
    for bound in bounds:
        high = min(int(bound) + 1, len(trace))
        if high > low:
            pieces.append(_cut_some(trace, at_s, least_s, low, high, first, counts))
            low = high
    if not pieces:
        empty = np.zeros(0)
        return np.zeros(0, dtype=np.int64), empty, empty, np.zeros(0, dtype=bool)
    node, start, end, flags = map(np.concatenate, zip(*pieces, strict=True))
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
    is_closed: array[int] = field(default_factory=lambda: array("b"))  # a run of no job
    partition_of: array[int] = field(default_factory=lambda: array("q"))  # run -> of partitions
    partitions: dict[str, int] = field(default_factory=dict)  # or queues; "": not known
    # GPUs that a run uses on each of its nodes, a row for each type.
    tells_gpus: bool = False
    gpu_run: array[int] = field(default_factory=lambda: array("q"))
    gpu_kind: array[int] = field(default_factory=lambda: array("q"))  # -> of gpu_kinds
    gpu_count: array[int] = field(default_factory=lambda: array("q"))
    gpu_kinds: dict[str, int] = field(default_factory=dict)  # "": the type is not told
    is_unclear: array[int] = field(default_factory=lambda: array("b"))  # how many GPUs a run uses
    run_of: array[int] = field(default_factory=lambda: array("q"))  # range -> run
    first: array[int] = field(default_factory=lambda: array("q"))  # range: first node
    count: array[int] = field(default_factory=lambda: array("q"))  # range: nodes
    wait_from_s: array[float] = field(default_factory=lambda: array("d"))
    wait_to_s: array[float] = field(default_factory=lambda: array("d"))
    wait_nodes: array[int] = field(default_factory=lambda: array("q"))
    wait_limit_s: array[float] = field(default_factory=lambda: array("d"))  # inf: not known
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
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
        self,
        start_s: float,
        end_s: float,
        ranges: Iterable[tuple[int, int]],
        line: int,
        *,
        partition: str = "",
        gpus: Mapping[str, int] | None = None,
    ) -> None:
        """Add a run on nodes; ``end_s`` is infinite for a running job.

        Args:
            start_s: when it began.
            end_s: when it ended.
            ranges: of its nodes: the first, and how many.
            line: of the log, for errors.
            partition: or queue.
            gpus: on each of its nodes, by type; None: the log does not tell.
        """
        self._check(start_s, line)
        if end_s != NEVER_S:
            self._check(end_s, line)
        run = len(self.run_start_s)
        self.run_start_s.append(start_s)
        self.run_end_s.append(end_s)
        self.is_closed.append(False)
        self.is_unclear.append(gpus is None)
        for kind, n_gpus in (gpus or {}).items():
            self.gpu_run.append(run)
            self.gpu_kind.append(self.gpu_kinds.setdefault(kind, len(self.gpu_kinds)))
            self.gpu_count.append(n_gpus)
        self.partition_of.append(self.partitions.setdefault(partition, len(self.partitions)))
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

    def add_closed(self, start_s: float, end_s: float, nodes: Iterable[int], line: int) -> None:
        """Add a time in which nodes were closed; an infinite ``end_s``: they still are."""
        self.add_run(start_s, end_s, neighbours(nodes), line)
        self.is_closed[-1] = True

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
            first, count = ranges.pop()
            ranges.append((first, count + 1))
        else:
            ranges.append((index, 1))
    return ranges


def idle_fragments(
    table: JobTable,
    coverage: Coverage,
    options: ReadOptions,
    *,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Fragments:
    """Return when each node ran no job, in the time for which the log is complete.

    Raises:
        TraceError: BFT-4008, there is no job with nodes in it, or no time is complete; BFT-4005,
            it is not of the time in ``options``.
    """
    window = window_of(coverage, options, table.path.name)
    span_s = window.span_s
    # Running jobs keep their nodes to the end.
    starts = np.clip(np.array(table.run_start_s), *span_s)
    ends = np.clip(np.array(table.run_end_s), *span_s)
    labels = list(table.names)
    if names is not None:
        labels = list(names)
    node, begin, end = _gaps(table, starts, ends, len(labels), span_s)
    is_job = ~np.array(table.is_closed, dtype=bool)
    by_jobs = used_nodes(table, starts, np.where(is_job, ends, starts), len(labels))
    occupied = by_jobs
    if not is_job.all():
        occupied = used_nodes(table, starts, ends, len(labels))
    trace = make_fragments(
        names=labels,
        node=node,
        start_s=begin,
        end_s=end,
        span_s=span_s,
        notes=table.notes,
        source=table.path.name,
    )
    _, until_s = span_s
    pending = Pending(
        from_s=np.array(table.wait_from_s),
        to_s=np.minimum(np.array(table.wait_to_s), until_s),
        n_nodes=np.array(table.wait_nodes, dtype=np.int64),
        limit_s=np.array(table.wait_limit_s),
    )
    warnings = (*table.warnings, *window.warnings, *ramp_warnings(by_jobs, span_s))
    marked = mark_unfillable(trace, pending, progress)
    return replace(
        marked,
        used=by_jobs,
        occupied=occupied,
        left_out=window.left_out,
        warnings=warnings,
        partitions=partitions_of(table, ends - starts, len(labels)),
    )


def need_runs(table: JobTable) -> None:
    """Check that some job ran on a node for some time.

    Raises:
        TraceError: BFT-4008, none did.
    """
    if not len(table.run_of):
        raise TraceError(
            "BFT-4008",
            f"{table.path.name}: no job in it ever ran on a node.",
            "Export finished jobs, with their nodes.",
        )


def partitions_of(
    table: JobTable, lengths_s: Times, n_nodes: int, *, fewest: int = 2
) -> tuple[str, ...] | None:
    """Return the partition, or queue, of each node: the one whose jobs ran there longest.

    Args:
        table: with the nodes of the runs and their partitions.
        lengths_s: of the runs, within the time observed.
        n_nodes: of the machine.
        fewest: partitions that the log has to name.

    Returns:
        "" for a node on which no job of a partition ran; None: the log names fewer.
    """
    numbers = {name: number for name, number in table.partitions.items() if name}
    if len(numbers) < fewest:
        return None
    run, first = np.array(table.run_of), np.array(table.first)
    last, of_run = first + np.array(table.count), np.array(table.partition_of)[run]
    longest_s, of_node = np.full(n_nodes, SHORTEST_USE_S), np.full(n_nodes, -1)
    for number in numbers.values():
        in_partition = of_run == number
        change_s = np.zeros(n_nodes + 1)
        np.add.at(change_s, first[in_partition], lengths_s[run[in_partition]])
        np.add.at(change_s, last[in_partition], -lengths_s[run[in_partition]])
        used_s = np.cumsum(change_s)[:n_nodes]
        is_longer = used_s > longest_s
        longest_s, of_node[is_longer] = np.maximum(longest_s, used_s), number
    label = dict(zip(numbers.values(), numbers, strict=True))
    return tuple(label.get(number, "") for number in of_node.tolist())


def used_nodes(table: JobTable, starts: Times, ends: Times, n_nodes: int) -> UsedNodes:
    """Count the nodes with at least one job, by when jobs come and go; see ``UsedNodes``.

    Args:
        table: with the nodes of the runs.
        starts: of the runs, within the time observed.
        ends: of the runs, within the time observed.
        n_nodes: of the machine.
    """
    run, first = np.array(table.run_of), np.array(table.first)
    last = first + np.array(table.count)
    at_once = max(1, n_nodes * PAIRS_AT_ONCE // max(1, table.n_pairs))
    opened, closed = [np.zeros(0)], [np.zeros(0)]
    for low in range(0, n_nodes, at_once):
        in_block = (first < low + at_once) & (last > low) & (starts[run] < ends[run])
        begin = np.maximum(first[in_block], low)
        stop = np.minimum(last[in_block], low + at_once)
        count = stop - begin
        of_run = np.repeat(run[in_block], count)
        node = np.arange(len(of_run)) - np.repeat(np.cumsum(count) - count - begin, count)
        when_s = np.concatenate((starts[of_run], ends[of_run]))
        change = np.repeat([1, -1], len(of_run))
        order = np.lexsort((-change, when_s, np.concatenate((node, node))))
        when_s, change = when_s[order], change[order]
        n_jobs = np.cumsum(change)
        opened.append(when_s[(n_jobs == 1) & (change == 1)])
        closed.append(when_s[n_jobs == 0])
    comes, goes = np.concatenate(opened), np.concatenate(closed)
    at_s, place = np.unique(np.concatenate((comes, goes)), return_inverse=True)
    changes = np.bincount(place[: len(comes)], minlength=len(at_s))
    changes = changes - np.bincount(place[len(comes) :], minlength=len(at_s))
    return UsedNodes(at_s=at_s, n_nodes=np.cumsum(changes))


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
        within = np.maximum(first[keep], low), np.minimum(last[keep], high)
        parts.append(_gaps_of(run[keep], within, (starts, ends), range(low, high), span_s))
    node, begin, end = map(np.concatenate, zip(*parts, strict=True))
    return node, begin, end


def _gaps_of(
    run: NDArray[np.int64],
    within: tuple[NDArray[np.int64], NDArray[np.int64]],
    times: tuple[Times, Times],
    nodes: range,
    span_s: tuple[float, float],
) -> tuple[Indices, Times, Times]:
    """Return the gaps of some nodes, whose (job, node) pairs must fit into memory.

    Args:
        run: of each range of nodes.
        within: the first nodes of the ranges, and what follows their last.
        times: starts and ends of all runs.
        nodes: the nodes.
        span_s: of the observation.
    """
    (first, last), (starts, ends) = within, times
    count = last - first
    run = np.repeat(run, count)
    node = np.arange(len(run)) - np.repeat(np.cumsum(count) - count - first, count)
    node = node.astype(np.int32)
    # Two sentinels of length 0 per node give the gaps before its first and after its last job.
    everyone = np.arange(nodes.start, nodes.stop, dtype=np.int32)
    begin_s, until_s = span_s
    opens, closes = np.full(len(nodes), begin_s), np.full(len(nodes), until_s)
    node = np.concatenate((node, everyone, everyone))
    begin = np.concatenate((starts[run], opens, closes))
    end = np.concatenate((ends[run], opens, closes))
    order = np.lexsort((begin, node))
    node, begin, end = node[order], begin[order], end[order]
    busy_until = _running_maximum(node, end, until_s)
    gap = np.flatnonzero((node[1:] == node[:-1]) & (begin[1:] > busy_until[:-1]))
    return node[gap], busy_until[gap], begin[gap + 1]


def _running_maximum(node: Indices, end: Times, until_s: float) -> NDArray[np.float64]:
    """Return the latest end so far of each node, at most ``until_s``."""
    values, rank = np.unique(end, return_inverse=True)
    lifted = rank.astype(np.int64) + node.astype(np.int64) * len(values)
    highest: NDArray[np.int64] = np.maximum.accumulate(lifted)
    latest: Times = values[highest - node.astype(np.int64) * len(values)]
    return np.minimum(latest, until_s)
