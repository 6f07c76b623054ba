"""Creates figures with matplotlib, which is optional; nothing else here imports it."""

from __future__ import annotations

import importlib
from typing import Any

from bftrainer.batch.traces.errors import TraceError


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
