"""Chooses the settings to try and the ones to recommend.

Three small sweeps in turn, each with the best values of the previous ones: P_jmax, T_fwd,
hold-down time. A sweep is judged by U; among nearly equal settings other criteria decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bftrainer.simulate.whatif.assumptions import NODES_PER_TRAINER, Assumptions

P_JMAX_WORTH = 0.01  # a larger P_jmax slows every trainer: it must gain this much U
AS_GOOD = 0.002  # of U: smaller differences do not matter
USUAL_T_FWD_S = 120.0
LARGEST_P_JMAX = 1000  # the policy's bound


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One value of a sweep."""

    value: float
    utilization: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One setting tried at several values."""

    name: str  # of the setting
    unit: str
    points: tuple[SweepPoint, ...]
    chosen: float
    why: str


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


def sweep_p_jmax(values: Sequence[int], utilization: Callable[[int], float]) -> Sweep:
    """Choose the smallest number of trainers whose U is nearly the best."""
    points = tuple(SweepPoint(value=n, utilization=utilization(n)) for n in values)
    best = max(p.utilization for p in points)
    chosen = min(p.value for p in points if p.utilization >= best - P_JMAX_WORTH)
    return Sweep(
        name="p_jmax",
        unit="trainers",
        points=points,
        chosen=chosen,
        why=f"The fewest within {P_JMAX_WORTH:g} of the best U: each trainer is then fastest.",
    )


def sweep_t_fwd(values: Sequence[float], utilization: Callable[[float], float]) -> Sweep:
    """Choose the best value; among equals the one nearest to the default."""
    points = tuple(SweepPoint(value=s, utilization=utilization(s)) for s in values)
    best = max(p.utilization for p in points)
    equal = [p.value for p in points if p.utilization >= best - AS_GOOD]
    return Sweep(
        name="t_fwd_s",
        unit="s",
        points=points,
        chosen=min(equal, key=_from_usual),
        why=f"The nearest to {USUAL_T_FWD_S:g} s within {AS_GOOD:g} of the best U.",
    )


def _from_usual(t_fwd_s: float) -> tuple[float, float]:
    return abs(math.log(max(t_fwd_s, 0.1) / USUAL_T_FWD_S)), t_fwd_s


def sweep_hold_down(values: Sequence[float], utilization: Callable[[float], float]) -> Sweep:
    """Choose the longest hold-down time that costs nothing: the batch system gets fewer pilots."""
    points = tuple(SweepPoint(value=s, utilization=utilization(s)) for s in values)
    best = max(p.utilization for p in points)
    return Sweep(
        name="hold_down_s",
        unit="s",
        points=points,
        chosen=max(p.value for p in points if p.utilization >= best - AS_GOOD),
        why=f"The longest within {AS_GOOD:g} of the best U: the fewest pilots come for nothing.",
    )


def idle_confirmations(hold_down_s: float, poll_interval_s: float) -> int:
    """Return the policy setting that claims a node after this time (docs/reference/policy.md)."""
    return min(100, 1 + math.ceil(hold_down_s / poll_interval_s))
