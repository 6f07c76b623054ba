"""A ``BusinessCase`` as a page: the answer, the week as a picture, then settings and figures."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bftrainer.batch.traces.fragments import HOUR_S
from bftrainer.batch.traces.text import TraceError
from bftrainer.lab import html
from bftrainer.lab.report import COLOURS
from bftrainer.lab.report_page import Picture
from bftrainer.lab.whatif import document
from bftrainer.lab.whatif.advice import BusinessCase, Sweep, SweepPoint
from bftrainer.lab.whatif.kept import OTHERS, IdleOverTime
from bftrainer.lab.whatif.present import LendingNow
from bftrainer.lab.whatif.replays import Estimate, times
from bftrainer.study.plots import new_canvas

WEEK, SMALL = (10.0, 3.6), (4.2, 3.0)  # inches
MOST_LAYERS = 7  # of the picture, as many as there are colours
YEAR_2000_S = 946_684_800.0  # times before it are counted from a trace's begin
DAY_H, PER_CENT = 24.0, 100.0
BEST, TRIED = "#D55E00", "#0072B2"
TITLES = {
    "p_jmax": "Trainers at once (P_jmax)",
    "t_fwd_s": "Forward-looking time T_fwd (s)",
    "hold_down_s": "Hold-down time (s)",
}


def write_page(
    path: Path,
    case: BusinessCase,
    source: str,
    command: str,
    now: LendingNow | None = None,
) -> None:
    """Write the page; without matplotlib it says that it has no pictures.

    Args:
        path: of the page.
        case: the business case.
        source: name of the trace.
        command: repeats what is shown.
        now: what the running site could lend one by one.

    Raises:
        TraceError: BFT-4002, no file can be there.
    """
    pictures: tuple[Picture, ...] = ()
    sweeps: tuple[Picture, ...] = ()
    missing: tuple[str, ...] = ()
    try:
        pictures = (_week(case),)
        sweeps = tuple(_swept(sweep) for sweep in case.sweeps if len(sweep.points) > 1)
    except TraceError as problem:
        if problem.code != "BFT-4004":
            raise
        missing = (str(problem),)
    page = document.report_of(
        case, source, command, week=pictures, sweeps=sweeps, without_pictures=missing, now=now
    )
    html.write_page(path, page)


def _week(case: BusinessCase) -> Picture:
    """Draw the idle nodes of each kind, one upon the other, over time."""
    over = _few(case.over_time)
    canvas = new_canvas(WEEK, html.OTHERWISE)
    axes = canvas.add_subplot()
    at_h = (np.array(over.edges_s) - over.edges_s[0]) / HOUR_S
    below = np.zeros(len(at_h) - 1)
    for colour, (name, nodes) in zip(COLOURS, over.nodes.items(), strict=False):
        above = below + np.array(nodes)
        label = html.plain(name or "idle nodes")
        axes.stairs(above, at_h, baseline=below, fill=True, color=colour, label=label)
        below = above
    eq_nodes = case.idle.eq_nodes
    axes.axhline(eq_nodes, color="black", linewidth=1, linestyle="--")
    axes.annotate(f"mean {eq_nodes:,.1f}", (at_h[-1], eq_nodes), xytext=(3, 0),
                  textcoords="offset points", va="center", fontsize=9)  # fmt: skip
    axes.set(ylabel="idle nodes", xlim=(0, at_h[-1]), ylim=(0, None))
    axes.set_axisbelow(True)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    _label_time(axes, over.edges_s[0], at_h[-1])
    if len(over.nodes) > 1:
        place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
        axes.legend(ncols=4, frameon=False, fontsize=9, **place)
    return Picture(
        drawing=html.picture(canvas, "Idle nodes over time", "week"),
        title="Idle nodes over time",
        caption=f"Each step {document.averaged(over)}, of {case.idle.n_nodes:,} nodes.",
        key="week",
    )


def _few(over: IdleOverTime) -> IdleOverTime:
    """Return no more kinds than there are colours, the rest together."""
    if len(over.nodes) <= MOST_LAYERS:
        return over
    names = list(over.nodes)
    layers = {name: over.nodes[name] for name in names[: MOST_LAYERS - 1]}
    together = np.sum([over.nodes[name] for name in names[MOST_LAYERS - 1 :]], axis=0)
    layers[OTHERS] = tuple(together.tolist())
    return IdleOverTime(edges_s=over.edges_s, nodes=layers, most_nodes=over.most_nodes)


def _label_time(axes: Any, begin_s: float, hours: float) -> None:
    """Label days where the trace knows the date, else hours from its begin."""
    if begin_s < YEAR_2000_S or hours < 2 * DAY_H:
        axes.set_xlabel("hours from the begin")
        return
    midnight_h = -(begin_s / HOUR_S % DAY_H) % DAY_H
    step_h = DAY_H * max(1, round(hours / DAY_H / 8))
    places = np.arange(midnight_h, hours, step_h)
    labels = []
    for place_h in places.tolist():
        day = datetime.fromtimestamp(begin_s + place_h * HOUR_S, UTC)
        labels.append(f"{day:%a} {day.day} {day:%b}")
    axes.set_xticks(places, labels)
    axes.set_xlabel("day (UTC)")


def _swept(sweep: Sweep) -> Picture:
    """Draw what decides over the values, evenly spaced: they span orders of magnitude."""
    canvas = new_canvas(SMALL, html.OTHERWISE)
    axes = canvas.add_subplot()
    figures = [_decides(sweep, point) for point in sweep.points]
    heights = [figure.value for figure in figures]
    values = [point.value for point in sweep.points]
    for place, figure in enumerate(figures):
        if figure.low is not None and figure.high is not None:
            axes.vlines(place, figure.low, figure.high, color=TRIED, linewidth=1.2)
    axes.plot(range(len(heights)), heights, color=TRIED, marker="o", markersize=4, linewidth=1.2)
    recommended = ""
    if sweep.is_beyond_chance:
        recommended = f"; orange: {sweep.chosen:g}"
        place = values.index(sweep.chosen)
        axes.plot([place], [heights[place]], color=BEST, marker="o", markersize=8, linestyle="none")
    axes.set_xticks(range(len(values)), list(map("{:g}".format, values)))
    label = "U"
    if sweep.is_by_work:
        label = f"work done against {sweep.chosen:g} (%)"
    axes.set(xlabel=TITLES[sweep.name], ylabel=label)
    axes.margins(x=0.08)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return Picture(
        drawing=html.picture(canvas, f"{label} over {TITLES[sweep.name]}", sweep.name),
        title=TITLES[sweep.name],
        caption=f"Lines: 95% intervals{recommended}. {sweep.why}",
        key=sweep.name,
    )


def _decides(sweep: Sweep, point: SweepPoint) -> Estimate:
    """Return U, or the work done in per cent more than with the chosen value."""
    if not sweep.is_by_work:
        return Estimate(value=point.utilization, low=point.low, high=point.high)
    return times(Estimate(value=point.gain, low=point.gain_low, high=point.gain_high), PER_CENT)
