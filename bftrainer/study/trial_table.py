"""A table of a study's trials, from the storage and the daemon together. Pure.

The daemon knows the trainers and their budgets, the storage parameters, values and ends. A trial
that has ended in the storage is over, whether or not the daemon still knows it.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bftrainer.model.errors import BftError
from bftrainer.model.study import Report, TrialView
from bftrainer.model.trainer import TrainerState, happens_anywhere, is_of_full_disk
from bftrainer.study.trials import StoredTrial, StudyTrial, TrialStage, Value

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
            Value(units=units, value=sign * value, order=self.reported_s[units])
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
            units = _units(report, unit)
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
    )


def _units(report: Report, unit: str) -> int:
    return report.samples if unit == "samples" else report.epoch


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
