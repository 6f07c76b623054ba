"""The values that trials reported over time, and the best so far."""

from __future__ import annotations

from typing import Any

from bftrainer.study.plots.material import Material
from bftrainer.study.plots.style import BEST, beside, plain, rung_colours, text, time_axis

MOST_SHADES = 9  # in the legend


def draw(figure: Any, found: Material) -> None:
    """Draw one point per report, its shade the units trained."""
    summary, axes = found.summary, figure.subplots()
    unit_s = time_axis(axes, found)
    colours = rung_colours([one.units for one in found.reported])
    for units, colour in colours.items():
        at = [one for one in found.reported if one.units == units]
        label = f"{units} {summary.unit}" if len(colours) <= MOST_SHADES else None
        axes.scatter(
            [one.at_s / unit_s for one in at],
            [one.value for one in at],
            s=14,
            color=colour,
            label=label,
            linewidths=0,
        )
    choose = max if found.is_maximized else min
    times, bests = list[float](), list[float]()
    for one in found.reported:
        better = choose(one.value, bests[-1]) if bests else one.value
        times.append(one.at_s / unit_s)
        bests.append(better)
    if bests:
        times.append(found.duration_s / unit_s)
        bests.append(bests[-1])
    axes.step(times, bests, where="post", color=BEST, linewidth=1.5, label="best so far")
    axes.set_ylabel(f"{text(summary.metric)} (to {summary.direction})")
    axes.set_title("Values reported")
    beside(axes, None if len(colours) <= MOST_SHADES else f"darker: more {summary.unit}")
    plain(axes)
