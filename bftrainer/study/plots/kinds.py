"""The pictures of a study: history, parameters, their importance, rungs.

Optuna's PED-ANOVA (Watanabe et al., IJCAI 2023) on the places of the trials: of those that trained
further the better, whatever they reported. Few trials of a study train in full, and values after
different budgets do not compare.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bftrainer.study.configurations import CategoricalParameter, Parameter
from bftrainer.study.outcome import TrialRow
from bftrainer.study.plots.material import Material, Stay
from bftrainer.study.plots.style import (
    ACTIVE,
    BEST,
    OTHERWISE,
    PALE,
    POOL,
    beside,
    matplotlib,
    plain,
    rung_colours,
    text,
    time_axis,
)
from bftrainer.study.trials import Scalar, TrialStage

MOST_SHADES = 9  # in the legend


def draw_history(figure: Any, found: Material) -> None:
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


def draw_parallel(figure: Any, found: Material) -> None:
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


LEAST = 5  # trials with values, or nothing can be said
TOP = 0.1  # of the trials are held against all


def ranked(found: Material) -> list[TrialRow]:
    """Return the trials that reported a value, best first: the further the better."""
    best_first = found.with_values[::-1]
    return sorted(best_first, key=lambda row: -row.units)


def importances(found: Material) -> dict[str, float]:
    """Return the share of each parameter, greatest first; {}: too little is known."""
    rows = ranked(found)
    searched = {
        name: one
        for name, one in found.parameters.items()
        if (len(one.choices) if isinstance(one, CategoricalParameter) else one.high - one.low) > 0
    }
    if len(rows) < LEAST or not searched:
        return {}
    import optuna  # noqa: PLC0415 - 0.2 s, and optional

    from bftrainer.study.sampler import distributions_of  # noqa: PLC0415 - it imports optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = distributions_of(searched)
    study = optuna.create_study()
    study.add_trials(
        [
            optuna.trial.create_trial(
                params={name: row.parameters[name] for name in searched},
                distributions=distributions,
                value=float(place),
            )
            for place, row in enumerate(rows)
        ]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(
            target_quantile=max(TOP, 2.0 / len(rows))
        )
        return optuna.importance.get_param_importances(study, evaluator=evaluator)


def draw_importance(figure: Any, found: Material) -> None:
    """Draw a bar per parameter."""
    shares, axes = importances(found), figure.subplots()
    axes.set_title("Importance of the parameters")
    if not shares:
        axes.set_axis_off()
        needed = f"{LEAST} trials with values, and a parameter that varies, are needed"
        axes.text(0.5, 0.5, needed, ha="center", transform=axes.transAxes)
        return
    names = list(shares)[::-1]
    bars = axes.barh(names, [shares[name] for name in names], color=ACTIVE, height=0.6)
    axes.bar_label(bars, labels=[f"{shares[name]:.2f}" for name in names], padding=3)
    axes.set_xlim(0.0, 1.12)
    axes.set_xlabel(f"share of what sets the best {TOP:.0%} of the trials apart")
    plain(axes)
    axes.grid(visible=False, axis="y")


HEIGHT_POINTS = 330.0  # of the upper part
MARKS = {TrialStage.COMPLETE: ("o", "trained in full"), TrialStage.FAILED: ("x", "failed")}


def draw_rungs(figure: Any, found: Material) -> None:
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
