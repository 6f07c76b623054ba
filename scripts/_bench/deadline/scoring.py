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


def plot(path: Any, groups: dict[str, tuple[Floats, Floats]]) -> None:
    """Draw a reliability diagram of each group of forecasts into a file."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(2.6 * len(groups), 2.9), layout="constrained")
    shared = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, (predicted, came_true)) in zip(shared, groups.items(), strict=True):
        bins = bins_of(predicted, came_true)
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        axes.plot([b.predicted for b in bins], [b.observed for b in bins], "o-", markersize=4)
        axes.set(title=name, xlabel="predicted", aspect="equal", xlim=(0, 1), ylim=(0, 1))
        axes.title.set_fontsize(9)
    shared[0].set_ylabel("observed")
    figure.savefig(path, dpi=150)
