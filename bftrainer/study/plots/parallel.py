"""Parallel coordinates: a line per trial through its parameters to its value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bftrainer.study.parameters import CategoricalParameter, Parameter
from bftrainer.study.plots.canvas import matplotlib
from bftrainer.study.plots.material import Material
from bftrainer.study.plots.style import BEST, OTHERWISE, text
from bftrainer.study.trial_record import Scalar

TICKS = 5
FAINT = 0.3  # opacity of lines when there are many


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One vertical axis from 0 to 1."""

    low: float
    high: float
    is_log: bool = False
    choices: tuple[Scalar, ...] = ()

    def place(self, value: Scalar) -> float:
        """Return where a value is."""
        if self.choices:
            return (self.choices.index(value) + 0.5) / len(self.choices)
        low, high, at = self.low, self.high, float(value)
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return 0.5 if high == low else (at - low) / (high - low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and labels."""
        if self.choices:
            return [(self.place(one), text(one)) for one in self.choices]
        places = [k / (TICKS - 1) for k in range(TICKS)] if self.high > self.low else [0.5]
        return [(at, f"{self._value(at):.3g}") for at in places]

    def _value(self, at: float) -> float:
        if self.is_log:
            return float(self.low * (self.high / self.low) ** at)
        return self.low + (self.high - self.low) * at


def scale_of(parameter: Parameter) -> Scale:
    """Return the axis of a parameter: all of its range."""
    if isinstance(parameter, CategoricalParameter):
        return Scale(low=0.0, high=1.0, choices=parameter.choices)
    return Scale(low=parameter.low, high=parameter.high, is_log=parameter.log)


def draw(figure: Any, found: Material) -> None:
    """Draw the lines, the best one above all."""
    axes, summary = figure.subplots(), found.summary
    rows = found.with_values
    values = [float(row.value or 0.0) for row in rows]
    scales = {name: scale_of(one) for name, one in found.parameters.items()}
    last = Scale(low=min(values), high=max(values))
    names = [*scales, summary.metric]
    shades = matplotlib("", OTHERWISE).colormaps["viridis"]
    for place, row in enumerate(rows):
        heights = [scales[name].place(row.parameters[name]) for name in scales]
        heights.append(last.place(values[place]))
        is_best = row.number == summary.best
        axes.plot(
            range(len(names)),
            heights,
            color=BEST if is_best else shades(1.0 - place / max(1, len(rows) - 1)),
            linewidth=2.2 if is_best else 0.9,
            alpha=1.0 if is_best or len(rows) <= 30 else FAINT,
            zorder=3 if is_best else 2,
            label=f"best, trial {row.number}" if is_best else None,
        )
    _axes(axes, [*scales.values(), last], names)
    axes.set_title("Parameters; dark lines: better values")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), frameon=False)


def _axes(axes: Any, scales: Sequence[Scale], names: Sequence[str]) -> None:
    for place, scale in enumerate(scales):
        axes.axvline(place, color="black", linewidth=0.8, zorder=1)
        for at, label in scale.ticks():
            axes.annotate(
                label,
                (place, at),
                xytext=(-4, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.7},
                zorder=4,
            )
    axes.set_xticks(range(len(names)), [text(name) for name in names])
    axes.set_yticks([])
    axes.set_xlim(-0.35, len(names) - 0.8)
    axes.spines[:].set_visible(False)
