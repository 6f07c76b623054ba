"""Finds the idle GPUs of partly used nodes, from the runs of a log and the nodes' GPUs. Pure.

At an instant a node is *partly used* if a job runs on it and it is not closed. Of each type it then
has as many idle GPUs as it has GPUs, less those of its jobs. What the log does not tell counts as
used: a job of which nothing is said uses all GPUs of its nodes, and a GPU without a type, or of a
type that the node lacks, counts as used of each type of the node.

The (job, node) pairs are expanded for some nodes at a time, as in ``jobs.used_nodes``, which bounds
the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import Times
from bftrainer.batch.traces.gpus import GpuTimes, gpu_times
from bftrainer.batch.traces.jobs import PAIRS_AT_ONCE, JobTable
from bftrainer.batch.traces.sinfo import ListedNode
from bftrainer.model.columns import counted

Counts = NDArray[np.int64]
ALL_GPUS = 1 << 30  # used by a job of which nothing is said: more than any node has
NOT_EXPORTED = "the log has no column AllocTRES"
NOT_TRACKED = (
    "no job of the log names a GPU, so that AccountingStorageTRES of slurm.conf probably lacks "
    "gres/gpu"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAccount:
    """The GPUs of a machine over time, and what their figures assume."""

    times: GpuTimes
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Events:
    """Begins and ends of runs on some nodes, ordered by node, then time."""

    node: Counts
    at_s: Times
    run: Counts
    sign: Counts  # 1: begins, -1: ends

    def of(self, keep: NDArray[np.bool_]) -> _Events:
        """Return those of some nodes; ``keep``: one for each event."""
        return _Events(
            node=self.node[keep], at_s=self.at_s[keep], run=self.run[keep], sign=self.sign[keep]
        )

    def sums(self, amount: Counts) -> Counts:
        """Return the sum over the runs on the node from each event on; ``amount``: of each run.

        A node's begins and ends cancel out, so that the sums of all nodes are one.
        """
        return np.cumsum(self.sign * amount[self.run])


def gpu_use(
    table: JobTable, nodes: Mapping[str, ListedNode], span_s: tuple[float, float]
) -> GpuAccount:
    """Return when GPUs of partly used nodes were idle.

    Args:
        table: with all nodes of ``nodes`` among its names.
        nodes: the machine's.
        span_s: of the observation.
    """
    kinds, installed = _installed(table, nodes)
    unclear = ""
    if not table.tells_gpus:
        unclear = NOT_EXPORTED
    elif not len(table.gpu_run):
        unclear = NOT_TRACKED
    machine = gpu_times(kinds=kinds, installed=installed, unclear=unclear)
    if unclear or not kinds:
        return GpuAccount(times=machine, notes=())
    search = _PartlyUsed(table, kinds, installed.astype(np.int64), span_s)
    node, kind, count, start_s, end_s = search.rows()
    times = gpu_times(
        kinds=kinds,
        installed=installed,
        node=node,
        kind=kind,
        count=count,
        start_s=start_s,
        end_s=end_s,
    )
    return GpuAccount(times=times, notes=tuple(search.notes()))


def _installed(
    table: JobTable, nodes: Mapping[str, ListedNode]
) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return the types of GPUs, and how many of each a node has (nodes x types)."""
    present: set[str] = set()
    for node in nodes.values():
        for kind, count in node.gpus.items():
            if count:
                present.add(kind)
    kinds = sorted(present)
    place = {kind: number for number, kind in enumerate(kinds)}
    installed = np.zeros((len(table.names), len(kinds)), dtype=np.int32)
    for name, node in nodes.items():
        for kind, count in node.gpus.items():
            if count:
                installed[table.names[name], place[kind]] = count
    return tuple(kinds), installed


class _PartlyUsed:
    """Finds the rows of ``GpuTimes``, for some nodes at a time."""

    def __init__(
        self,
        table: JobTable,
        kinds: tuple[str, ...],
        installed: Counts,
        span_s: tuple[float, float],
    ) -> None:
        self._table, self._kinds, self._installed = table, kinds, installed
        self._starts = np.clip(np.array(table.run_start_s), *span_s)
        self._ends = np.clip(np.array(table.run_end_s), *span_s)
        self._is_closed = np.array(table.is_closed, dtype=np.int64)
        self._is_unclear = np.array(table.is_unclear, dtype=bool) & (self._is_closed == 0)
        place = {kind.casefold(): number for number, kind in enumerate(kinds)}
        numbers = np.array([place.get(name.casefold(), -1) for name in table.gpu_kinds])
        self._kind_of = numbers[np.array(table.gpu_kind)]
        self._gpu_run, self._gpu_count = np.array(table.gpu_run), np.array(table.gpu_count)
        self._exceeded: set[int] = set()  # nodes
        self._is_untyped = False  # some GPU in use, on a node with several types
        # Equal rows of ``installed``: nodes with the same GPUs.
        self._offers, offer_of = np.unique(installed, axis=0, return_inverse=True)
        self._offer_of: Counts = offer_of.ravel()

    def rows(self) -> tuple[NDArray[Any], ...]:
        """Return node, kind, count, start and end of the rows, ordered by node, type and start."""
        empty = np.zeros(0, dtype=np.int64)
        parts: list[tuple[NDArray[Any], ...]] = [(empty, empty, empty, np.zeros(0), np.zeros(0))]
        for events in self._blocks():
            for offer in np.unique(self._offer_of[events.node]).tolist():
                parts.extend(self._of_offer(events.of(self._offer_of[events.node] == offer), offer))
        columns = list(map(np.concatenate, zip(*parts, strict=True)))
        node, kind, _, start_s, _ = columns
        order = np.lexsort((start_s, kind, node))
        return tuple(column[order] for column in columns)

    def notes(self) -> Iterator[str]:
        """Yield what the rows assume."""
        n_unclear = int(self._is_unclear.sum())
        if n_unclear:
            yield (
                f"of {counted(n_unclear, 'run')} the log says nothing of GPUs: all GPUs of their "
                "nodes count as used"
            )
        if self._is_untyped:
            yield (
                "GPUs in use whose type is not told, on nodes with several types, count as used of "
                "each type"
            )
        if self._exceeded:
            yield (
                f"jobs used more GPUs of {counted(len(self._exceeded), 'node')} than sinfo lists: "
                "GPUs changed, or a job used different numbers on its nodes"
            )

    def _blocks(self) -> Iterator[_Events]:
        """Yield the events on nodes with GPUs, those of some neighbouring nodes at a time."""
        table, n_nodes = self._table, len(self._installed)
        run, first = np.array(table.run_of), np.array(table.first)
        last = first + np.array(table.count)
        has_gpus = self._installed.sum(axis=1) > 0
        takes_time = self._starts[run] < self._ends[run]
        at_once = max(1, n_nodes * PAIRS_AT_ONCE // max(1, table.n_pairs))
        for low in range(0, n_nodes, at_once):
            in_block = (first < low + at_once) & (last > low) & takes_time
            begin = np.maximum(first[in_block], low)
            stop = np.minimum(last[in_block], low + at_once)
            count = stop - begin
            of_run = np.repeat(run[in_block], count)
            # The nodes of each range, one after the other.
            node = np.arange(len(of_run)) - np.repeat(np.cumsum(count) - count - begin, count)
            keep = has_gpus[node]
            of_run, node = of_run[keep], node[keep]
            at_s = np.concatenate((self._starts[of_run], self._ends[of_run]))
            node_twice = np.concatenate((node, node))  # at the start and at the end
            order = np.lexsort((at_s, node_twice))
            yield _Events(
                node=node_twice[order],
                at_s=at_s[order],
                run=np.concatenate((of_run, of_run))[order],
                sign=np.repeat([1, -1], len(of_run))[order],
            )

    def _of_offer(self, events: _Events, offer: int) -> Iterator[tuple[NDArray[Any], ...]]:
        """Yield the rows of each type of some nodes with the same GPUs."""
        installed = self._offers[offer]
        untyped = self._untyped(installed)
        if (installed > 0).sum() > 1:
            self._is_untyped |= bool(untyped[events.run].any())
        # The time from each event to the node's next one; its last event ends all runs.
        next_s = np.append(events.at_s[1:], 0.0)
        is_followed = np.append(events.node[1:] == events.node[:-1], np.False_)
        is_partly_used = is_followed & (events.at_s < next_s)
        is_partly_used &= events.sums(1 - self._is_closed) > 0
        is_partly_used &= events.sums(self._is_closed) == 0
        for kind in np.flatnonzero(installed).tolist():
            amount = untyped + self._typed(kind)
            amount[self._is_unclear] = ALL_GPUS
            in_use = events.sums(amount)
            is_exceeded = is_partly_used & (in_use > installed[kind]) & (in_use < ALL_GPUS)
            self._exceeded.update(events.node[is_exceeded].tolist())
            keep = np.flatnonzero(is_partly_used & (in_use < installed[kind]))
            free = installed[kind] - in_use[keep]
            yield _joined(events.node[keep], kind, free, events.at_s[keep], next_s[keep])

    def _typed(self, kind: int) -> Counts:
        """Return how many GPUs of a type each run uses on a node, among those with a type."""
        return self._of_runs(self._kind_of == kind)

    def _untyped(self, installed: Counts) -> Counts:
        """Return how many GPUs each run uses on a node that has no GPU of their type."""
        # A type that no node has, -1, stands for the last one here, which is put right.
        is_here = (installed[self._kind_of] > 0) & (self._kind_of >= 0)
        return self._of_runs(~is_here)

    def _of_runs(self, counted: NDArray[np.bool_]) -> Counts:
        of_run, count = self._gpu_run[counted], self._gpu_count[counted]
        return np.bincount(of_run, count, len(self._starts)).astype(np.int64)


def _joined(
    node: Counts, kind: int, free: Counts, start_s: Times, end_s: Times
) -> tuple[NDArray[Any], ...]:
    """Return rows of which each that goes on as the row before is joined to it."""
    is_first = np.ones(len(node), dtype=bool)
    is_first[1:] = (node[1:] != node[:-1]) | (start_s[1:] != end_s[:-1]) | (free[1:] != free[:-1])
    is_last = np.roll(is_first, -1)
    kinds = np.full(int(is_first.sum()), kind)
    return node[is_first], kinds, free[is_first], start_s[is_first], end_s[is_last]
