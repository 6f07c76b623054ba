"""The idle time that the policy keeps back, and where and when nodes are idle.

Computed from the trace alone. The reserve: of each kind of nodes so many idle ones stay free. The
least gap: the policy leaves a node alone that a *planned* job takes within ``min_gap_s`` plus
``gap_margin_s``, and a pilot is gone ``gap_margin_s`` before a planned start
(docs/design/give-back.md). Accounting does not tell which jobs were planned, so two cases are
computed: none was, and all were.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import HOUR_S, Fragments, make_fragments
from bftrainer.batch.traces.statistics import DAY_S, uninterrupted
from bftrainer.lab.report import FINE_WINDOWS, edges_of, nodes_offered, window_h

MOST_KINDS = 30  # told one by one; the others together
OTHERS = "other nodes"
_GPUS = re.compile(r"\bgpu(?::[^:,\s]+)*:(\d+)")  # as in gpu:a100:4


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOfNodes:
    """Nodes of one partition, or queue, and type."""

    name: str
    n_nodes: int
    eq_nodes: float  # idle on average
    idle_share: float  # of their node-time
    node_hours_per_day: float  # idle
    gpus: int | None  # of a node; None: its type does not tell
    reserve_share: float  # of their idle time, that the reserve keeps
    planned_share: float  # of it, that pilots could not use if a planned job ended every gap


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBack:
    """What the policy's reserve and least gap leave of the idle time."""

    reserve_nodes_per_type: int
    min_gap_s: float
    gap_margin_s: float
    after_reserve: float  # share of the idle node-time that is left if no job was planned
    after_both: float  # share that is left if every gap ended with a planned job


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleOverTime:
    """The mean number of idle nodes of each kind in windows of time."""

    edges_s: tuple[float, ...]  # of the windows, in seconds as in the trace
    nodes: dict[str, tuple[float, ...]]  # by kind, the one with most idle time first
    most_nodes: int = 0  # of all kinds, at one moment: more than any mean of a window


def kinds_of(trace: Fragments) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the names of the kinds of nodes, and the kind of each node.

    One kind, without a name, if the trace tells neither partitions nor types.
    """
    columns = [labels for labels in (trace.partitions, trace.node_types) if labels is not None]
    of_node = [", ".join(filter(None, labels)) for labels in zip(*columns, strict=True)]
    if not of_node:
        return ("",), np.zeros(len(trace.names), dtype=np.int64)
    idle_s = np.bincount(trace.node, weights=trace.length_s, minlength=len(trace.names))
    sums: dict[str, float] = {}
    for name, idle in zip(of_node, idle_s.tolist(), strict=True):
        sums[name] = sums.get(name, 0.0) + idle
    most_idle_first = sorted(sums, key=lambda name: (-sums[name], name))
    names = [name or OTHERS for name in most_idle_first]
    if len(names) > MOST_KINDS:
        names[MOST_KINDS - 1 :] = [OTHERS]
    place = {name: min(k, len(names) - 1) for k, name in enumerate(most_idle_first)}
    return tuple(names), np.array(list(map(place.__getitem__, of_node)))


def gpus_of(node_types: Sequence[str]) -> int | None:
    """Return how many GPUs each of some nodes has; None: their types do not tell, or differ."""
    counts = {sum(map(int, _GPUS.findall(node_type))) for node_type in set(node_types)}
    if len(counts) != 1:
        return None
    return counts.pop() or None


def kept_back(
    trace: Fragments, *, reserve: int, min_gap_s: float, gap_margin_s: float
) -> tuple[KeptBack, tuple[KindOfNodes, ...]]:
    """Return what the policy leaves of a trace's idle time, in all and by kind of nodes.

    Args:
        trace: in which some node is idle.
        reserve: idle nodes of each kind that are never borrowed (reserve_nodes_per_type).
        min_gap_s: of the policy, s.
        gap_margin_s: of the policy, s.
    """
    names, kind_of_node = kinds_of(trace)
    whole = uninterrupted(trace)
    usable = _if_planned(whole, min_gap_s, gap_margin_s)
    node_types = trace.node_types or ("",) * len(trace.names)
    kinds, left_s, left_of_planned_s = [], 0.0, 0.0
    for number, name in enumerate(names):
        is_of_kind = kind_of_node == number
        idle = whole.where(is_of_kind[whole.node])
        if_planned = usable.where(is_of_kind[usable.node])
        idle_s, after_s = idle.node_seconds(), _beyond(idle, reserve)
        left_s += after_s
        left_of_planned_s += _beyond(if_planned, reserve)
        count = int(is_of_kind.sum())
        kinds.append(
            KindOfNodes(
                name=name,
                n_nodes=count,
                eq_nodes=idle_s / trace.duration_s,
                idle_share=idle_s / trace.duration_s / count,
                node_hours_per_day=idle_s / HOUR_S / (trace.duration_s / DAY_S),
                gpus=gpus_of([node_types[k] for k in np.flatnonzero(is_of_kind)]),
                reserve_share=1.0 - after_s / idle_s if idle_s else 0.0,
                planned_share=1.0 - if_planned.node_seconds() / idle_s if idle_s else 0.0,
            )
        )
    whole_s = whole.node_seconds()
    left_by_policy = KeptBack(
        reserve_nodes_per_type=reserve,
        min_gap_s=min_gap_s,
        gap_margin_s=gap_margin_s,
        after_reserve=left_s / whole_s,
        after_both=left_of_planned_s / whole_s,
    )
    return left_by_policy, tuple(kinds)


def _if_planned(whole: Fragments, min_gap_s: float, gap_margin_s: float) -> Fragments:
    """Return what pilots could use of gaps that all end with a planned job."""
    is_open = whole.end_s >= whole.span_s[1]  # no job ended it
    ends_s = np.where(is_open, whole.end_s, whole.end_s - gap_margin_s)
    is_usable = is_open | ((ends_s - whole.start_s >= min_gap_s) & (ends_s > whole.start_s))
    return make_fragments(
        names=whole.names,
        node=whole.node[is_usable],
        start_s=whole.start_s[is_usable],
        end_s=ends_s[is_usable],
        span_s=whole.span_s,
    )


def _beyond(idle: Fragments, reserve: int) -> float:
    """Return the node-seconds of the nodes beyond the reserve."""
    changes = idle.pool_changes()
    for_s = np.diff(np.append(changes.at_s, idle.span_s[1]))
    return float((np.maximum(changes.pool_sizes() - reserve, 0) * for_s).sum())


def idle_over_time(trace: Fragments) -> IdleOverTime:
    """Return when how many nodes of each kind were idle."""
    names, kind_of_node = kinds_of(trace)
    edges = edges_of(trace, window_h(trace, FINE_WINDOWS))
    idle_nodes = {}
    for number, name in enumerate(names):
        part = trace.where(kind_of_node[trace.node] == number)
        idle_nodes[name] = tuple(nodes_offered(part, edges).tolist())
    return IdleOverTime(
        edges_s=tuple(edges.tolist()),
        nodes=idle_nodes,
        most_nodes=int(trace.pool_changes().pool_sizes().max(initial=0)),
    )
