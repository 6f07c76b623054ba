"""Utilization and nodes of a replay in windows of time, from its history and trace.

As in Fig. 10 of the BFTrainer paper each window has its own U: the samples processed in it,
divided by those that its mean number of idle nodes would have processed.
"""

from __future__ import annotations

import numpy as np

from bftrainer.batch.traces.fragments import HOUR_S, Fragments, Times
from bftrainer.lab.simulator.history import RunningSums
from bftrainer.lab.simulator.metrics import static_outcome
from bftrainer.lab.simulator.session import ReplayRun

WIDTHS_H = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 6.0, 12.0, 24.0)  # widths that readers expect


def window_h(trace: Fragments, most: int) -> float:
    """Return the smallest usual width that gives at most so many windows."""
    hours = trace.duration_s / HOUR_S
    return next((width for width in WIDTHS_H if hours <= width * most), hours / most)


def edges_of(trace: Fragments, hours: float) -> Times:
    """Return the edges of windows of so many hours; the last one may be shorter."""
    begin_s, end_s = trace.span_s
    edges: Times = np.append(np.arange(begin_s, end_s - 1e-6, hours * HOUR_S), end_s)
    return edges


def hours_of(edges_s: Times) -> Times:
    """Return the edges in hours from the start."""
    hours: Times = (edges_s - edges_s[0]) / HOUR_S
    return hours


def nodes_offered(trace: Fragments, edges_s: Times) -> Times:
    """Return the mean size of the pool in each window."""
    changes = trace.pool_changes()
    at_s = np.append(changes.at_s, trace.span_s[1])
    so_far = np.concatenate(([0.0], np.cumsum(changes.pool_sizes() * np.diff(at_s))))
    offered: Times = np.diff(np.interp(edges_s, at_s, so_far)) / np.diff(edges_s)
    return offered


def nodes_training(run: ReplayRun, edges_s: Times) -> Times:
    """Return the mean number of training nodes in each window."""
    return _gained(run, edges_s, [n.node_s_training for n in run.history.notes]) / np.diff(edges_s)


def utilization(run: ReplayRun, edges_s: Times) -> Times:
    """Return U of each window; NaN where no node was idle."""
    processed = _gained(run, edges_s, [n.processed for n in run.history.notes])
    offered, width_s = nodes_offered(run.outcome.trace, edges_s), np.diff(edges_s)
    found = np.full(len(processed), np.nan)
    for k, (n_eq, span_s) in enumerate(zip(offered.tolist(), width_s.tolist(), strict=True)):
        static = static_outcome(run.outcome, n_eq, span_s)
        if static > 0:
            found[k] = processed[k] / static
    return found


def _gained(run: ReplayRun, edges_s: Times, sums: list[float]) -> Times:
    """Return the growth of a sum in each window, linear between two notes."""
    notes: tuple[RunningSums, ...] = run.history.notes
    at_s = [run.outcome.trace.span_s[0], *(note.at_s for note in notes)]
    return np.diff(np.interp(edges_s, at_s, [0.0, *sums]))
