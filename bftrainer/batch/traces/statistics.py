"""Statistics of a trace: the paper's Table 1, Fig. 1 and Fig. 6, and further ones.

``bftrainer trace info`` prints them, ``bftrainer.lab.trace_plot`` draws them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import HOUR_S, Fragments, PoolChanges, Times, make_fragments
from bftrainer.batch.traces.gpu_pools import IdleGpus, idle_gpus

SHORT_S = 600.0  # the paper's "less than 10 minutes"
CDF_MINUTES = (0.5, 1, 70 / 60, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 50, 60, 90, 120, 240, 1440)
BAR_HOURS = 12.0  # Fig. 6
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
DAY_S = 24 * HOUR_S
IDLE_QUANTILES = (0.1, 0.5, 0.9)
UP_TO_S = (60.0, 300.0, 600.0, 1800.0, 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTimeSums:
    """What became of a machine's node-time, in node-hours; the parts add up to the whole.

    ``used_h`` is counted from when jobs came and went, ``idle_h`` from the gaps between them, so
    their sum is a check of both.
    """

    n_nodes: int
    hours: float
    idle_h: float
    used_h: float | None  # None: the source has idle times only
    fillable_h: float  # idle, but left out because a pending job could have used it
    closed_h: float  # down or drained, or of nodes that the source does not name

    def accounted_share(self) -> float | None:
        """Return the sum of the parts over the whole, 1 if all is right; None: not known."""
        if self.used_h is None:
            return None
        parts_h = self.used_h + self.idle_h + self.fillable_h + self.closed_h
        return parts_h / (self.n_nodes * self.hours)

    def sentence(self) -> str:
        """Return the check in words."""
        whole_h = self.n_nodes * self.hours
        hours = {
            "used": self.used_h,
            "idle": self.idle_h,
            "fillable": self.fillable_h or None,
            "closed": self.closed_h,
        }
        parts = [f"{name} {h / whole_h:.2%}" for name, h in hours.items() if h is not None]
        whole = f"of {self.n_nodes:,} nodes in {self.hours:,.1f} h"
        share = self.accounted_share()
        if share is None:
            return f"{', '.join(parts)} {whole}; the trace does not tell what was used"
        return f"{' + '.join(parts)} = {share:.2%} {whole}"


def node_time(trace: Fragments, n_nodes: int | None = None) -> NodeTimeSums:
    """Return what became of the node-time of ``n_nodes`` nodes (default: all names)."""
    used_h, used_s = None, trace.used_node_seconds()
    if used_s is not None:
        used_h = used_s / HOUR_S
    machine = n_nodes or len(trace.names)
    hours = trace.duration_s / HOUR_S
    return NodeTimeSums(
        n_nodes=machine,
        hours=hours,
        idle_h=trace.node_seconds() / HOUR_S,
        used_h=used_h,
        fillable_h=trace.fillable_s / HOUR_S,
        closed_h=(machine - len(trace.names)) * hours + trace.closed_node_seconds() / HOUR_S,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStatistics:
    """Numbers of one trace; rates are per hour of observation."""

    n_nodes: int
    hours: float
    fragments: int  # uninterrupted idle times of a node
    parts: int  # of them, that are fillable or unfillable as a whole: what a file has as rows
    node_hours: float
    eq_nodes: float  # N_eq
    idle_share: float
    unfillable_share: float | None  # of the idle node-time
    events: int  # with the first observation
    events_per_hour: float
    joins_per_hour: float  # events in which at least one node joined
    leaves_per_hour: float
    increases_per_hour: float  # events after which the pool is larger (Table 1: INC/h)
    decreases_per_hour: float
    short_share: float  # of the fragments, under ten minutes
    short_time_share: float  # of the node-time, in those
    length_s: dict[str, float]  # shortest, mean and quantiles
    event_gap_s: dict[str, float]
    pool_nodes: dict[str, float]  # quantiles over time
    node_time: NodeTimeSums
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    gpus: IdleGpus | None = None  # of the machine, and when they are idle; null: not known


def statistics(trace: Fragments) -> TraceStatistics:
    """Return the numbers of a trace."""
    changes = trace.pool_changes()
    hours = trace.duration_s / HOUR_S
    length_s = fragment_lengths_s(trace)
    joins = np.diff(changes.joined_offsets)[1:]  # the first observation is no change
    leaves = np.diff(changes.left_offsets)[1:]
    is_short = length_s < SHORT_S
    total_s = trace.node_seconds()
    return TraceStatistics(
        n_nodes=len(trace.names),
        hours=hours,
        fragments=len(length_s),
        parts=len(trace),
        node_hours=total_s / HOUR_S,
        eq_nodes=trace.equivalent_nodes(),
        idle_share=trace.idle_share(),
        unfillable_share=_unfillable_share(trace),
        events=len(changes),
        events_per_hour=(len(changes) - 1) / hours,
        joins_per_hour=int((joins > 0).sum()) / hours,
        leaves_per_hour=int((leaves > 0).sum()) / hours,
        increases_per_hour=int((joins > leaves).sum()) / hours,
        decreases_per_hour=int((joins < leaves).sum()) / hours,
        short_share=float(is_short.mean()) if len(length_s) else 0.0,
        short_time_share=float(length_s[is_short].sum()) / total_s if total_s else 0.0,
        length_s=_spread(length_s),
        event_gap_s=_spread(np.diff(changes.at_s)),
        pool_nodes=_pool_quantiles(trace, changes),
        node_time=node_time(trace),
        notes=(*trace.left_out, *trace.notes),
        warnings=trace.warnings,
        gpus=idle_gpus(trace),
    )


def fragment_cdf(trace: Fragments) -> list[dict[str, float]]:
    """Return Fig. 1: share of fragments, and of node-time, in fragments up to a length."""
    length_s = np.sort(fragment_lengths_s(trace))
    time_s = np.concatenate(([0.0], np.cumsum(length_s)))
    rows = []
    for minutes in CDF_MINUTES:
        count = int(np.searchsorted(length_s, 60.0 * minutes, side="right"))
        rows.append(
            {
                "minutes": round(float(minutes), 4),
                "by_count": count / max(1, len(length_s)),
                "by_node_time": float(time_s[count] / time_s[-1]) if time_s[-1] else 0.0,
            }
        )
    return rows


def bars(trace: Fragments, changes: PoolChanges | None = None) -> list[dict[str, float]]:
    """Return Fig. 6: events, and the share of nodes idle, in each twelve hours."""
    changes = changes or trace.pool_changes()
    begin_s, end_s = trace.span_s
    edges = np.append(np.arange(begin_s, end_s, BAR_HOURS * HOUR_S), end_s)
    counts = np.histogram(changes.at_s[1:], edges)[0]
    integral = np.interp(edges, *_integral(trace, changes))
    rows = []
    for k in range(len(edges) - 1):
        width_s = edges[k + 1] - edges[k]
        idle = (integral[k + 1] - integral[k]) / width_s / len(trace.names)
        rows.append(
            {
                "from_hour": float(edges[k] - begin_s) / HOUR_S,
                "to_hour": float(edges[k + 1] - begin_s) / HOUR_S,
                "events": int(counts[k]),
                "idle_share": float(idle),
            }
        )
    return rows


def _integral(trace: Fragments, changes: PoolChanges) -> tuple[Times, Times]:
    """Return the idle node-seconds up to each event and to the end."""
    at_s = np.append(changes.at_s, trace.span_s[1])
    so_far = np.concatenate(([0.0], np.cumsum(changes.pool_sizes() * np.diff(at_s))))
    return at_s, so_far


def _spread(values: NDArray[np.float64]) -> dict[str, float]:
    if not len(values):
        return {}
    least_and_mean = {"least": float(values.min()), "mean": float(values.mean())}
    return least_and_mean | _quantiles(values, QUANTILES)


def _quantiles(values: NDArray[np.float64], shares: Iterable[float]) -> dict[str, float]:
    return {f"p{round(100 * share)}": float(np.quantile(values, share)) for share in shares}


def _pool_quantiles(trace: Fragments, changes: PoolChanges) -> dict[str, float]:
    """Return the quantiles of the pool's size over time."""
    sizes = changes.pool_sizes()
    for_s = np.diff(np.append(changes.at_s, trace.span_s[1]))
    order = np.argsort(sizes, kind="stable")
    share = np.cumsum(for_s[order]) / for_s.sum()
    last = len(order) - 1
    quantiles = {
        f"p{round(100 * q)}": float(sizes[order[min(int(np.searchsorted(share, q)), last)]])
        for q in QUANTILES
    }
    return {"least": float(sizes.min()), **quantiles, "most": float(sizes.max())}


def as_document(trace: Fragments, source: str) -> dict[str, Any]:
    """Return everything as one JSON document."""
    numbers = statistics(trace)
    return {
        "schema": "bftrainer/trace-info/1",
        "file": source,
        "span_s": list(trace.span_s),
        **asdict(numbers),
        "fig1": fragment_cdf(trace),
        "fig6": bars(trace),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthShare:
    """The share of fragments below a length, and their share of the idle time."""

    under_s: float
    of_fragments: float
    of_node_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTime:
    """The idle time of a machine."""

    n_nodes: int  # of the machine
    n_named: int  # of the trace
    hours: float
    idle_share: float  # of the machine's node-time
    node_time: NodeTimeSums
    unfillable_share: float | None  # of the idle node-time; None: the queue is not known
    eq_nodes: float  # N_eq
    node_hours_per_day: float  # idle
    fragments: int
    fragments_per_day: float
    length_s: dict[str, float]  # p10, p50, p90, mean, longest; empty without fragments
    shorter: tuple[LengthShare, ...]
    n_node_types: int = 1  # of the trace
    gpus: IdleGpus | None = None  # of the nodes, and when they are idle; null: not known


def describe(trace: Fragments, n_nodes: int | None = None) -> IdleTime:
    """Return the figures."""
    total_s = trace.node_seconds()
    length_s = fragment_lengths_s(trace)
    days = trace.duration_s / DAY_S
    spread: dict[str, float] = {}
    if total_s:
        spread = _quantiles(length_s, IDLE_QUANTILES)
        spread |= {"mean": float(length_s.mean()), "longest": float(length_s.max())}
    return IdleTime(
        n_nodes=n_nodes or len(trace.names),
        n_named=len(trace.names),
        hours=trace.duration_s / HOUR_S,
        idle_share=trace.idle_share(n_nodes),
        node_time=node_time(trace, n_nodes),
        unfillable_share=_unfillable_share(trace),
        eq_nodes=trace.equivalent_nodes(),
        node_hours_per_day=total_s / HOUR_S / days,
        fragments=len(length_s),
        fragments_per_day=len(length_s) / days,
        length_s=spread,
        shorter=tuple(
            LengthShare(
                under_s=bound_s,
                of_fragments=float((length_s < bound_s).mean()),
                of_node_time=float(length_s[length_s < bound_s].sum()) / total_s,
            )
            for bound_s in UP_TO_S
            if total_s
        ),
        n_node_types=len(set(trace.node_types or ("",))),
        gpus=idle_gpus(trace),
    )


def fragment_lengths_s(trace: Fragments) -> Times:
    """Return how long each fragment is: one uninterrupted idle time of a node, s.

    Its parts are not counted apart, so ``trace info`` and ``whatif`` say the same of one trace.
    """
    return uninterrupted(trace).length_s


def _unfillable_share(trace: Fragments) -> float | None:
    """Return the unfillable share of the idle node-time; None: the queue is not known."""
    total_s = trace.node_seconds()
    if trace.is_unfillable is None or not total_s:
        return None
    return float(trace.length_s[trace.is_unfillable].sum()) / total_s


def uninterrupted(trace: Fragments) -> Fragments:
    """Return the trace with the parts of each idle time merged.

    Readers cut a fragment where it turns from unfillable to fillable.
    """
    if not len(trace):
        return trace
    is_first = np.ones(len(trace), dtype=bool)
    is_first[1:] = (trace.node[1:] != trace.node[:-1]) | (trace.start_s[1:] != trace.end_s[:-1])
    return make_fragments(
        names=trace.names,
        node=trace.node[is_first],
        start_s=trace.start_s[is_first],
        end_s=trace.end_s[np.roll(is_first, -1)],
        span_s=trace.span_s,
        observed_s=trace.observed_s,
        notes=trace.notes,
        node_types=trace.node_types,
        partitions=trace.partitions,
    )


def held_down(trace: Fragments, hold_s: float) -> Fragments:
    """Return the idle time that remains if a node is claimed after ``hold_s`` of idleness."""
    if hold_s <= 0:
        return trace
    whole = uninterrupted(trace)
    starts = whole.start_s + hold_s
    keep = starts < whole.end_s
    return make_fragments(
        names=whole.names,
        node=whole.node[keep],
        start_s=starts[keep],
        end_s=whole.end_s[keep],
        span_s=whole.span_s,
        notes=whole.notes,
        node_types=whole.node_types,
        partitions=whole.partitions,
    )
