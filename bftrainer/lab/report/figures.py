"""The figures of a report, with their captions.

Each ``Figure`` draws ``ReplayRun``s on matplotlib axes that the page provides; the page imports
matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bftrainer.batch.traces.fragments import HOUR_S
from bftrainer.lab.report.tables import (
    edges_of,
    hours_of,
    nodes_offered,
    nodes_training,
    utilization,
    window_h,
)
from bftrainer.lab.simulator.metrics import completion_times_s
from bftrainer.lab.simulator.session import ReplayRun

# M. Okabe, K. Ito: colours that colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
POOL_COLOUR = "#BBBBBB"
PARTS = (
    ("utilization", "processed (U)", "#009E73"),
    ("cost_preemption", "lost to preemptions", "#D55E00"),
    ("cost_rescale", "lost to rescales", "#E69F00"),
    ("cost_unused", "unused", "#BBBBBB"),
)
WINDOWS, FINE_WINDOWS = 30, 200  # a week: 28 of six hours as in the paper's Fig. 10, 168 of one


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a report."""

    key: str  # of its anchor
    title: str
    caption: Callable[[Sequence[ReplayRun]], str]
    draw: Callable[[Any, Sequence[ReplayRun]], None]


def _utilization(axes: Any, runs: Sequence[ReplayRun]) -> None:
    names = [run.choices.policy for run in runs]
    values = [100 * run.metrics.utilization for run in runs]
    bars = axes.bar(names, values, color=[_colour(i) for i in range(len(runs))], width=0.6)
    axes.bar_label(bars, labels=[f"{value:.1f}" for value in values], padding=2)
    axes.set(ylabel="U = A_e / A_s (%)", xlabel="policy", ylim=(0, max(100, *values) * 1.08))
    axes.grid(axis="y", alpha=0.3)


def _split(axes: Any, runs: Sequence[ReplayRun]) -> None:
    names = [run.choices.policy for run in runs]
    above, below = np.zeros(len(runs)), np.zeros(len(runs))
    for name, label, colour in PARTS:
        values = np.array([100 * getattr(run.metrics, name) for run in runs])
        # Below 0 where a policy did better than the static share.
        axes.bar(names, values, bottom=np.where(values < 0, below, above), color=colour,
                 label=label, width=0.6)  # fmt: skip
        above += np.maximum(values, 0)
        below += np.minimum(values, 0)
    axes.set(ylabel="share of A_s (%)", xlabel="policy", ylim=(1.08 * below.min(), None))
    _legend(axes)
    axes.grid(axis="y", alpha=0.3)


def _nodes(axes: Any, runs: Sequence[ReplayRun]) -> None:
    trace = runs[0].outcome.trace
    edges = edges_of(trace, window_h(trace, FINE_WINDOWS))
    hours, offered = hours_of(edges), nodes_offered(trace, edges)
    axes.stairs(offered, hours, fill=True, color=POOL_COLOUR, label="idle (pool)")
    for i, run in enumerate(runs):
        axes.stairs(nodes_training(run, edges), hours, color=_colour(i), linewidth=1.0,
                    label=f"training, {run.choices.policy}")  # fmt: skip
    axes.set(xlabel="time from the begin (h)", ylabel="nodes", xlim=(0, hours[-1]),
             ylim=(0, None))  # fmt: skip
    _legend(axes)
    axes.grid(alpha=0.3)


def _over_time(axes: Any, runs: Sequence[ReplayRun]) -> None:
    trace = runs[0].outcome.trace
    edges = edges_of(trace, window_h(trace, WINDOWS))
    hours = hours_of(edges)
    middle = (hours[1:] + hours[:-1]) / 2
    for i, run in enumerate(runs):
        axes.plot(middle, 100 * utilization(run, edges), color=_colour(i), marker="o",
                  markersize=3, linewidth=1.2, label=run.choices.policy)  # fmt: skip
    axes.set(xlabel="time from the begin (h)", ylabel="U in the window (%)", xlim=(0, hours[-1]),
             ylim=(0, None))  # fmt: skip
    _legend(axes)
    axes.grid(alpha=0.3)


def _completion(axes: Any, runs: Sequence[ReplayRun]) -> None:
    last_h = 1e-3
    for i, run in enumerate(runs):
        hours = np.sort(completion_times_s(run.outcome)) / HOUR_S
        share = 100 * np.arange(len(hours) + 1) / max(1, len(run.outcome.trainers))
        last_h = max([last_h, *hours.tolist()])
        axes.step(np.concatenate(([0.0], hours)), share, where="post", color=_colour(i),
                  linewidth=1.2, label=run.choices.policy)  # fmt: skip
    axes.set(xlabel="completion time, submission to end (h)", xlim=(0, last_h * 1.02),
             ylabel="of the trainers submitted (%)", ylim=(0, None))  # fmt: skip
    _legend(axes)
    axes.grid(alpha=0.3)


def _legend(axes: Any) -> None:
    """Below the axes, where it hides nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, fontsize=8, frameon=False)


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _says(text: str) -> Callable[[Sequence[ReplayRun]], str]:
    return lambda _: text


def _window(runs: Sequence[ReplayRun], most: int) -> str:
    return f"{window_h(runs[0].outcome.trace, most):g} h"


FIGURES = (
    Figure(
        key="utilization",
        title="Resource utilization efficiency",
        draw=_utilization,
        caption=_says(
            "U: samples processed on the idle fragments (A_e) as a share of what N_eq nodes "
            "that are always there, shared equally by P_jmax trainers, would process (A_s)."
        ),
    ),
    Figure(
        key="cost-split",
        title="Where the rest goes",
        draw=_split,
        caption=_says(
            "A_s split into what was processed, what preemptions and what rescales cost, and "
            "the rest: nodes without a trainer, sizes other than the static share."
        ),
    ),
    Figure(
        key="nodes",
        title="Nodes over time",
        draw=_nodes,
        caption=lambda runs: (
            f"Idle nodes and those on which a trainer trains, means over "
            f"{_window(runs, FINE_WINDOWS)}."
        ),
    ),
    Figure(
        key="utilization-over-time",
        title="Efficiency over time",
        draw=_over_time,
        caption=lambda runs: (
            f"U of each {_window(runs, WINDOWS)}: what was processed in it, over what as many "
            "nodes as were idle in it on average would have processed."
        ),
    ),
    Figure(
        key="completion-times",
        title="Completion times",
        draw=_completion,
        caption=lambda runs: (
            "Share of the submitted trainers that were complete within a time of their "
            "submission; complete at the end: "
            + ", ".join(f"{run.choices.policy} {run.metrics.completed:,}" for run in runs)
            + f" of {runs[0].metrics.submitted:,}."
        ),
    ),
)
