"""The standing of trials at a rung. Shared by the rules. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter

from bftrainer.study.trials import StudyTrial, TrialStage, Value

_UNITS = attrgetter("units")


def require(**least: tuple[int, int]) -> None:
    """Refuse settings that are too small; each is its value and the least one.

    Raises:
        ValueError: names the setting.
    """
    for name, (value, bound) in least.items():
        if value < bound:
            raise ValueError(f"{name} is {value}; at least {bound} is required")


def has_reached(trial: StudyTrial, budget: int) -> bool:
    """Tell whether a trial has trained up to a budget.

    One that failed on the way has not, unless it reported a value at the budget itself.
    """
    if trial.budget > budget:
        return True
    if trial.budget < budget:
        return False
    if trial.stage in (TrialStage.ACTIVE, TrialStage.FAILED):
        return bool(trial.values) and trial.values[-1].units >= budget
    return True


def value_at(trial: StudyTrial, budget: int) -> float | None:
    """Return the value with which a trial is compared at a rung; None: it has not reached it.

    Failures and what is not a number (a loss that diverged) count as infinite, which no rule
    promotes.
    """
    if not has_reached(trial, budget):
        is_lost = trial.stage is TrialStage.FAILED and trial.budget == budget
        return math.inf if is_lost else None
    value = _last_at(trial, budget)
    if value is None:
        return None
    return math.inf if math.isnan(value.value) else value.value


def _last_at(trial: StudyTrial, budget: int) -> Value | None:
    """Return the last value of a trial at the end of a budget that it has reached.

    A program that counts whole steps reports it a little beyond the budget.
    """
    if trial.budget == budget:
        return trial.values[-1] if trial.values else None
    return newest(trial, trial.stood.get(budget, budget))


def newest(trial: StudyTrial, budget: int) -> Value | None:
    """Return what ``trial.at(budget)`` does, in less time."""
    values = trial.values
    if not values or values[-1].units <= budget:
        return values[-1] if values else None
    count = bisect_right(values, budget, key=_UNITS)
    return values[count - 1] if count else None


def best_first(trials: Iterable[StudyTrial], budget: int) -> list[tuple[float, int]]:
    """Return value and number of the trials that have a value at a rung, ties by number."""
    return sorted(
        (value, trial.number) for trial in trials if (value := value_at(trial, budget)) is not None
    )


def rung_of(trial: StudyTrial, budgets: list[int]) -> int:
    """Return the rung that a trial trains for or has reached."""
    return max(bisect_right(budgets, trial.budget) - 1, 0)


def first_beyond(trial: StudyTrial, budget: int) -> Value | None:
    """Return the first value at or beyond a budget; None: none yet."""
    values = trial.values
    if not values or values[-1].units < budget:
        return None
    return values[bisect_left(values, budget, key=_UNITS)]
