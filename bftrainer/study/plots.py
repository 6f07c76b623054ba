"""Pictures of a study: its history, parameters, their importance, and rungs over time.

Importance is Optuna's PED-ANOVA (Watanabe et al., IJCAI 2023) on the places of the trials: of those
that trained further the better, whatever they reported. Few trials of a study train in full, and
values after different budgets do not compare.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from bftrainer.batch.traces.text import TraceError
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.quantities import quantity
from bftrainer.study.configurations import CategoricalParameter, Parameter
from bftrainer.study.trial_table import OVER, STOPPED, StudySummary, TrialRow, with_values
from bftrainer.study.trials import Scalar, TrialStage

_ENDS = {str(stage) for stage in TrialStage if stage.is_over}
_UNITS = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"))
KINDS: Final = ("history", "parallel", "importance", "rungs")
ONE_INCHES, ALL_INCHES = (9.0, 5.5), (17.0, 10.5)  # width, height
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
        return importlib.import_module(f"matplotlib.{module}".rstrip("."))
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
        for shortest_s, unit_s, name in _UNITS:
            if self.duration_s >= shortest_s:
                return unit_s, name
        return 1.0, "seconds"


def material(
    summary: StudySummary, parameters: Mapping[str, Parameter], events: Iterable[Mapping[str, Any]]
) -> Material:
    """Put a study's events in order.

    After a crash of its loop one of them may be missing, or be there twice.
    """
    began_s = summary.created_s
    ordered_events = sorted(events, key=lambda event: float(event["at_s"]))
    last_s = summary.at_s
    if ordered_events:
        last_s = max(last_s, float(ordered_events[-1]["at_s"]))
    reported = _reports(ordered_events, began_s)
    ended = _ends(ordered_events, began_s)
    over_s = max((at_s for at_s, _, _ in ended), default=0.0)
    duration_s = last_s - began_s
    if summary.state in (OVER, STOPPED) and over_s > 0:
        duration_s = over_s
    pool_events = [event for event in ordered_events if event["event"] == "pool"]
    return Material(
        summary=replace(
            summary,
            unit=_text(summary.unit),
            direction=_text(summary.direction),
            state=_text(summary.state),
        ),
        parameters=parameters,
        reported=reported,
        stays=_stays(ordered_events, began_s, duration_s, summary.rule.get("most")),
        ended=ended,
        pool=tuple((event["at_s"] - began_s, event["nodes"]) for event in pool_events),
        duration_s=max(1.0, duration_s),
    )


def _reports(
    ordered_events: Sequence[Mapping[str, Any]], began_s: float
) -> tuple[tuple[float, int, float], ...]:
    """Return time, units and value of each report; of one that is there twice the first counts."""
    reports: dict[tuple[int, int], tuple[float, int, float]] = {}  # by trial and units
    for event in reversed(ordered_events):
        if event["event"] == "reported" and math.isfinite(event["value"]):
            report = (event["at_s"] - began_s, event["units"], event["value"])
            reports[event["trial"], event["units"]] = report
    return tuple(sorted(reports.values(), key=itemgetter(0)))


def _ends(
    ordered_events: Sequence[Mapping[str, Any]], began_s: float
) -> tuple[tuple[float, int, TrialStage], ...]:
    """Return when each trial ended, and how; of an end that is there twice the first counts."""
    ends: dict[int, tuple[float, int, TrialStage]] = {}
    for event in reversed(ordered_events):
        if event["event"] in _ENDS:
            at_s, trial = event["at_s"] - began_s, event["trial"]
            ends[trial] = (at_s, trial, TrialStage(event["event"]))
    return tuple(ends.values())


def _stays(
    ordered_events: Sequence[Mapping[str, Any]], began_s: float, duration_s: float, most: int | None
) -> tuple[Stay, ...]:
    """Return when each trial trained and waited; after the full budget none waits."""
    since: dict[int, tuple[float, int, bool]] = {}  # trial -> begin, budget, is active
    stays: list[Stay] = []

    def leave(trial: int, now_s: float) -> None:
        begin_s, budget, is_active = since.pop(trial, (now_s, 0, False))
        if begin_s < now_s:
            times = {"begin_s": begin_s, "end_s": now_s}
            stays.append(Stay(trial=trial, budget=budget, is_active=is_active, **times))

    for event in ordered_events:
        kind, now_s = event["event"], event["at_s"] - began_s
        if kind in ("started", "grown"):
            leave(event["trial"], now_s)
            since[event["trial"]] = now_s, event["budget"], True
        elif kind == "reported":
            _, budget, is_active = since.get(event["trial"], (now_s, 0, False))
            if is_active and event["units"] >= budget and budget != most:
                leave(event["trial"], now_s)
                since[event["trial"]] = now_s, budget, False
        elif kind in _ENDS:
            leave(event["trial"], now_s)
    for trial in list(since):
        leave(trial, duration_s)
    return tuple(stays)


def _text(words: object) -> str:
    """Return a user's words as matplotlib shows them, not as a formula."""
    return shown(str(words)).replace("$", r"\$")


def _rung_colours(budgets: Iterable[int]) -> dict[int, Any]:
    """Return a colour for each budget, blue for the greatest."""
    ascending = sorted(set(budgets))
    colours: dict[int, Any] = {}
    for place, budget in enumerate(ascending, start=1):
        colours[budget] = shade_of(place / len(ascending))
    return colours


def shade_of(part: float) -> Any:
    """Return a colour from green (0) to blue (1); all can be seen on white and on black."""
    first, last = SHADES
    shades = matplotlib("", OTHERWISE).colormaps["viridis"]
    return shades(first + (last - first) * part)


def _time_axis(axes: Any, material: Material) -> float:
    """Label the time axis; return the seconds of its unit."""
    unit_s, name = material.clock
    axes.set_xlabel(f"time since the study began ({name})")
    axes.set_xlim(0.0, 1.01 * material.duration_s / unit_s)
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


def draw_history(figure: Any, material: Material) -> None:
    """Draw one point per report, its shade the units trained."""
    summary, axes = material.summary, figure.subplots()
    unit_s = _time_axis(axes, material)
    points_by_units = defaultdict[int, list[tuple[float, float]]](list)
    for at_s, units, value in material.reported:
        points_by_units[units].append((at_s / unit_s, value))
    colours = _rung_colours(points_by_units)
    has_each_shade = len(colours) <= MOST_SHADES
    for units, colour in colours.items():
        times, values = zip(*points_by_units[units], strict=True)
        label = f"{units} {_text(summary.unit)}" if has_each_shade else None
        axes.scatter(times, values, s=14, color=colour, label=label, linewidths=0)
    _draw_best_so_far(axes, material, unit_s)
    axes.set_ylabel(_text(f"{summary.metric} (to {summary.direction})"))
    axes.set_title("Values reported")
    legend_title: str | None = None
    if not has_each_shade:
        legend_title = _text(f"darker: more {summary.unit}")
    _beside(axes, legend_title)
    _plain(axes)


def _draw_best_so_far(axes: Any, material: Material, unit_s: float) -> None:
    values = [value for _, _, value in material.reported]
    bests = list(accumulate(values, max if material.is_maximized else min))
    times = [at_s / unit_s for at_s, _, _ in material.reported]
    if bests:
        times.append(material.duration_s / unit_s)
        bests.append(bests[-1])
    axes.step(times, bests, where="post", color=BEST, linewidth=1.5, label="best so far")


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
        if high == low:
            return 0.5
        return (at - low) / (high - low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and labels."""
        if self.choices:
            return [(self.place(choice), _text(choice)) for choice in self.choices]
        places = [0.5]
        if self.high > self.low:
            places = [tick / (TICKS - 1) for tick in range(TICKS)]
        return [(place, quantity(self._value(place))) for place in places]

    def _value(self, at: float) -> float:
        if self.is_log:
            return float(self.low * (self.high / self.low) ** at)
        return self.low + (self.high - self.low) * at


def scale_of(parameter: Parameter) -> Scale:
    """Return the axis of a parameter: all of its range."""
    if isinstance(parameter, CategoricalParameter):
        return Scale(low=0.0, high=1.0, choices=parameter.choices)
    return Scale(low=parameter.low, high=parameter.high, is_log=parameter.log)


def draw_parallel(figure: Any, material: Material) -> None:
    """Draw the lines, the best one above all."""
    axes, summary = figure.subplots(), material.summary
    rows = material.with_values
    values = [float(row.value or 0.0) for row in rows]
    scales = {name: scale_of(parameter) for name, parameter in material.parameters.items()}
    metric_scale = Scale(low=min(values), high=max(values))
    names = [*scales, summary.metric]
    for place, row in enumerate(rows):
        heights = [scale.place(row.parameters[name]) for name, scale in scales.items()]
        heights.append(metric_scale.place(values[place]))
        style = {
            "color": shade_of(place / max(1, len(rows) - 1)),
            "linewidth": 0.9,
            "alpha": 1.0 if len(rows) <= 30 else FAINT,
            "zorder": 2,
        }
        if row.number == summary.best:
            style = {
                "color": BEST,
                "linewidth": 2.2,
                "alpha": 1.0,
                "zorder": 3,
                "label": f"best, trial {row.number}",
            }
        axes.plot(range(len(names)), heights, **style)
    _axes(axes, [*scales.values(), metric_scale], names)
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
    axes.set_xticks(range(len(names)), list(map(_text, names)))
    axes.set_yticks([])
    axes.set_xlim(-0.35, len(names) - 0.8)
    axes.spines[:].set_visible(False)


def importances(material: Material) -> dict[str, float]:
    """Return the share of each parameter, greatest first; {}: too little is known."""
    best_first = material.with_values[::-1]
    rows = sorted(best_first, key=lambda row: -row.units)  # the further the better
    searched = {
        name: parameter for name, parameter in material.parameters.items() if _varies(parameter)
    }
    if len(rows) < LEAST or not searched:
        return {}
    import optuna  # noqa: PLC0415 - 0.2 s, and optional

    from bftrainer.study.storage import distributions_of  # noqa: PLC0415 - it imports optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = distributions_of(searched)
    study = optuna.create_study()
    trials: list[optuna.trial.FrozenTrial] = []
    for place, row in enumerate(rows):
        parameters = {name: row.parameters[name] for name in searched}
        trial = optuna.trial.create_trial(
            params=parameters, distributions=distributions, value=float(place)
        )
        trials.append(trial)
    study.add_trials(trials)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(
            target_quantile=max(TOP, 2.0 / len(rows))
        )
        return optuna.importance.get_param_importances(study, evaluator=evaluator)


def _varies(parameter: Parameter) -> bool:
    if isinstance(parameter, CategoricalParameter):
        return len(parameter.choices) > 0
    return parameter.high > parameter.low


def draw_importance(figure: Any, material: Material) -> None:
    """Draw a bar per parameter."""
    shares, axes = importances(material), figure.subplots()
    axes.set_title("Importance of the parameters")
    if not shares:
        axes.set_axis_off()
        message = f"{LEAST} trials with values, and a parameter that varies, are needed"
        axes.text(0.5, 0.5, message, ha="center", transform=axes.transAxes)
        return
    names = list(shares)[::-1]
    places, widths = range(len(names)), list(shares.values())[::-1]
    bars = axes.barh(places, widths, color=ACTIVE, height=0.6)
    axes.set_yticks(places, list(map(_text, names)))
    axes.bar_label(bars, labels=[f"{width:.2f}" for width in widths], padding=3)
    axes.set_xlim(0.0, 1.12)
    axes.set_xlabel(f"share of what sets the best {TOP:.0%} of the trials apart")
    _plain(axes)
    axes.grid(visible=False, axis="y")


def draw_rungs(figure: Any, material: Material) -> None:
    """Draw a line per trial: a colour where it trains, grey where it waits."""
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    unit_s, summary = _time_axis(lower, material), material.summary
    colours = _rung_colours(stay.budget for stay in material.stays)
    count = 1 + max((stay.trial for stay in material.stays), default=0)
    width = min(7.0, max(0.6, 0.75 * HEIGHT_POINTS / count))
    waits = [stay for stay in material.stays if not stay.is_active]
    _lines(upper, waits, unit_s, colour=PALE, width=width / 3, label="waits at its rung")
    training = [stay for stay in material.stays if stay.is_active]
    for budget, colour in colours.items():
        stays = [stay for stay in training if stay.budget == budget]
        label = _text(f"trains to {budget} {summary.unit}")
        _lines(upper, stays, unit_s, colour=colour, width=width, label=label)
    _draw_ends(upper, material, unit_s, width)
    upper.yaxis.get_major_locator().set_params(integer=True)
    upper.set(title="Trials at their rungs", ylabel="trial", ylim=(-0.02 * count - 0.5, count))
    _beside(upper)
    _beneath(lower, material, unit_s)
    _plain(upper)
    _plain(lower)


def _draw_ends(axes: Any, material: Material, unit_s: float, width: float) -> None:
    """Draw a mark where a trial failed or has trained in full."""
    for stage, (mark, label) in MARKS.items():
        ends = [(at_s / unit_s, trial) for at_s, trial, end in material.ended if end is stage]
        if ends:
            times, trials = zip(*ends, strict=True)
            axes.scatter(
                times,
                trials,
                marker=mark,
                s=max(8.0, min(36.0, 4 * width**2)),
                color="black",
                label=label,
                zorder=3,
                linewidths=0.8,
            )


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


def _beneath(axes: Any, material: Material, unit_s: float) -> None:
    """Draw the nodes of the pool, and how many trials were active."""
    if material.pool:
        times = [at_s / unit_s for at_s, _ in material.pool]
        times.append(material.duration_s / unit_s)
        nodes = [nodes for _, nodes in material.pool]
        nodes.append(nodes[-1])
        axes.step(times, nodes, where="post", color=POOL, label="nodes of the pool")
    changes: list[tuple[float, int]] = []  # when one trial more, or fewer, was active
    for stay in material.stays:
        if stay.is_active:
            changes += [(stay.begin_s, 1), (stay.end_s, -1)]
    changes.sort()
    times, active = [0.0], [0]
    for at_s, change in changes:
        times.append(at_s / unit_s)
        active.append(active[-1] + change)
    axes.step(times, active, where="post", color=ACTIVE, linewidth=1, label="active trials")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("nodes, trials")
    _beside(axes)


def draw_kind(figure: Any, material: Material, kind: str) -> None:
    """Draw one of ``KINDS``."""
    drawings: Mapping[str, Callable[[Any, Material], None]] = {
        "history": draw_history,
        "parallel": draw_parallel,
        "importance": draw_importance,
        "rungs": draw_rungs,
    }
    drawings[kind](figure, material)


def check_values(material: Material) -> None:
    """Check that there is something to draw.

    Raises:
        BftError: BFT-1661, no trial has reported a value yet.
    """
    if not material.with_values:
        raise BftError(
            "BFT-1661",
            f"There is nothing to draw: no trial of {material.summary.name} has reported a value.",
            f"See 'bftrainer study status {material.summary.directory}'.",
            exit_code=ExitCode.NOT_FOUND,
        )


def draw(material: Material, kind: str | None, path: Path) -> None:
    """Write a picture.

    Args:
        material: what to draw.
        kind: one of KINDS; None: all on one page.
        path: its ending says which format.

    Raises:
        BftError: BFT-1661, no trial has reported a value yet; BFT-1662, the file cannot be written.
        TraceError: BFT-4004, matplotlib is not installed.
    """
    check_values(material)
    figure = new_canvas(ONE_INCHES if kind else ALL_INCHES, OTHERWISE)
    summary = material.summary
    figure.suptitle(
        _text(f"{summary.name}: {len(summary.trials)} trials, rule {summary.rule.get('name')}, ")
        + _text(f"{summary.state}, {quantity(summary.node_s / 3600.0)} node-hours")
    )
    if kind:
        draw_kind(figure, material, kind)
    else:
        parts = figure.subfigures(2, 2, hspace=0.05)
        for part, part_kind in zip(parts.flat, KINDS, strict=True):
            draw_kind(part, material, part_kind)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as problem:  # a ValueError: the ending is unknown to matplotlib
        raise UsageError(
            "BFT-1662",
            f"The picture {path} cannot be written: {problem}.",
            "Name a file ending in .png, .svg or .pdf in a folder that you can write to.",
        ) from problem
