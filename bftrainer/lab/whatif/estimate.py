"""Figures from replayed stretches, with their uncertainty.

The interval is a percentile bootstrap over the stretches (B. Efron, R. Tibshirani, An
Introduction to the Bootstrap, 1993): stretches are drawn again with replacement, all
figures of one drawing from the same stretches. It says how much the choice and the
chances of these stretches matter, not whether the assumptions hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bftrainer.lab.whatif.replays import Played
from bftrainer.lab.whatif.samples import FEWEST
from milp.problem import Curve

Values = NDArray[np.float64]
DRAWINGS = 2000
TAILS = (0.025, 0.975)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure and its 95% interval; None if there are too few stretches."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums over stretches, one entry per resample."""

    seconds: Values
    offered_node_s: Values
    harvested_node_s: Values
    samples: Values


def estimate(figure: Callable[..., Values], *plays: Sequence[Played], seed: int) -> Estimate:
    """Return a figure of one setting, or of several on the same stretches.

    Args:
        figure: from the ``Sums`` of each setting to values.
        plays: what the stretches gave under each setting, in the same order.
        seed: of the drawings.
    """
    n = len(plays[0])
    value = point(figure, *plays)
    if n < FEWEST:
        return Estimate(value=value)
    chance = np.random.Generator(np.random.PCG64(seed))
    weights = chance.multinomial(n, np.full(n, 1.0 / n), size=DRAWINGS).astype(np.float64)
    low, high = np.quantile(figure(*(_sums(p, weights) for p in plays)), TAILS)
    return Estimate(value=value, low=float(low), high=float(high))


def point(figure: Callable[..., Values], *plays: Sequence[Played]) -> float:
    """Return the figure of all stretches together."""
    return float(figure(*(_sums(p, np.ones((1, len(p)))) for p in plays))[0])


def _sums(played: Sequence[Played], weights: Values) -> Sums:
    def total(name: str) -> Values:
        column: Values = weights @ np.array([getattr(p, name) for p in played])
        return column

    return Sums(**{name: total(name) for name in Played.__slots__})


def utilization(sums: Sums, *, curve: Curve, p_jmax: int) -> Values:
    """Return U = A_e / A_s (eqs. 17-19), A_s with the full N_eq of these stretches."""
    share = sums.offered_node_s / sums.seconds / p_jmax
    rate = np.interp(share, (0, *curve.sizes), (0.0, *curve.samples_per_s))
    static: Values = rate * p_jmax * sums.seconds
    return sums.samples / np.where(static > 0, static, np.inf)


def harvested_share(sums: Sums) -> Values:
    """Return the part of the idle node-time in which a trainer trained."""
    offered = np.where(sums.offered_node_s > 0, sums.offered_node_s, np.inf)
    return sums.harvested_node_s / offered


def lost_share_per_second(base: Sums, dearer: Sums, *, step_s: float) -> Values:
    """Return the share of the samples that each additional second costs.

    Not of the node-time: with dear pauses the decision moves fewer nodes, so that more of
    them train, at sizes that are worth less.
    """
    before = np.where(base.samples > 0, base.samples, np.inf)
    return (base.samples - dearer.samples) / before / step_s


def times(share: Estimate, amount: float) -> Estimate:
    """Return the share of an amount that is known for the whole trace."""
    return Estimate(
        value=share.value * amount,
        low=None if share.low is None else share.low * amount,
        high=None if share.high is None else share.high * amount,
    )
