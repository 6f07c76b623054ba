"""Pictures of a study: its history, parameters, their importance, and rungs over time.

Importance is Optuna's PED-ANOVA (Watanabe et al., IJCAI 2023) on the places of the trials: of those
that trained further the better, whatever they reported. Few trials of a study train in full, and
values after different budgets do not compare.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from bftrainer.batch.traces.text import TraceError
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.quantities import quantity
from bftrainer.study.configurations import CategoricalParameter, Parameter
from bftrainer.study.trial_table import StudySummary, TrialRow, with_values
from bftrainer.study.trials import Scalar, TrialStage

_ENDS = {str(stage) for stage in TrialStage if stage.is_over}
_UNITS = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"))
ONE, ALL = (9.0, 5.5), (17.0, 10.5)  # inches
OTHERWISE = "print the numbers with 'bftrainer study export'"
BEST, POOL, ACTIVE, PALE = "#D55E00", "#009E73", "#0072B2", "#BBBBBB"
MOST_SHADES = 9  # in the legend
TICKS = 5
FAINT = 0.3  # opacity of lines when there are many
LEAST = 5  # trials with values, or nothing can be said
SHADES = 0.72, 0.33  # places in viridis: its ends cannot be seen on white, or on black
TOP = 0.1  # of the trials are held against all
HEIGHT_POINTS = 330.0  # of the upper part
MARKS = {TrialStage.COMPLETE: ("o", "trained in full"), TrialStage.FAILED: ("x", "failed")}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A time in which a trial was active, or waited at its rung; since the study began."""

    trial: int
    begin_s: float
    end_s: float
    budget: int
    is_active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """All that there is to draw."""

    summary: StudySummary
    parameters: Mapping[str, Parameter]
    reported: tuple[tuple[float, int, float], ...]  # when, units and value, in order of time
    stays: tuple[Stay, ...]
    ended: tuple[tuple[float, int, TrialStage], ...]  # when, trial, how
    pool: tuple[tuple[float, int], ...]  # since when so many nodes were the daemon's or idle
    duration_s: float

    @property
    def is_maximized(self) -> bool:
        """Return whether great values are good."""
        return self.summary.direction == "maximize"

    @property
    def with_values(self) -> list[TrialRow]:
        """Trials that have reported a number, best last."""
        return with_values(self.summary)[::-1]

    @property
    def clock(self) -> tuple[float, str]:
        """Seconds of the unit in which times are shown, and its name."""
        found = [(unit_s, name) for least, unit_s, name in _UNITS if self.duration_s >= least]
        return found[0] if found else (1.0, "seconds")


def material(
    summary: StudySummary, parameters: Mapping[str, Parameter], events: Iterable[Mapping[str, Any]]
) -> Material:
    """Put a study's events in order.

    After a crash of its loop one of them may be missing, or be there twice.
    """
    began_s = summary.created_s
    ordered = sorted(events, key=lambda event: float(event["at_s"]))
    last_s = max([summary.at_s, *(float(event["at_s"]) for event in ordered[-1:])])
    # Of events that are there twice the first counts.
    reported = {
        (e["trial"], e["units"]): (e["at_s"] - began_s, e["units"], e["value"])
        for e in reversed(ordered)
        if e["event"] == "reported" and math.isfinite(e["value"])
    }
    ended = {
        e["trial"]: (e["at_s"] - began_s, e["trial"], TrialStage(e["event"]))
        for e in reversed(ordered)
        if e["event"] in _ENDS
    }
    over_s = max((at_s for at_s, _, _ in ended.values()), default=0.0)
    is_over = summary.state in ("over", "stopped")
    duration_s = over_s if is_over and over_s > 0 else last_s - began_s
    return Material(
        summary=replace(
            summary,
            unit=_text(summary.unit),
            direction=_text(summary.direction),
            state=_text(summary.state),
        ),
        parameters=parameters,
        reported=tuple(sorted(reported.values(), key=lambda one: one[0])),
        stays=_stays(ordered, began_s, duration_s, summary.rule.get("most")),
        ended=tuple(ended.values()),
        pool=tuple((e["at_s"] - began_s, e["nodes"]) for e in ordered if e["event"] == "pool"),
        duration_s=max(1.0, duration_s),
    )


def _stays(
    ordered: Sequence[Mapping[str, Any]], began_s: float, duration_s: float, most: int | None
) -> tuple[Stay, ...]:
    """Return when each trial trained and waited; after the full budget none waits."""
    since: dict[int, tuple[float, int, bool]] = {}  # trial -> begin, budget, is active
    stays: list[Stay] = []

    def leave(trial: int, now_s: float) -> None:
        begin_s, budget, is_active = since.pop(trial, (now_s, 0, False))
        if begin_s < now_s:
            times = {"begin_s": begin_s, "end_s": now_s}
            stays.append(Stay(trial=trial, budget=budget, is_active=is_active, **times))

    for event in ordered:
        what, now_s = event["event"], event["at_s"] - began_s
        if what in ("started", "grown"):
            leave(event["trial"], now_s)
            since[event["trial"]] = now_s, event["budget"], True
        elif what == "reported":
            _, budget, is_active = since.get(event["trial"], (now_s, 0, False))
            if is_active and event["units"] >= budget and budget != most:
                leave(event["trial"], now_s)
                since[event["trial"]] = now_s, budget, False
        elif what in _ENDS:
            leave(event["trial"], now_s)
    for trial in list(since):
        leave(trial, duration_s)
    return tuple(stays)


def _text(words: object) -> str:
    """Return a user's words as matplotlib shows them, not as a formula."""
    return shown(str(words)).replace("$", r"\$")


def _rung_colours(budgets: Sequence[int]) -> dict[int, Any]:
    """Return a colour for each budget, blue for the greatest."""
    ordered = sorted(set(budgets))
    return {budget: shade_of((place + 1) / len(ordered)) for place, budget in enumerate(ordered)}


def shade_of(part: float) -> Any:
    """Return a colour from green (0) to blue (1); all can be seen on white and on black."""
    first, last = SHADES
    shades = matplotlib("", OTHERWISE).colormaps["viridis"]
    return shades(first + (last - first) * part)


def _time_axis(axes: Any, found: Material) -> float:
    """Label the time axis; return the seconds of its unit."""
    unit_s, name = found.clock
    axes.set_xlabel(f"time since the study began ({name})")
    axes.set_xlim(0.0, 1.01 * found.duration_s / unit_s)
    return unit_s


def _beside(axes: Any, title: str | None = None) -> None:
    """Put the legend, if it says anything, to the right of the axes."""
    if axes.get_legend_handles_labels()[0]:
        place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axes.legend(title=title, frameon=False, fontsize=8, **place)


def _plain(axes: Any) -> None:
    """Take off the upper and right lines of the frame, and draw a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def draw_history(figure: Any, found: Material) -> None:
    """Draw one point per report, its shade the units trained."""
    summary, axes = found.summary, figure.subplots()
    unit_s = _time_axis(axes, found)
    colours = _rung_colours([units for _, units, _ in found.reported])
    for units, colour in colours.items():
        points = [(at_s / unit_s, value) for at_s, of, value in found.reported if of == units]
        label = f"{units} {_text(summary.unit)}" if len(colours) <= MOST_SHADES else None
        axes.scatter(*zip(*points, strict=True), s=14, color=colour, label=label, linewidths=0)
    values = [value for _, _, value in found.reported]
    bests = list(accumulate(values, max if found.is_maximized else min))
    times = [at_s / unit_s for at_s, _, _ in found.reported]
    if bests:
        times.append(found.duration_s / unit_s)
        bests.append(bests[-1])
    axes.step(times, bests, where="post", color=BEST, linewidth=1.5, label="best so far")
    axes.set_ylabel(_text(f"{summary.metric} (to {summary.direction})"))
    axes.set_title("Values reported")
    _beside(axes, None if len(colours) <= MOST_SHADES else _text(f"darker: more {summary.unit}"))
    _plain(axes)


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
            return [(self.place(one), _text(one)) for one in self.choices]
        places = [k / (TICKS - 1) for k in range(TICKS)] if self.high > self.low else [0.5]
        return [(at, quantity(self._value(at))) for at in places]

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
    for place, row in enumerate(rows):
        heights = [scales[name].place(row.parameters[name]) for name in scales]
        heights.append(last.place(values[place]))
        is_best = row.number == summary.best
        axes.plot(
            range(len(names)),
            heights,
            color=BEST if is_best else shade_of(place / max(1, len(rows) - 1)),
            linewidth=2.2 if is_best else 0.9,
            alpha=1.0 if is_best or len(rows) <= 30 else FAINT,
            zorder=3 if is_best else 2,
            label=f"best, trial {row.number}" if is_best else None,
        )
    _axes(axes, [*scales.values(), last], names)
    axes.set_title("Parameters; green to blue: worse to better values")
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
    axes.set_xticks(range(len(names)), [_text(name) for name in names])
    axes.set_yticks([])
    axes.set_xlim(-0.35, len(names) - 0.8)
    axes.spines[:].set_visible(False)


def importances(found: Material) -> dict[str, float]:
    """Return the share of each parameter, greatest first; {}: too little is known."""
    best_first = found.with_values[::-1]
    rows = sorted(best_first, key=lambda row: -row.units)  # the further the better
    searched = {
        name: one
        for name, one in found.parameters.items()
        if (len(one.choices) if isinstance(one, CategoricalParameter) else one.high - one.low) > 0
    }
    if len(rows) < LEAST or not searched:
        return {}
    import optuna  # noqa: PLC0415 - 0.2 s, and optional

    from bftrainer.study.storage import distributions_of  # noqa: PLC0415 - it imports optuna

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
    places = range(len(names))
    bars = axes.barh(places, [shares[name] for name in names], color=ACTIVE, height=0.6)
    axes.set_yticks(places, [_text(name) for name in names])
    axes.bar_label(bars, labels=[f"{shares[name]:.2f}" for name in names], padding=3)
    axes.set_xlim(0.0, 1.12)
    axes.set_xlabel(f"share of what sets the best {TOP:.0%} of the trials apart")
    _plain(axes)
    axes.grid(visible=False, axis="y")


def draw_rungs(figure: Any, found: Material) -> None:
    """Draw a line per trial: a colour where it trains, grey where it waits."""
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    unit_s, summary = _time_axis(lower, found), found.summary
    colours = _rung_colours([stay.budget for stay in found.stays])
    count = 1 + max((stay.trial for stay in found.stays), default=0)
    width = min(7.0, max(0.6, 0.75 * HEIGHT_POINTS / count))
    waits = [stay for stay in found.stays if not stay.is_active]
    _lines(upper, waits, unit_s, colour=PALE, width=width / 3, label="waits at its rung")
    for budget, colour in colours.items():
        at = [stay for stay in found.stays if stay.is_active and stay.budget == budget]
        label = _text(f"trains to {budget} {summary.unit}")
        _lines(upper, at, unit_s, colour=colour, width=width, label=label)
    for stage, (mark, label) in MARKS.items():
        ends = [(at_s / unit_s, trial) for at_s, trial, how in found.ended if how is stage]
        if ends:
            upper.scatter(
                *zip(*ends, strict=True),
                marker=mark,
                s=max(8.0, min(36.0, 4 * width**2)),
                color="black",
                label=label,
                zorder=3,
                linewidths=0.8,
            )
    upper.yaxis.get_major_locator().set_params(integer=True)
    upper.set(title="Trials at their rungs", ylabel="trial", ylim=(-0.02 * count - 0.5, count))
    _beside(upper)
    _beneath(lower, found, unit_s)
    _plain(upper)
    _plain(lower)


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
    times = [0.0, *(at_s / unit_s for at_s, _ in steps)]
    active = list(accumulate((step for _, step in steps), initial=0))
    axes.step(times, active, where="post", color=ACTIVE, linewidth=1, label="active trials")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("nodes, trials")
    _beside(axes)


KINDS: Final[Mapping[str, Callable[[Any, Material], None]]] = {
    "history": draw_history,
    "parallel": draw_parallel,
    "importance": draw_importance,
    "rungs": draw_rungs,
}


def check_values(found: Material) -> None:
    """Check that there is something to draw.

    Raises:
        BftError: BFT-1661, no trial has reported a value yet.
    """
    if not found.with_values:
        raise BftError(
            "BFT-1661",
            f"There is nothing to draw: no trial of {found.summary.name} has reported a value.",
            f"See 'bftrainer study status {found.summary.directory}'.",
            exit_code=ExitCode.NOT_FOUND,
        )


def draw(found: Material, kind: str | None, path: Path) -> None:
    """Write a picture.

    Args:
        found: what to draw.
        kind: one of KINDS; None: all on one page.
        path: its ending says which format.

    Raises:
        BftError: BFT-1661, no trial has reported a value yet; BFT-1662, the file cannot be written.
        TraceError: BFT-4004, matplotlib is not installed.
    """
    check_values(found)
    figure = new_canvas(ONE if kind else ALL, OTHERWISE)
    summary = found.summary
    figure.suptitle(
        _text(f"{summary.name}: {len(summary.trials)} trials, rule {summary.rule.get('name')}, ")
        + _text(f"{summary.state}, {quantity(summary.node_s / 3600.0)} node-hours")
    )
    if kind:
        KINDS[kind](figure, found)
    else:
        parts = figure.subfigures(2, 2, hspace=0.05)
        for part, drawn in zip(parts.flat, KINDS.values(), strict=True):
            drawn(part, found)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as problem:  # a ValueError: the ending is unknown to matplotlib
        raise UsageError(
            "BFT-1662",
            f"The picture {path} cannot be written: {problem}.",
            "Name a file ending in .png, .svg or .pdf in a folder that you can write to.",
        ) from problem
