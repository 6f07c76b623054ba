"""Figures 1 and 6 of the paper for any trace: the pool over time and the gaps between events.

``Fragments`` come in, one PNG goes out; ``bftrainer trace info --plot`` calls it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.batch.traces.statistics import bars, fragment_lengths_s, statistics
from bftrainer.batch.traces.text import TraceError, unreadable
from bftrainer.study.plots import new_canvas

COUNT_COLOUR, TIME_COLOUR, POOL_COLOUR = "#0072B2", "#D55E00", "#009E73"
LONGEST_MIN = 120.0  # of Fig. 1's axis
MAX_POINTS = 20_000  # of the pool's line: more than pixels


def draw(trace: Fragments, title: str, path: Path) -> None:
    """Write the picture.

    Raises:
        TraceError: BFT-4004, matplotlib is not installed; BFT-4002, no file can be written.
    """
    figure = new_canvas((12.0, 8.0), "leave --plot out")
    ((upper_left, upper_right), (lower_left, lower_right)) = figure.subplots(2, 2)
    numbers = statistics(trace)
    figure.suptitle(
        f"{title}: {numbers.n_nodes:,} nodes, {numbers.hours:,.1f} h, "
        f"{numbers.fragments:,} fragments, {numbers.events:,} events, "
        f"N_eq {numbers.eq_nodes:,.1f} ({numbers.idle_share:.1%})"
    )
    _lengths(upper_left, trace)
    _bars(upper_right, trace)
    _pool(lower_left, trace)
    _gaps(lower_right, trace)
    try:
        figure.savefig(path)
    except OSError as problem:
        raise unreadable(path, problem) from problem
    except ValueError as problem:  # the ending is unknown to matplotlib
        raise TraceError("BFT-4002", f"{path}: {problem}.", "End the name in .png.") from problem


def _lengths(axes: Any, trace: Fragments) -> None:
    minutes = np.sort(fragment_lengths_s(trace)) / 60
    if len(minutes):
        axes.step(minutes, 100 * np.arange(1, len(minutes) + 1) / len(minutes),
                  where="post", color=COUNT_COLOUR, label="of fragments")  # fmt: skip
        axes.step(minutes, 100 * np.cumsum(minutes) / minutes.sum(),
                  where="post", color=TIME_COLOUR, label="of node-time")  # fmt: skip
        axes.legend(loc="lower right")
    axes.set(xlim=(0, LONGEST_MIN), ylim=(0, 100), title="Fragment length (Fig. 1)",
             xlabel="at most this long (minutes)", ylabel="cumulative share (%)")  # fmt: skip
    axes.grid(alpha=0.3)


def _bars(axes: Any, trace: Fragments) -> None:
    rows = bars(trace)
    at = [row["from_hour"] for row in rows]
    width = [row["to_hour"] - row["from_hour"] for row in rows]
    events = axes.bar(at, [row["events"] for row in rows], width=width, align="edge",
                     color=POOL_COLOUR, edgecolor="white")  # fmt: skip
    if len(rows) <= 60:
        shares = [f"{row['idle_share']:.1%}" for row in rows]
        axes.bar_label(events, labels=shares, fontsize=7, rotation=0 if len(rows) < 16 else 90)
    axes.set(title="Events in 12 hours, and nodes idle (Fig. 6)", xlabel="hours",
             ylabel="events")  # fmt: skip
    axes.margins(y=0.12)


def _pool(axes: Any, trace: Fragments) -> None:
    changes = trace.pool_changes()
    every = max(1, len(changes) // MAX_POINTS)
    begin_s, end_s = trace.span_s
    hours = (np.append(changes.at_s, end_s)[::every] - begin_s) / HOUR_S
    sizes = changes.pool_sizes()
    axes.step(hours, np.append(sizes, sizes[-1])[::every], where="post", color=POOL_COLOUR,
              linewidth=0.7)  # fmt: skip
    axes.axhline(trace.equivalent_nodes(), color=TIME_COLOUR, linewidth=1, label="N_eq")
    axes.legend(loc="upper right")
    axes.set(title="Nodes in the pool", xlabel="hours", ylabel="nodes")
    axes.grid(alpha=0.3)


def _gaps(axes: Any, trace: Fragments) -> None:
    gaps = np.sort(np.diff(trace.pool_changes().at_s))
    if len(gaps):
        axes.step(gaps, 100 * np.arange(1, len(gaps) + 1) / len(gaps), where="post",
                  color=COUNT_COLOUR)  # fmt: skip
        axes.set_xscale("log")
    axes.set(title="Time between events", xlabel="at most so many seconds", ylim=(0, 100),
             ylabel="cumulative share (%)")  # fmt: skip
    axes.grid(alpha=0.3)
