"""Colours and axes that the pictures of a study share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bftrainer.model.columns import shown
from bftrainer.study.plots.canvas import matplotlib
from bftrainer.study.plots.material import Material

OTHERWISE = "print the numbers with 'bftrainer study export'"
BEST, POOL, ACTIVE, PALE = "#D55E00", "#009E73", "#0072B2", "#BBBBBB"


def text(words: object) -> str:
    """Return a user's words as matplotlib shows them, not as a formula."""
    return shown(str(words)).replace("$", r"\$")


def rung_colours(budgets: Sequence[int]) -> dict[int, Any]:
    """Return a colour for each budget, dark for the greatest."""
    ordered = sorted(set(budgets))
    shades = matplotlib("", OTHERWISE).colormaps["viridis_r"]
    return {budget: shades((place + 1) / len(ordered)) for place, budget in enumerate(ordered)}


def time_axis(axes: Any, found: Material) -> float:
    """Label the time axis; return the seconds of its unit."""
    unit_s, name = found.clock
    axes.set_xlabel(f"time since the study began ({name})")
    axes.set_xlim(0.0, 1.01 * found.duration_s / unit_s)
    return unit_s


def beside(axes: Any, title: str | None = None) -> None:
    """Put the legend to the right of the axes."""
    axes.legend(title=title, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)


def plain(axes: Any) -> None:
    """Take off the upper and right lines of the frame, and draw a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
