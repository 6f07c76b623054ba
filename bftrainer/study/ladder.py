"""Rungs of successive halving, and the rank of trials at a rung. Pure.

Used by the rules, the planner and the simulator.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, ClassVar

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Trials that train up to the same budget."""

    trials: int  # at most, once all that began below have been compared
    budget: int  # units (epochs or samples) of one trial since its beginning


def ladder(trials: int, least: int, most: int, eta: int) -> tuple[Rung, ...]:
    """Return the rungs of successive halving, lowest first (Jamieson and Talwalkar 2016).

    Rung k has floor(trials / eta**k) trials and the budget least * eta**k; the last one, where
    one trial is left or the next budget would pass ``most``, has the budget ``most``.

    Args:
        trials: at the lowest rung, at least 1.
        least: budget of the lowest rung, at least 1.
        most: full budget of a trial, at least ``least``.
        eta: of ``eta`` trials one is promoted, at least 2.

    Raises:
        ValueError: an argument is out of its range.
    """
    if trials < 1 or least < 1 or most < least or eta < 2:
        raise ValueError("trials >= 1, 1 <= least <= most and eta >= 2 are required")
    rungs: list[Rung] = []
    left, budget = trials, least
    while left // eta >= 1 and budget * eta <= most:
        rungs.append(Rung(trials=left, budget=budget))
        left, budget = left // eta, budget * eta
    return (*rungs, Rung(trials=left, budget=most))


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """The settings of ``asha``, ``sha`` and ``stopping``."""

    name: ClassVar[str]

    trials: int
    least: int = 1
    most: int
    eta: int = 3

    def __post_init__(self) -> None:
        require(
            trials=(self.trials, 1),
            least=(self.least, 1),
            most=(self.most, self.least),
            eta=(self.eta, 2),
        )

    @property
    def wanted(self) -> int:
        """Trials that it starts."""
        return self.trials

    def describe(self) -> Mapping[str, Any]:
        """Return the rule's name and settings."""
        return {"name": self.name, **asdict(self)}
