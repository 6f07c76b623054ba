"""What a study has come to: the best trial, the rungs, a row for each trial. Pure.

The loop writes it into the study's directory; ``status``, ``best``, ``export`` and plots show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bftrainer.study.known import KnownTrial
from bftrainer.study.trials import Stage


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
    state: str  # running, left (no loop runs it), paused, stopped or over
    metric: str
    direction: str
    unit: str
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
    """Return the best trial: of those with the greatest budget that has values, the best value.

    A trial that has finished counts before one that has not; equal ones go by their number.
    """

    def key(one: KnownTrial) -> tuple[bool, int, float, int]:
        is_complete = one.stage is Stage.COMPLETE
        return not is_complete, -one.units, sign * one.values[one.units], one.number

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
        reason=stored.reason or (view.reason if view and one.stage.is_over else ""),
        began_s=stored.began_s,
        ended_s=stored.ended_s,
    )


def rungs_of(known: Sequence[KnownTrial]) -> tuple[RungRow, ...]:
    """Return the budgets that trials have, lowest first."""
    counts: dict[int, list[int]] = {}
    for one in known:
        at = counts.setdefault(one.budget, [0, 0, 0])
        at[2 if one.stage.is_over else 1 if one.stage is Stage.WAITING else 0] += 1
    return tuple(
        RungRow(budget=budget, active=a, waiting=w, over=o)
        for budget, (a, w, o) in sorted(counts.items())
    )
