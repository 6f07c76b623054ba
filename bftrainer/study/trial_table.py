"""A table of a study's trials, from the storage and the daemon together, and its summary. Pure.

The daemon knows the trainers and their budgets, the storage parameters, values and ends. A trial
that has ended in the storage is over, whether or not the daemon still knows it. The loop writes the
summary into the study's directory; ``status``, ``best``, ``export`` and plots show it.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftrainer.model.columns import TextTable
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.quantities import quantity, time_span
from bftrainer.model.study import StudyView, TrialView
from bftrainer.model.trainer import TrainerState, happens_anywhere, is_of_full_disk
from bftrainer.study.trials import StoredTrial, StudyTrial, TrialStage, TrialValue

MAX_EXCUSED = 2  # failures of a trial for want of room; one that always needs more is to end
SILENT = "Its script reported no value: it is to call run.report(value)."
_FINISHED, _FAILED, _CANCELLED = (
    str(state) for state in (TrainerState.FINISHED, TrainerState.FAILED, TrainerState.CANCELLED)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTrial:
    """A trial, from both sides."""

    stored: StoredTrial
    view: TrialView | None  # its newest attempt; None: the daemon does not know it
    stage: TrialStage
    values: Mapping[int, float]  # units -> as reported, ascending
    reported_s: Mapping[int, float]  # units -> when
    node_s: float  # of all attempts that the daemon knows
    is_excused: bool  # its newest trainer failed, and that does not count

    @property
    def number(self) -> int:
        """Its number in the study."""
        return self.stored.number

    @property
    def budget(self) -> int:
        """Units granted so far."""
        budget = self.view.budget if self.view else None
        return max(self.stored.budget, self.stored.granted) if budget is None else budget

    @property
    def attempt(self) -> int:
        """The number of the attempt that the newest trainer is."""
        return self.view.tag.attempt if self.view else 0

    @property
    def units(self) -> int:
        """Units trained when it reported last; 0: it did not."""
        return max(self.values, default=0)

    @property
    def value(self) -> float | None:
        """The value that it reported last."""
        return self.values.get(self.units)

    @property
    def reason(self) -> str:
        """The reason why it has ended or failed; "": none is known."""
        if self.stored.reason or self.view is None:
            return self.stored.reason
        is_silent = self.stage is TrialStage.FAILED and not self.values and not self.has_failed
        return SILENT if is_silent else self.view.reason

    @property
    def is_ending(self) -> bool:
        """Return whether it has reported at its budget's end and not yet written its checkpoint."""
        return self.stage is TrialStage.ACTIVE and self.units >= self.budget

    @property
    def is_alive(self) -> bool:
        """Return whether the daemon has a trainer of it that has not ended."""
        return self.view is not None and self.view.state not in (_FINISHED, _FAILED, _CANCELLED)

    @property
    def is_to_retry(self) -> bool:
        """Return whether it failed and is to be tried again."""
        return self.stage is TrialStage.ACTIVE and self.has_failed

    @property
    def has_failed(self) -> bool:
        """Return whether its newest trainer failed."""
        return self.view is not None and self.view.state == _FAILED

    def unwritten(self) -> dict[int, float]:
        """Return the values that the storage lacks."""
        known = self.stored.values
        return {units: value for units, value in self.values.items() if known.get(units) != value}

    def as_trial(self, sign: float) -> StudyTrial:
        """Return it as a rule sees it."""
        values = tuple(
            TrialValue(units=units, value=sign * value, order=self.reported_s[units])
            for units, value in self.values.items()
        )
        return StudyTrial(
            number=self.number,
            stage=self.stage,
            budget=self.budget,
            values=values,
            bracket=self.stored.bracket,
            parent=self.stored.parent,
            stood=self.stored.stood,
        )


def know(
    stored: Sequence[StoredTrial],
    views: Iterable[TrialView],
    *,
    unit: str,
    retry: int,
    most: float = math.inf,
) -> tuple[KnownTrial, ...]:
    """Put both together, in the order of the trials' numbers.

    Args:
        stored: all trials of the storage.
        views: all that the daemon knows; several attempts of one trial are several trainers.
        unit: epochs or samples.
        retry: how often a failed trial is tried again.
        most: full budget of a trial. One that has reported there is complete if the daemon has
            forgotten it: it ended while no loop ran, longer ago than the journal goes back.

    Raises:
        BftError: BFT-1636, they are of different studies.
    """
    attempts: dict[int, list[TrialView]] = {}
    for view in views:
        attempts.setdefault(view.tag.number, []).append(view)
    return tuple(_known(one, attempts.get(one.number, []), unit, retry, most) for one in stored)


def _known(
    stored: StoredTrial, attempts: list[TrialView], unit: str, retry: int, most: float
) -> KnownTrial:
    view = max(attempts, key=lambda one: one.tag.attempt, default=None)
    if stored.end is None and view is not None:
        _check_parameters(stored, view)
    values, reported_s = dict(stored.values), dict(stored.orders)
    if stored.end is None:
        for report in (report for one in attempts for report in one.reports):
            units = report.samples if unit == "samples" else report.epoch
            values[units], reported_s[units] = report.value, report.reported_s
    excused = _excused(attempts)
    known = sorted(reported_s)
    for units in values.keys() - reported_s.keys():
        # The daemon has thinned it out, or it is of a lost attempt: not later than the next one.
        after = bisect_right(known, units)
        reported_s[units] = reported_s[known[after]] if after < len(known) else 0.0
    return KnownTrial(
        stored=stored,
        view=view,
        stage=_stage(stored, view, retry + len(excused), most),
        values={units: values[units] for units in sorted(values)},
        reported_s=reported_s,
        node_s=max(stored.node_s, sum(one.node_s for one in attempts)),
        is_excused=view in excused,
    )


def _check_parameters(stored: StoredTrial, view: TrialView) -> None:
    if json.loads(view.tag.parameters) == stored.parameters:
        return
    raise BftError(
        "BFT-1636",
        f"Trial {stored.number} trains with other parameters ({view.tag.parameters[:80]}) than"
        " the study's directory has: it is a copy, or was restored from a backup.",
        "Go on in the original directory, or begin another study.",
        exit_code=ExitCode.VALIDATION_FAILED,
    )


def _excused(attempts: list[TrialView]) -> list[TrialView]:
    """Return the failures that do not count: the first ones for want of room."""
    full = [one for one in attempts if one.state == _FAILED and is_of_full_disk(one.reason)]
    return sorted(full, key=lambda one: one.tag.attempt)[:MAX_EXCUSED]


def _stage(stored: StoredTrial, view: TrialView | None, retry: int, most: float) -> TrialStage:
    if stored.end is not None:
        return stored.end
    if view is None:  # created, and about to be submitted; or forgotten
        return TrialStage.COMPLETE if max(stored.values, default=0) >= most else TrialStage.ACTIVE
    if view.state == _FINISHED:
        return TrialStage.COMPLETE
    if view.state == _CANCELLED:
        return TrialStage.STOPPED
    if view.state == _FAILED:
        is_tried_again = view.tag.attempt < retry and not happens_anywhere(view.reason)
        return TrialStage.ACTIVE if is_tried_again else TrialStage.FAILED
    return TrialStage.WAITING if view.waits_at_rung else TrialStage.ACTIVE


# left: no loop runs it, and it is not over; failed: all its trials do, see BFT-1629
RUNNING, LEFT, FAILED, OVER, STOPPED = "running", "left", "failed", "over", "stopped"


SUMMARY_SCHEMA = "study-summary"  # name of its document
FORMER_SCHEMAS = ("study",)  # in summary.json of releases in which the API's view had it, too
# Fields of a summary that do not follow from the trials.
_HEAD = (
    *("study", "name", "directory", "state", "metric", "direction", "unit", "retry", "rule"),
    "created_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial."""

    number: int
    stage: str
    parameters: Mapping[str, Any]
    value: float | None  # the last one that it reported
    units: int  # epochs or samples trained when it reported that
    budget: int
    values: Mapping[int, float]  # units -> what it reported
    nodes: int
    node_s: float
    bracket: int
    parent: int | None
    attempt: int
    trainer_id: str  # "": the daemon does not know it
    checkpoint_dir: str
    reason: str  # why it ended
    began_s: float | None
    ended_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRow:
    """Trials that have the same budget now."""

    budget: int
    active: int
    waiting: int
    over: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """A study at one time."""

    study: str  # its id
    name: str
    directory: str
    state: str  # running, left, failed, paused, stopped or over
    metric: str
    direction: str
    unit: str
    retry: int
    rule: Mapping[str, Any]
    at_s: float
    created_s: float
    pool_nodes: int
    nodes: int  # that trials have
    node_s: float
    active: int
    waiting: int
    over: int
    best: int | None  # number of the best trial
    rungs: tuple[RungRow, ...]
    trials: tuple[TrialRow, ...]

    @property
    def best_row(self) -> TrialRow | None:
        """The best trial."""
        return next((row for row in self.trials if row.number == self.best), None)


def answer(summary: StudySummary) -> str:
    """Return the best trial, and how far the study is, in one sentence."""
    how_far = f"{summary.over} of {len(summary.trials)} trials are over"
    row = summary.best_row
    if row is None or row.value is None:
        return f"No trial of {summary.name} has reported a value yet; {how_far}."
    is_last = summary.state in ("over", "stopped")
    return (
        f"The best of {summary.name}{'' if is_last else ' so far'} is trial {row.number}: "
        f"{summary.metric} {quantity(row.value, 6)} after {row.units} {summary.unit}, with "
        f"{parameters_line(row.parameters) or 'no parameters'}; {how_far}."
    )


def with_values(summary: StudySummary) -> list[TrialRow]:
    """Return the trials that have reported a number, best first."""
    rows = [row for row in summary.trials if row.value is not None and math.isfinite(row.value)]
    sign = -1.0 if summary.direction == "maximize" else 1.0
    return sorted(rows, key=lambda row: sign * (row.value or 0.0))


def best_first(summary: StudySummary) -> list[TrialRow]:
    """Return the trials by their places: those that have a value, then the others."""
    placed = with_values(summary)
    numbers = {row.number for row in placed}
    return [*placed, *(row for row in summary.trials if row.number not in numbers)]


def facts_table(summary: StudySummary) -> TextTable:
    """Return where a study is, by which rule, and how far."""
    settings = ", ".join(f"{k} {v}" for k, v in summary.rule.items() if k != "name")
    trained = f"{time_span(summary.node_s)} of one node so far"
    return TextTable(
        headers=("", ""),
        rows=(
            ("study", f"{summary.study}, {summary.state}, in {summary.directory}"),
            ("rule", f"{summary.rule.get('name')}: {settings}"),
            (
                "trials",
                f"{summary.active} active, {summary.waiting} waiting, {summary.over} over",
            ),
            ("nodes", f"{summary.nodes} of {summary.pool_nodes}, {trained}"),
        ),
    )


def rung_table(summary: StudySummary) -> TextTable:
    """Return how many trials have which budget."""
    return TextTable(
        headers=(f">{summary.unit.upper()}", ">ACTIVE", ">WAITING", ">OVER"),
        rows=tuple(
            (str(rung.budget), str(rung.active), str(rung.waiting), str(rung.over))
            for rung in summary.rungs
        ),
    )


def trial_table(summary: StudySummary, trials: Sequence[TrialRow]) -> TextTable:
    """Return some trials of a study, in their order."""
    return TextTable(
        headers=(
            ">TRIAL", "STAGE", f">{summary.metric.upper()}", ">AT", ">BUDGET", ">NODES",
            ">NODE-TIME", "PARAMETERS",
        ),
        rows=tuple(
            (
                str(row.number),
                row.stage,
                "-" if row.value is None else quantity(row.value, 6),
                str(row.units),
                str(row.budget),
                str(row.nodes),
                time_span(row.node_s),
                parameters_line(row.parameters),
            )
            for row in trials
        ),
    )  # fmt: skip


def parameters_line(parameters: Mapping[str, Any]) -> str:
    """Return parameters as people read them."""
    return ", ".join(
        f"{name}={quantity(value, 4, is_grouped=False)}"
        if isinstance(value, float)
        else f"{name}={value}"
        for name, value in parameters.items()
    )


def best_of(known: Sequence[KnownTrial], sign: float) -> KnownTrial | None:
    """Return the best trial: the complete one with the best value.

    While none is complete it is one of those that have trained furthest; what a trial has trained
    beyond its budget (a program counts whole steps) brings it no further. Failed ones are the last;
    equal ones go by their number.
    """

    def key(one: KnownTrial) -> tuple[bool, float, float, int]:
        # As far as a trial can be, if it is complete: its script may have ended early.
        far = math.inf if one.stage is TrialStage.COMPLETE else min(one.units, one.budget)
        return one.stage is TrialStage.FAILED, -far, sign * one.values[one.units], one.number

    return min((one for one in known if one.values), key=key, default=None)


def row_of(one: KnownTrial, checkpoint_dir: str) -> TrialRow:
    """Return the row of a trial."""
    stored, view = one.stored, one.view
    return TrialRow(
        number=one.number,
        stage=str(one.stage),
        parameters=stored.parameters,
        value=one.value,
        units=one.units,
        budget=one.budget,
        values=one.values,
        nodes=view.nodes if view else 0,
        node_s=round(one.node_s, 3),
        bracket=stored.bracket,
        parent=stored.parent,
        attempt=one.attempt,
        trainer_id=view.trainer_id if view else "",
        checkpoint_dir=checkpoint_dir,
        reason=one.reason if one.stage.is_over else "",
        began_s=stored.began_s,
        ended_s=stored.ended_s,
    )


def rungs_of(known: Sequence[KnownTrial]) -> tuple[RungRow, ...]:
    """Return the budgets that trials have, lowest first."""
    counts: dict[int, list[int]] = {}
    for one in known:
        at = counts.setdefault(one.budget, [0, 0, 0])
        at[2 if one.stage.is_over else 1 if one.stage is TrialStage.WAITING else 0] += 1
    return tuple(
        RungRow(budget=budget, active=a, waiting=w, over=o)
        for budget, (a, w, o) in sorted(counts.items())
    )


def summarized(
    known: Sequence[KnownTrial], view: StudyView | None, at_s: float, **head: Any
) -> StudySummary:
    """Return the summary of these trials; ``head`` is what does not follow from them."""
    stages = [one.stage for one in known]
    best = best_of(known, -1.0 if head["direction"] == "maximize" else 1.0)
    trials = Path(head["directory"]) / "trials"
    return StudySummary(
        **head,
        at_s=round(at_s, 3),
        pool_nodes=0 if view is None else view.pool_nodes,
        nodes=sum(one.view.nodes for one in known if one.view),
        node_s=round(sum(one.node_s for one in known), 3),
        active=stages.count(TrialStage.ACTIVE),
        waiting=stages.count(TrialStage.WAITING),
        over=sum(stage.is_over for stage in stages),
        best=None if best is None else best.number,
        rungs=rungs_of(known),
        trials=tuple(row_of(one, str(trials / f"{one.number:04d}")) for one in known),
    )


def refreshed(summary: StudySummary, view: StudyView, at_s: float) -> StudySummary:
    """Return an earlier summary with what the daemon knows now: no loop runs the study."""
    same = ("number", "parameters", "budget", "bracket", "parent", "values", "reason", "node_s")
    stored = [
        StoredTrial(
            **{name: getattr(row, name) for name in (*same, "began_s", "ended_s")},
            end=stage if (stage := TrialStage(row.stage)).is_over else None,
        )
        for row in summary.trials
    ]
    known = know(stored, view.trials, unit=summary.unit, retry=summary.retry)
    return summarized(known, view, at_s, **{name: getattr(summary, name) for name in _HEAD})
