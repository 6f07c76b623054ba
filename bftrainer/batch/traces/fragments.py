"""Idle fragments of a machine's nodes, as columns, and the pool changes they make.

Readers and the generator build ``Fragments``; the simulator, the statistics and the
writers read them. A node is in the pool at t when one of its fragments has
start <= t < end. All times are seconds (of the epoch where the source knows it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bftrainer.batch.traces.gpus import GpuTimes
from bftrainer.batch.traces.text import TraceError

Times = NDArray[np.float64]
Indices = NDArray[np.int32]
HOUR_S = 3600.0
# A trace ends with its last event, or poll: so much of a time asked for may be missing at an end.
EDGE_SHARE, EDGE_MOST_S = 0.01, 600.0
WHOLE_ONLY = "of parts of nodes nobody knows whether a pending job could have used them"
Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChanges:
    """The events of a pool in order of time; changes at one instant are one event.

    The first is always the first look: the nodes found idle when the observation begins.
    The end of the observation is no event. ``joined`` and ``left`` hold node indices of
    all events one after the other; event k has those from ``offsets[k]`` to
    ``offsets[k + 1]``.
    """

    at_s: Times
    joined: Indices
    joined_offsets: NDArray[np.int64]
    left: Indices
    left_offsets: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.at_s)

    def __iter__(self) -> Iterator[tuple[float, Indices, Indices]]:
        """Yield (instant, nodes that joined, nodes that left) of each event."""
        for k, at_s in enumerate(self.at_s.tolist()):
            yield (
                at_s,
                self.joined[self.joined_offsets[k] : self.joined_offsets[k + 1]],
                self.left[self.left_offsets[k] : self.left_offsets[k + 1]],
            )

    def pool_sizes(self) -> NDArray[np.int64]:
        """Return the size of the pool after each event."""
        return np.cumsum(np.diff(self.joined_offsets) - np.diff(self.left_offsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedNodes:
    """How many nodes were in use, counted apart from the idle times, as a check of them."""

    at_s: Times  # ascending
    n_nodes: NDArray[np.int64]  # from then on

    def node_seconds(self, span_s: tuple[float, float]) -> float:
        """Return the integral over a time."""
        begin_s, end_s = span_s
        inside = (self.at_s > begin_s) & (self.at_s < end_s)
        begins_s = np.concatenate(([begin_s], self.at_s[inside]))
        lengths_s = np.diff(np.append(begins_s, end_s))
        place = np.searchsorted(self.at_s, begins_s, side="right")
        n_nodes = np.concatenate(([0], self.n_nodes))[place]
        return float((lengths_s * n_nodes).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments:
    """The idle times of nodes, ordered by node, then start; arrays are read-only."""

    names: tuple[str, ...]  # of all nodes, also those that were never idle
    node: Indices  # index into names
    start_s: Times
    end_s: Times
    observed_s: Times  # instants at which the pool was observed to change
    span_s: tuple[float, float]  # start and end of the observation
    is_unfillable: NDArray[np.bool_] | None = None  # None: the queue is not known
    notes: tuple[str, ...] = ()  # assumptions about what the source does not contain
    node_types: tuple[str, ...] | None = None  # of all nodes; None: all alike
    partitions: tuple[str, ...] | None = None  # or queues, of all nodes; None: not known, or one
    left_out: tuple[str, ...] = ()  # which time of the source is not in it, and why
    warnings: tuple[str, ...] = ()  # why the figures may be wrong
    used: UsedNodes | None = None  # by jobs, of all nodes; None: the source has idle times only
    occupied: UsedNodes | None = None  # used, or closed (down, drained)
    gpus: GpuTimes | None = None  # of the nodes; None: not known
    fillable_s: float = 0.0  # node-seconds of fillable idle time that ``unfillable`` left out

    def __len__(self) -> int:
        """Return the number of fragments."""
        return len(self.node)

    @property
    def length_s(self) -> Times:
        """The length of each fragment."""
        return self.end_s - self.start_s

    @property
    def duration_s(self) -> float:
        """The length of the observation."""
        begin_s, end_s = self.span_s
        return end_s - begin_s

    def node_seconds(self) -> float:
        """Return the integral of the pool's size over time (eq. 17, in node-seconds)."""
        return float(self.length_s.sum())

    def equivalent_nodes(self) -> float:
        """Return the number of always idle nodes with the same node-time (N_eq, eq. 18)."""
        return self.node_seconds() / self.duration_s

    def idle_share(self, n_nodes: int | None = None) -> float:
        """Return the idle share of the node-time of ``n_nodes`` nodes (default: all names)."""
        return self.equivalent_nodes() / (n_nodes or len(self.names))

    def used_node_seconds(self) -> float | None:
        """Return the node-time in which jobs ran; None: the source does not tell."""
        if self.used is None:
            return None
        return self.used.node_seconds(self.span_s)

    def closed_node_seconds(self) -> float:
        """Return the node-time in which nodes were known to be closed and no job ran."""
        if self.used is None or self.occupied is None:
            return 0.0
        return self.occupied.node_seconds(self.span_s) - self.used.node_seconds(self.span_s)

    def restrict(
        self,
        nodes: slice = slice(None),
        *,
        start_s: float | None = None,
        hours: float | None = None,
    ) -> Fragments:
        """Return the part of some nodes and of some time; fragments are cut at its ends.

        A time that the trace covers but for ``EDGE_SHARE`` at an end is cut there.

        Raises:
            TraceError: BFT-4005, there are no such nodes or the trace is shorter.
        """
        first, stop, step = nodes.indices(len(self.names))
        first_s, last_s = self.span_s
        begin_s = first_s if start_s is None else start_s
        end_s = last_s if hours is None else begin_s + hours * HOUR_S
        if step != 1 or stop <= first:
            bounds = ["" if bound is None else str(bound) for bound in (nodes.start, nodes.stop)]
            raise TraceError(
                "BFT-4005",
                f"There are no nodes {':'.join(bounds)} in a trace of {len(self.names)}.",
                "Choose first:stop with step 1, counting from 0.",
            )
        edge_s = min(EDGE_MOST_S, EDGE_SHARE * (end_s - begin_s))
        if begin_s >= first_s - edge_s and end_s <= last_s + edge_s:
            begin_s, end_s = max(begin_s, first_s), min(end_s, last_s)
        if not first_s <= begin_s < end_s <= last_s:
            raise TraceError(
                "BFT-4005",
                f"The trace covers {first_s:.0f} to {last_s:.0f} s, "
                f"not {begin_s:.0f} to {end_s:.0f} s.",
                "Choose --start and --hours inside the trace.",
            )
        keep = (self.node >= first) & (self.node < stop)
        keep &= (self.end_s > begin_s) & (self.start_s < end_s)
        is_observed = (self.observed_s >= begin_s) & (self.observed_s < end_s)
        part = self.where(keep)
        if (first, stop) != (0, len(self.names)):  # both are of the whole machine
            part = replace(part, used=None, occupied=None)
        return replace(
            part,
            names=self.names[first:stop],
            node_types=_labels(self.node_types, slice(first, stop)),
            partitions=_labels(self.partitions, slice(first, stop)),
            node=_frozen(part.node - first, np.int32),
            start_s=_frozen(np.maximum(part.start_s, begin_s), np.float64),
            end_s=_frozen(np.minimum(part.end_s, end_s), np.float64),
            observed_s=_frozen(self.observed_s[is_observed], np.float64),
            span_s=(begin_s, end_s),
            gpus=self._gpus_of(slice(first, stop), (begin_s, end_s)),
        )

    def _gpus_of(self, nodes: slice, span_s: tuple[float, float]) -> GpuTimes | None:
        if self.gpus is None:
            return None
        return self.gpus.restrict(nodes, span_s)

    def where(self, keep: NDArray[np.bool_]) -> Fragments:
        """Return the fragments for which ``keep`` holds, of the same nodes and time."""
        return replace(
            self,
            node=_frozen(self.node[keep], np.int32),
            start_s=_frozen(self.start_s[keep], np.float64),
            end_s=_frozen(self.end_s[keep], np.float64),
            is_unfillable=_flags(self.is_unfillable, keep),
        )

    def unfillable(self) -> Fragments:
        """Return the unfillable fragments; all of them if the queue is not known."""
        if self.is_unfillable is None:
            return self
        unfillable, gpus = self.where(self.is_unfillable), self.gpus
        if gpus is not None:
            gpus = gpus.without_rows(WHOLE_ONLY)
        return replace(
            unfillable,
            fillable_s=self.node_seconds() - unfillable.node_seconds(),
            gpus=gpus,
        )

    def pool_changes(self) -> PoolChanges:
        """Return the events; simultaneous changes are one, and none if they cancel out.

        A node whose fragment ends at the very instant its next one starts (two parts of
        one idle time) neither leaves nor joins.
        """
        begin_s, end_s = self.span_s
        follows = np.zeros(len(self), dtype=bool)  # starts where the node's last one ends
        follows[1:] = (self.node[1:] == self.node[:-1]) & (self.start_s[1:] == self.end_s[:-1])
        starts = ~follows
        ends = np.roll(~follows, -1)
        ends &= self.end_s < end_s
        at_s = np.unique(np.concatenate(([begin_s], self.start_s[starts], self.end_s[ends])))
        joins, join_offsets = _by_instant(at_s, self.start_s[starts], self.node[starts])
        leaves, leave_offsets = _by_instant(at_s, self.end_s[ends], self.node[ends])
        return PoolChanges(
            at_s=_frozen(at_s, np.float64),
            joined=joins,
            joined_offsets=join_offsets,
            left=leaves,
            left_offsets=leave_offsets,
        )


def make_fragments(
    *,
    names: Sequence[str],
    node: ArrayLike,
    start_s: ArrayLike,
    end_s: ArrayLike,
    span_s: tuple[float, float] | None = None,
    observed_s: ArrayLike | None = None,
    is_unfillable: ArrayLike | None = None,
    notes: Sequence[str] = (),
    node_types: Sequence[str] | None = None,
    partitions: Sequence[str] | None = None,
    source: str = "fragments",
) -> Fragments:
    """Check and order fragments; ``source`` and the row go into the error.

    Args:
        names: nodes, no two alike.
        node: indices into ``names``.
        start_s: of each fragment.
        end_s: of each fragment, later than its start.
        span_s: of the observation; by default from the first to the last instant named.
        observed_s: by default every start and end.
        is_unfillable: per fragment; None where it is not known.
        notes: what had to be assumed.
        node_types: of each node, such as gpu:a100:4; None where all are alike.
        partitions: of each node, or queues; None where they are not known.
        source: the file, for messages.

    Raises:
        TraceError: BFT-4007 with the row that is wrong.
    """
    nodes = _column(node, np.int64, source, "node")
    starts = _column(start_s, np.float64, source, "start")
    ends = _column(end_s, np.float64, source, "end")
    flags = _as_flags(is_unfillable)
    if len({len(column) for column in (nodes, starts, ends, flags) if column is not None}) > 1:
        raise _wrong(source, None, "its columns differ in length")
    _check_names(source, names, node_types, "types")
    _check_names(source, names, partitions, "partitions")
    _check_rows(source, names, nodes, starts, ends)
    order = np.lexsort((starts, nodes))
    nodes, starts, ends = nodes[order], starts[order], ends[order]
    _check_overlap(source, names, nodes, starts, ends, order)
    if observed_s is None:
        observed_s = np.concatenate((starts, ends))
    observed = np.unique(_column(observed_s, np.float64, source, "observed"))
    span_s = _checked_span(source, span_s, starts, ends, observed, order)
    return Fragments(
        names=tuple(names),
        node=_frozen(nodes, np.int32),
        start_s=_frozen(starts, np.float64),
        end_s=_frozen(ends, np.float64),
        observed_s=_frozen(observed, np.float64),
        span_s=span_s,
        is_unfillable=_flags(flags, order),
        notes=tuple(notes),
        node_types=_labels(node_types),
        partitions=_labels(partitions),
    )


def _labels(labels: Sequence[str] | None, nodes: slice = slice(None)) -> tuple[str, ...] | None:
    if labels is None:
        return None
    return tuple(labels[nodes])


def _as_flags(values: ArrayLike | None) -> NDArray[np.bool_] | None:
    if values is None:
        return None
    return np.asarray(values).astype(bool).ravel()


def _flags(flags: NDArray[np.bool_] | None, rows: NDArray[Any]) -> NDArray[np.bool_] | None:
    if flags is None:
        return None
    return _frozen(flags[rows], np.bool_)


def _check_names(
    source: str, names: Sequence[str], labels: Sequence[str] | None, what: str
) -> None:
    if not names or len(set(names)) != len(names):
        raise _wrong(source, None, "it names no node, or one node twice")
    if labels is not None and len(labels) != len(names):
        raise _wrong(source, None, f"it has {len(labels)} {what} for {len(names)} nodes")


def _check_rows(
    source: str,
    names: Sequence[str],
    nodes: NDArray[np.int64],
    starts: Times,
    ends: Times,
) -> None:
    bad = np.flatnonzero((nodes < 0) | (nodes >= len(names)))
    if len(bad):
        raise _wrong(source, int(bad[0]), f"there is no node {int(nodes[bad[0]])}")
    bad = np.flatnonzero(~(np.isfinite(starts) & np.isfinite(ends)) | ~(ends > starts))
    if len(bad):
        row = int(bad[0])
        raise _wrong(source, row, f"it ends at {ends[row]:g}, not after its start {starts[row]:g}")


def _check_overlap(
    source: str,
    names: Sequence[str],
    nodes: NDArray[np.int64],
    starts: Times,
    ends: Times,
    order: NDArray[np.intp],
) -> None:
    """Check that no node is idle twice at a time; ``order`` leads back to the rows."""
    overlap = np.flatnonzero((nodes[1:] == nodes[:-1]) & (starts[1:] < ends[:-1]))
    if len(overlap):
        row = int(order[overlap[0] + 1])
        raise _wrong(source, row, f"node {names[int(nodes[overlap[0]])]} is idle there twice")


def _checked_span(
    source: str,
    span_s: tuple[float, float] | None,
    starts: Times,
    ends: Times,
    observed: Times,
    order: NDArray[np.int64],
) -> tuple[float, float]:
    if span_s is None:
        instants = np.concatenate((observed, starts, ends))
        if not len(instants):
            raise _wrong(source, None, "it has no fragment and does not say what time it covers")
        span_s = float(instants.min()), float(instants.max())
    begin_s, end_s = span_s
    if not (np.isfinite(begin_s) and np.isfinite(end_s) and begin_s < end_s):
        raise _wrong(source, None, f"its observation ends at {end_s:g}, begins at {begin_s:g}")
    bad = np.flatnonzero((starts < begin_s) | (ends > end_s))
    if len(bad):
        raise _wrong(source, int(order[bad[0]]), "it lies outside the time of observation")
    if len(observed) and (observed[0] < begin_s or observed[-1] > end_s):
        raise _wrong(source, None, "an instant lies outside the time of observation")
    return span_s


def _by_instant(at_s: Times, when_s: Times, node: Indices) -> tuple[Indices, NDArray[np.int64]]:
    order = np.lexsort((node, when_s))
    counts = np.bincount(np.searchsorted(at_s, when_s), minlength=len(at_s))
    return _frozen(node[order], np.int32), _frozen(
        np.concatenate(([0], np.cumsum(counts))), np.int64
    )


def _column(values: ArrayLike, kind: type[Kind], source: str, name: str) -> NDArray[Kind]:
    try:
        column = np.asarray(values)
        if column.ndim != 1 or (column.size and column.dtype.kind not in "iufb"):
            raise _wrong(source, None, f"column {name} is not a list of numbers")
        if kind is np.int64 and column.dtype.kind == "f" and column.size:
            raise _wrong(source, None, f"column {name} has fractions")
        return column.astype(kind)
    except (ValueError, TypeError, OverflowError) as problem:
        raise _wrong(source, None, f"column {name} is not a list of numbers") from problem


def _frozen(values: NDArray[Any], kind: type[Kind]) -> NDArray[Kind]:
    column = np.ascontiguousarray(values, dtype=kind)
    if column.flags.writeable and column is values:
        column = column.copy()
    column.flags.writeable = False
    return column


def _wrong(source: str, row: int | None, what: str) -> TraceError:
    where = source if row is None else f"{source}, fragment {row}"
    return TraceError("BFT-4007", f"{where}: {what}.", "Correct the file or its export.")
