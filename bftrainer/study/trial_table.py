"""A table of a study's trials, from the storage and the daemon together, and its summary. Pure.

The daemon knows the trainers and their budgets, the storage parameters, values and ends. A trial
that has ended in the storage is over, whether or not the daemon still knows it. The loop writes the
summary into the study's directory; ``status``, ``best``, ``export`` and plots show it.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
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
_FINISHED, _FAILED = str(TrainerState.FINISHED), str(TrainerState.FAILED)
_CANCELLED = str(TrainerState.CANCELLED)
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
        if self.view is not None and self.view.budget is not None:
            return self.view.budget
        return max(self.stored.budget, self.stored.granted)

    @property
    def attempt(self) -> int:
        """The number of the attempt that the newest trainer is."""
        return 0 if self.view is None else self.view.tag.attempt

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
        if self.stage is TrialStage.FAILED and not self.values and not self.has_failed:
            return SILENT
        return self.view.reason

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
        stored = self.stored.values
        return {units: value for units, value in self.values.items() if stored.get(units) != value}

    def as_trial(self, sign: float) -> StudyTrial:
        """Return it as a rule sees it."""
        values: list[TrialValue] = []
        for units, value in self.values.items():
            order = self.reported_s[units]
            values.append(TrialValue(units=units, value=sign * value, order=order))
        return StudyTrial(
            number=self.number,
            stage=self.stage,
            budget=self.budget,
            values=tuple(values),
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
    return tuple(
        _known(trial, attempts.get(trial.number, []), unit, retry, most) for trial in stored
    )


def _known(
    stored: StoredTrial, attempts: list[TrialView], unit: str, retry: int, most: float
) -> KnownTrial:
    view = max(attempts, key=_attempt, default=None)
    if stored.end is None and view is not None:
        _check_parameters(stored, view)
    values, reported_s = dict(stored.values), dict(stored.orders)
    if stored.end is None:
        for attempt in attempts:
            for report in attempt.reports:
                units = report.samples if unit == "samples" else report.epoch
                values[units], reported_s[units] = report.value, report.reported_s
    _fill_in(reported_s, values)
    excused = _excused(attempts)
    return KnownTrial(
        stored=stored,
        view=view,
        stage=_stage(stored, view, retry + len(excused), most),
        values=dict(sorted(values.items())),
        reported_s=reported_s,
        node_s=max(stored.node_s, sum(attempt.node_s for attempt in attempts)),
        is_excused=view in excused,
    )


def _attempt(view: TrialView) -> int:
    return view.tag.attempt


def _fill_in(reported_s: dict[int, float], values: Mapping[int, float]) -> None:
    """Add the times that are missing: not later than that of the next value.

    The daemon has thinned such a report out, or it is of a lost attempt.
    """
    units_with_time = sorted(reported_s)
    for units in values.keys() - reported_s.keys():
        place = bisect_right(units_with_time, units)
        reported_s[units] = 0.0
        if place < len(units_with_time):
            reported_s[units] = reported_s[units_with_time[place]]


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
    without_room = [attempt for attempt in attempts if _found_no_room(attempt)]
    return sorted(without_room, key=_attempt)[:MAX_EXCUSED]


def _found_no_room(attempt: TrialView) -> bool:
    return attempt.state == _FAILED and is_of_full_disk(attempt.reason)


def _stage(stored: StoredTrial, view: TrialView | None, retry: int, most: float) -> TrialStage:
    if stored.end is not None:
        return stored.end
    if view is not None:
        return _stage_of_trainer(view, retry)
    # It is created and about to be submitted, or the daemon has forgotten it.
    if max(stored.values, default=0) >= most:
        return TrialStage.COMPLETE
    return TrialStage.ACTIVE


def _stage_of_trainer(view: TrialView, retry: int) -> TrialStage:
    if view.state == _FINISHED:
        return TrialStage.COMPLETE
    if view.state == _CANCELLED:
        return TrialStage.STOPPED
    if view.state == _FAILED:
        is_tried_again = view.tag.attempt < retry and not happens_anywhere(view.reason)
        return TrialStage.ACTIVE if is_tried_again else TrialStage.FAILED
    if view.waits_at_rung:
        return TrialStage.WAITING
    return TrialStage.ACTIVE


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
        for row in self.trials:
            if row.number == self.best:
                return row
        return None


def answer(summary: StudySummary) -> str:
    """Return the best trial, and how far the study is, in one sentence."""
    how_far = f"{summary.over} of {len(summary.trials)} trials are over"
    row = summary.best_row
    if row is None or row.value is None:
        return f"No trial of {summary.name} has reported a value yet; {how_far}."
    so_far = "" if summary.state in (OVER, STOPPED) else " so far"
    return (
        f"The best of {summary.name}{so_far} is trial {row.number}: "
        f"{summary.metric} {quantity(row.value, 6)} after {row.units} {summary.unit}, with "
        f"{parameters_line(row.parameters) or 'no parameters'}; {how_far}."
    )


def with_values(summary: StudySummary) -> list[TrialRow]:
    """Return the trials that have reported a number, best first."""
    rows = [row for row in summary.trials if row.value is not None and math.isfinite(row.value)]
    sign = _sign(summary.direction)
    return sorted(rows, key=lambda row: sign * (row.value or 0.0))


def _sign(direction: str) -> float:
    """Return the factor that makes a value one to be minimised."""
    return -1.0 if direction == "maximize" else 1.0


def best_first(summary: StudySummary) -> list[TrialRow]:
    """Return the trials by their places: those that have a value, then the others."""
    placed = with_values(summary)
    numbers = {row.number for row in placed}
    return [*placed, *(row for row in summary.trials if row.number not in numbers)]


def facts_table(summary: StudySummary) -> TextTable:
    """Return where a study is, by which rule, and how far."""
    rule = dict(summary.rule)
    rule_name = rule.pop("name", None)
    settings = ", ".join(f"{setting} {value}" for setting, value in rule.items())
    trained = f"{time_span(summary.node_s)} of one node so far"
    return TextTable(
        headers=("", ""),
        rows=(
            ("study", f"{summary.study}, {summary.state}, in {summary.directory}"),
            ("rule", f"{rule_name}: {settings}"),
            (
                "trials",
                f"{summary.active} active, {summary.waiting} waiting, {summary.over} over",
            ),
            ("nodes", f"{summary.nodes} of {summary.pool_nodes}, {trained}"),
        ),
    )


def rung_table(summary: StudySummary) -> TextTable:
    """Return how many trials have which budget."""
    rows: list[tuple[str, ...]] = []
    for rung in summary.rungs:
        counts = (rung.budget, rung.active, rung.waiting, rung.over)
        rows.append(tuple(map(str, counts)))
    return TextTable(
        headers=(f">{summary.unit.upper()}", ">ACTIVE", ">WAITING", ">OVER"),
        rows=tuple(rows),
    )


def trial_table(summary: StudySummary, trials: Sequence[TrialRow]) -> TextTable:
    """Return some trials of a study, in their order."""
    return TextTable(
        headers=(
            ">TRIAL", "STAGE", f">{summary.metric.upper()}", ">AT", ">BUDGET", ">NODES",
            ">NODE-TIME", "PARAMETERS",
        ),
        rows=tuple(map(_cells, trials)),
    )  # fmt: skip


def _cells(row: TrialRow) -> tuple[str, ...]:
    return (
        str(row.number),
        row.stage,
        "-" if row.value is None else quantity(row.value, 6),
        str(row.units),
        str(row.budget),
        str(row.nodes),
        time_span(row.node_s),
        parameters_line(row.parameters),
    )


def parameters_line(parameters: Mapping[str, Any]) -> str:
    """Return parameters as people read them."""
    assignments: list[str] = []
    for name, value in parameters.items():
        text = str(value)
        if isinstance(value, float):
            text = quantity(value, 4, is_grouped=False)
        assignments.append(f"{name}={text}")
    return ", ".join(assignments)


def best_of(trials: Sequence[KnownTrial], sign: float) -> KnownTrial | None:
    """Return the best trial: the complete one with the best value.

    While none is complete it is one of those that have trained furthest; what a trial has trained
    beyond its budget (a program counts whole steps) brings it no further. Failed ones are the last;
    equal ones go by their number.
    """

    def key(trial: KnownTrial) -> tuple[bool, float, float, int]:
        units: float = min(trial.units, trial.budget)
        if trial.stage is TrialStage.COMPLETE:
            units = math.inf  # as far as a trial can be: its script may have ended early
        is_failed = trial.stage is TrialStage.FAILED
        return is_failed, -units, sign * trial.values[trial.units], trial.number

    return min((trial for trial in trials if trial.values), key=key, default=None)


def row_of(trial: KnownTrial, checkpoint_dir: str) -> TrialRow:
    """Return the row of a trial."""
    stored = trial.stored
    nodes, trainer_id = 0, ""
    if trial.view is not None:
        nodes, trainer_id = trial.view.nodes, trial.view.trainer_id
    return TrialRow(
        number=trial.number,
        stage=str(trial.stage),
        parameters=stored.parameters,
        value=trial.value,
        units=trial.units,
        budget=trial.budget,
        values=trial.values,
        nodes=nodes,
        node_s=round(trial.node_s, 3),
        bracket=stored.bracket,
        parent=stored.parent,
        attempt=trial.attempt,
        trainer_id=trainer_id,
        checkpoint_dir=checkpoint_dir,
        reason=trial.reason if trial.stage.is_over else "",
        began_s=stored.began_s,
        ended_s=stored.ended_s,
    )


def rungs_of(trials: Sequence[KnownTrial]) -> tuple[RungRow, ...]:
    """Return the budgets that trials have, lowest first."""
    stages_by_budget = defaultdict[int, list[TrialStage]](list)
    for trial in trials:
        stages_by_budget[trial.budget].append(trial.stage)
    rows: list[RungRow] = []
    for budget, stages in sorted(stages_by_budget.items()):
        over = sum(stage.is_over for stage in stages)
        waiting = stages.count(TrialStage.WAITING)
        active = len(stages) - over - waiting
        rows.append(RungRow(budget=budget, active=active, waiting=waiting, over=over))
    return tuple(rows)


def summarized(
    trials: Sequence[KnownTrial], view: StudyView | None, at_s: float, **head: Any
) -> StudySummary:
    """Return the summary of these trials; ``head`` is what does not follow from them."""
    best = best_of(trials, _sign(head["direction"]))
    stages = [trial.stage for trial in trials]
    folder = Path(head["directory"]) / "trials"
    nodes, node_s = 0, 0.0
    rows: list[TrialRow] = []
    for trial in trials:
        row = row_of(trial, str(folder / f"{trial.number:04d}"))
        nodes, node_s = nodes + row.nodes, node_s + trial.node_s
        rows.append(row)
    return StudySummary(
        **head,
        at_s=round(at_s, 3),
        pool_nodes=0 if view is None else view.pool_nodes,
        nodes=nodes,
        node_s=round(node_s, 3),
        active=stages.count(TrialStage.ACTIVE),
        waiting=stages.count(TrialStage.WAITING),
        over=sum(stage.is_over for stage in stages),
        best=None if best is None else best.number,
        rungs=rungs_of(trials),
        trials=tuple(rows),
    )


def refreshed(summary: StudySummary, view: StudyView, at_s: float) -> StudySummary:
    """Return an earlier summary with what the daemon knows now: no loop runs the study."""
    stored = list(map(_stored, summary.trials))
    trials = know(stored, view.trials, unit=summary.unit, retry=summary.retry)
    head = {name: getattr(summary, name) for name in _HEAD}
    return summarized(trials, view, at_s, **head)


def _stored(row: TrialRow) -> StoredTrial:
    """Return the trial of a row, as far as the storage would have it."""
    stage = TrialStage(row.stage)
    return StoredTrial(
        number=row.number,
        end=stage if stage.is_over else None,
        parameters=row.parameters,
        budget=row.budget,
        bracket=row.bracket,
        parent=row.parent,
        values=row.values,
        reason=row.reason,
        node_s=row.node_s,
        began_s=row.began_s,
        ended_s=row.ended_s,
    )
