"""Figures, colours and axes that the pictures of a study share."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from bftrainer.batch.traces.text import TraceError
from bftrainer.model.columns import shown
from bftrainer.study.plots.material import Material


def new_canvas(inches: tuple[float, float], otherwise: str) -> Any:
    """Return a matplotlib figure that needs no display.

    Args:
        inches: width and height, at 120 dots per inch.
        otherwise: what the user can do without pictures, such as "leave --plot out".

    Raises:
        TraceError: BFT-4004, matplotlib is not installed.
    """
    figure = matplotlib("figure", otherwise).Figure(figsize=inches, dpi=120, layout="constrained")
    matplotlib("backends.backend_agg", otherwise).FigureCanvasAgg(figure)
    return figure


def matplotlib(module: str, otherwise: str) -> Any:
    """Return a module of matplotlib, "" for itself; raises as above."""
    try:
        return importlib.import_module(f"matplotlib.{module}" if module else "matplotlib")
    except ImportError:
        raise TraceError(
            "BFT-4004",
            "Pictures need the package matplotlib, which is not installed.",
            f"Install bftrainer[demo], or {otherwise}.",
        ) from None


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
