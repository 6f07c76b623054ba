"""Rungs of successive halving: numbers of trials and their budgets. Pure.

Used by the rules, the planner and the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from bftrainer.study.rungs.ranking import require


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
