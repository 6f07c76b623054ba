"""The summary of a study: the best trial, the rungs, a row for each trial. Pure.

The loop writes it into the study's directory; ``status``, ``best``, ``export`` and plots show it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftrainer.model.study import StudyView
from bftrainer.study.trial_table import KnownTrial, know
from bftrainer.study.trials import StoredTrial, TrialStage

# left: no loop runs it, and it is not over; failed: all its trials do, see BFT-1629
RUNNING, LEFT, FAILED, OVER, STOPPED = "running", "left", "failed", "over", "stopped"


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


def parameters_line(parameters: Mapping[str, Any]) -> str:
    """Return parameters as people read them."""
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
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
