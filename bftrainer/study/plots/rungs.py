"""Which trial trained, waited and ended when, at which rung; the pool's nodes beneath."""

from __future__ import annotations

from typing import Any

from bftrainer.study.plots.material import Material, Stay
from bftrainer.study.plots.style import ACTIVE, PALE, POOL, beside, plain, rung_colours, time_axis
from bftrainer.study.trials import Stage

HEIGHT_POINTS = 330.0  # of the upper part
MARKS = {Stage.COMPLETE: ("o", "trained in full"), Stage.FAILED: ("x", "failed")}


def draw(figure: Any, found: Material) -> None:
    """Draw a line per trial: a colour where it trains, grey where it waits."""
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    unit_s, summary = time_axis(lower, found), found.summary
    colours = rung_colours([stay.budget for stay in found.stays])
    count = 1 + max((stay.trial for stay in found.stays), default=0)
    width = min(7.0, max(0.6, 0.75 * HEIGHT_POINTS / count))
    waits = [stay for stay in found.stays if not stay.is_active]
    _lines(upper, waits, unit_s, colour=PALE, width=width / 3, label="waits at its rung")
    for budget, colour in colours.items():
        at = [stay for stay in found.stays if stay.is_active and stay.budget == budget]
        label = f"trains to {budget} {summary.unit}"
        _lines(upper, at, unit_s, colour=colour, width=width, label=label)
    for stage, (mark, label) in MARKS.items():
        ends = [one for one in found.ended if one.stage is stage]
        if ends:
            upper.scatter(
                [one.at_s / unit_s for one in ends],
                [one.trial for one in ends],
                marker=mark,
                s=max(8.0, min(36.0, 4 * width**2)),
                color="black",
                label=label,
                zorder=3,
                linewidths=0.8,
            )
    upper.set(title="Trials at their rungs", ylabel="trial", ylim=(-0.02 * count - 0.5, count))
    beside(upper)
    _beneath(lower, found, unit_s)
    plain(upper)
    plain(lower)


def _lines(
    axes: Any, stays: list[Stay], unit_s: float, *, colour: Any, width: float, label: str
) -> None:
    if stays:
        axes.hlines(
            [stay.trial for stay in stays],
            [stay.begin_s / unit_s for stay in stays],
            [stay.end_s / unit_s for stay in stays],
            color=colour,
            linewidth=width,
            label=label,
        )


def _beneath(axes: Any, found: Material, unit_s: float) -> None:
    """Draw the nodes of the pool, and how many trials were active."""
    if found.pool:
        times = [at_s / unit_s for at_s, _ in found.pool] + [found.duration_s / unit_s]
        nodes = [nodes for _, nodes in found.pool]
        axes.step(times, [*nodes, nodes[-1]], where="post", color=POOL, label="nodes of the pool")
    steps = sorted(
        (at_s, step)
        for stay in found.stays
        if stay.is_active
        for at_s, step in ((stay.begin_s, 1), (stay.end_s, -1))
    )
    times, active = [0.0], [0]
    for at_s, step in steps:
        times.append(at_s / unit_s)
        active.append(active[-1] + step)
    axes.step(times, active, where="post", color=ACTIVE, linewidth=1, label="active trials")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("nodes, trials")
    beside(axes)
