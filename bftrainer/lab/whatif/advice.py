"""Chooses the settings to try and the ones to recommend.

Three small sweeps in turn, each with the best values of the previous ones: P_jmax, T_fwd,
hold-down time. A sweep is judged by U, compared on the same stretches; among settings whose
difference is small or may be chance other criteria decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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


def sweep_p_jmax(values: Sequence[int], tried: TriedSetting) -> Sweep:
    """Choose the smallest number of trainers that no other is shown to be better than."""
    why = ("The fewest", ": each trainer is then fastest.")
    return _sweep(("p_jmax", "trainers"), values, sorted(values), tried, P_JMAX_WORTH, why)


def sweep_t_fwd(values: Sequence[float], tried: TriedSetting) -> Sweep:
    """Choose the value nearest to the default that no other is shown to be better than."""
    nearest = sorted(values, key=lambda s: (abs(math.log(max(s, 0.1) / USUAL_T_FWD_S)), s))
    why = (f"The nearest to {USUAL_T_FWD_S:g} s", ".")
    return _sweep(("t_fwd_s", "s"), values, nearest, tried, AS_GOOD, why)


def sweep_hold_down(values: Sequence[float], tried: TriedSetting) -> Sweep:
    """Choose the longest hold-down time that costs nothing: the batch system gets fewer pilots."""
    why = ("The longest", ": the fewest pilots come for nothing.")
    longest = sorted(values, reverse=True)
    return _sweep(("hold_down_s", "s"), values, longest, tried, AS_GOOD, why)


def _sweep(
    called: tuple[str, str],
    values: Sequence[float],
    preferred: Sequence[float],
    tried: TriedSetting,
    worth: float,
    why: tuple[str, str],
) -> Sweep:
    points = tuple(
        SweepPoint(value=value, utilization=used.value, low=used.low, high=used.high)
        for value, used in ((value, tried.used(value)) for value in values)
    )
    shown = "" if points[0].low is None else ", with 95% confidence"
    name, unit = called
    return Sweep(
        name=name,
        unit=unit,
        points=points,
        chosen=_chosen(preferred, tried, worth),
        why=f"{why[0]} to which none is better by more than {worth:g} of U{shown}{why[1]}",
    )


def _chosen(preferred: Sequence[float], tried: TriedSetting, worth: float) -> float:
    """Return the first value to which no other is better by more than ``worth``.

    With a difference that may be chance, too, the preferred value stays.
    """

    def is_surpassed(value: float) -> bool:
        gains = [tried.gain(other, value) for other in preferred if other != value]
        return any(g.value > worth and (g.low is None or g.low > 0.0) for g in gains)

    return next(value for value in preferred if not is_surpassed(value))


def idle_confirmations(hold_down_s: float, poll_interval_s: float) -> int:
    """Return the policy setting that claims a node after this time (docs/reference/policy.md)."""
    return min(100, 1 + math.ceil(hold_down_s / poll_interval_s))
