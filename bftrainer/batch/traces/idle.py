"""Describes a machine's idle time, and what remains of it after a hold-down time.

Called by ``study``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bftrainer.batch.traces.fragments import HOUR_S, Fragments, make_fragments

DAY_S = 24 * HOUR_S
QUANTILES = (0.1, 0.5, 0.9)
UP_TO_S = (60.0, 300.0, 600.0, 1800.0, 3600.0)


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
    unfillable_share: float | None  # of the idle node-time; None: the queue is not known
    eq_nodes: float  # N_eq
    node_hours_per_day: float  # idle
    fragments: int
    fragments_per_day: float
    length_s: dict[str, float]  # p10, p50, p90, mean, longest; empty without fragments
    shorter: tuple[LengthShare, ...]


def describe(trace: Fragments, n_nodes: int | None = None) -> IdleTime:
    """Return the figures; a fragment is one uninterrupted idle time of a node."""
    total_s = trace.node_seconds()
    unfillable = None
    if trace.is_unfillable is not None and total_s > 0:
        unfillable = float(trace.length_s[trace.is_unfillable].sum()) / total_s
    length_s = uninterrupted(trace).length_s
    days = trace.duration_s / DAY_S
    spread = {f"p{round(100 * q)}": float(np.quantile(length_s, q)) for q in QUANTILES if total_s}
    if total_s:
        spread |= {"mean": float(length_s.mean()), "longest": float(length_s.max())}
    return IdleTime(
        n_nodes=n_nodes or len(trace.names),
        n_named=len(trace.names),
        hours=trace.duration_s / HOUR_S,
        idle_share=trace.idle_share(n_nodes),
        unfillable_share=unfillable,
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
    )


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
    )
