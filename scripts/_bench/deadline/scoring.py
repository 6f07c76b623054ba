"""How good probabilities are, once it is known what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BINS = 10  # of equally many forecasts


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Forecasts that are neighbours."""

    predicted: float  # mean
    observed: float  # share that came true
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Figures of many forecasts."""

    count: int
    error: float  # calibration error: mean |predicted - observed| over the bins
    brier: float
    bias: float  # mean predicted - mean observed


def bins_of(predicted: Floats, came_true: Floats) -> tuple[Bin, ...]:
    """Return the bins, lowest forecasts first."""
    parts = np.array_split(np.argsort(predicted, kind="stable"), BINS)
    return tuple(
        Bin(
            predicted=float(predicted[part].mean()),
            observed=float(came_true[part].mean()),
            count=len(part),
        )
        for part in parts
        if len(part)
    )


def score(predicted: Floats, came_true: Floats) -> Score:
    """Return the figures."""
    bins = bins_of(predicted, came_true)
    return Score(
        count=len(predicted),
        error=sum(b.count * abs(b.predicted - b.observed) for b in bins) / len(predicted),
        brier=float(((predicted - came_true) ** 2).mean()),
        bias=float(predicted.mean() - came_true.mean()),
    )


def plot(
    path: Any,
    groups: dict[str, tuple[Floats, Floats]],
    by_deadline: dict[str, dict[float, float]],
) -> None:
    """Draw a reliability diagram of each group of forecasts, and the error by deadline.

    Args:
        path: of the file.
        groups: predicted and came true, by name.
        by_deadline: calibration error by the deadline in hours, by name.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    rows = -(-(len(groups) + 1) // 3)
    figure = Figure(figsize=(8.4, 2.9 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, squeeze=False).ravel()
    for axes, (name, (predicted, came_true)) in zip(panels, groups.items(), strict=False):
        bins = bins_of(predicted, came_true)
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        axes.plot([b.predicted for b in bins], [b.observed for b in bins], "o-", markersize=4)
        axes.set(aspect="equal", xlim=(0, 1), ylim=(0, 1), xlabel="predicted", ylabel="observed")
        axes.set_title(f"{name}\nerror {score(predicted, came_true).error:.3f}", fontsize=9)
    last = panels[len(groups)]
    for name, errors in by_deadline.items():
        last.plot(list(errors), list(errors.values()), "o-", markersize=4, label=name)
    hours = sorted({hour for errors in by_deadline.values() for hour in errors})
    last.set_xscale("log")
    last.set_xticks(hours, [f"{hour:g}" for hour in hours])
    last.minorticks_off()
    last.axhline(0.05, color="0.7", linewidth=1)
    last.set(xlabel="deadline, h", ylabel="calibration error")
    last.set_ylim(
        0.0, 1.7 * max(0.05, *(one for errors in by_deadline.values() for one in errors.values()))
    )
    last.legend(fontsize=6.5, frameon=False, loc="upper left")
    for axes in panels[len(groups) + 1 :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=100)
