"""Chooses the settings to try and the ones to recommend.

Three small sweeps in turn, each with the best values of the previous ones: P_jmax, T_fwd,
hold-down time. A sweep is judged by U, compared on the same stretches; among settings whose
difference is small or may be chance other criteria decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bftrainer.lab.whatif.replays import NODES_PER_TRAINER, Assumptions, Estimate

P_JMAX_WORTH = 0.01  # a larger P_jmax slows every trainer: it must gain this much U
AS_GOOD = 0.002  # of U: smaller differences do not matter
USUAL_T_FWD_S = 120.0
LARGEST_P_JMAX = 1000  # the policy's bound


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One value of a sweep."""

    value: float
    utilization: float
    low: float | None = None  # 95% interval of U; None: too few stretches
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One setting tried at several values."""

    name: str  # of the setting
    unit: str
    points: tuple[SweepPoint, ...]
    chosen: float
    why: str


class TriedSetting(Protocol):
    """The results of a setting's values on the same stretches."""

    def used(self, value: float, /) -> Estimate:
        """Return U with a value."""

    def gain(self, value: float, over: float, /) -> Estimate:
        """Return how much greater U is with a value than with another."""


def p_jmax_values(given: Assumptions, eq_nodes: float, large_pool: float) -> tuple[int, ...]:
    """Return the numbers of trainers to try: for 16, 8, 4 and 2 nodes each, on average.

    Args:
        given: what is assumed; values of its own are taken as they are.
        eq_nodes: N_eq of the machine.
        large_pool: a size of the pool that is seldom exceeded: all trainers together, at
            their largest, have to be able to use it.
    """
    if given.p_jmax:
        return given.p_jmax
    fewest = max(1, math.ceil(large_pool / given.n_max))
    tried = {max(fewest, round(eq_nodes / size)) for size in NODES_PER_TRAINER}
    return tuple(sorted({min(n, LARGEST_P_JMAX) for n in tried}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A setting, and its values in the order in which they are preferred."""

    name: str
    unit: str
    order: Callable[[float], Any]  # sorts values
    worth: float  # in U: a gain for which another value is taken
    words: tuple[str, str]  # around the rule


P_JMAX = Preference(
    name="p_jmax",
    unit="trainers",
    order=lambda count: count,
    worth=P_JMAX_WORTH,
    words=("The fewest", ": each trainer is then fastest."),
)
T_FWD = Preference(
    name="t_fwd_s",
    unit="s",
    order=lambda s: (abs(math.log(max(s, 0.1) / USUAL_T_FWD_S)), s),
    worth=AS_GOOD,
    words=(f"The nearest to {USUAL_T_FWD_S:g} s", "."),
)
HOLD_DOWN = Preference(
    name="hold_down_s",
    unit="s",
    order=lambda s: -s,
    worth=AS_GOOD,
    words=("The longest", ": the fewest pilots come for nothing."),
)


def sweep(setting: Preference, values: Sequence[float], tried: TriedSetting) -> Sweep:
    """Choose the preferred value to which no other is better by more than it has to be.

    With a difference that may be chance, too, the preferred value stays.
    """
    points = []
    for value in values:
        used = tried.used(value)
        points.append(SweepPoint(value=value, utilization=used.value, low=used.low, high=used.high))

    def is_surpassed(value: float) -> bool:
        gains = [tried.gain(other, value) for other in values if other != value]
        return any(g.value > setting.worth and (g.low is None or g.low > 0.0) for g in gains)

    chosen = next(v for v in sorted(values, key=setting.order) if not is_surpassed(v))
    shown = "" if points[0].low is None else ", with 95% confidence"
    first, last = setting.words
    return Sweep(
        name=setting.name,
        unit=setting.unit,
        points=tuple(points),
        chosen=chosen,
        why=f"{first} to which none is better by more than {setting.worth:g} of U{shown}{last}",
    )


def idle_confirmations(hold_down_s: float, poll_interval_s: float) -> int:
    """Return the policy setting that claims a node after this time (docs/reference/policy.md)."""
    return min(100, 1 + math.ceil(hold_down_s / poll_interval_s))
