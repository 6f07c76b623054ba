"""Learning curves: the error of each configuration by units trained. Assumed, not measured.

The network of a replay has no published curves of many configurations. ``drawn`` makes them like
those of LCDB (Mohr et al., ECML PKDD 2022; version 0.1.0), with training-set size in place of
epochs: 102 of its data sets have at least 300 configurations (learner and seeds) at 16 to 2,048
samples. One hundredth of a trial's full budget stands for 16 samples; the numbers below are the
medians over the sets. ``python scripts/bench_hpo.py --lcdb FILE`` computes them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Errors = NDArray[np.float64]

HUNDREDTHS = (1.0, 3.0, 9.0, 27.0, 100.0)  # of the full budget
SHARES = (0.0, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)  # of the configurations
# The error that a share of the configurations is below, by hundredths of the budget.
QUANTILES = (
    (0.211, 0.237, 0.250, 0.284, 0.332, 0.393, 0.468, 0.509, 0.673),
    (0.182, 0.194, 0.207, 0.231, 0.260, 0.307, 0.408, 0.484, 0.596),
    (0.171, 0.176, 0.183, 0.197, 0.220, 0.277, 0.373, 0.435, 0.556),
    (0.136, 0.143, 0.154, 0.171, 0.193, 0.235, 0.309, 0.412, 0.548),
    (0.111, 0.120, 0.129, 0.143, 0.169, 0.208, 0.268, 0.363, 0.538),
)
# How alike the orders of the configurations are: the correlation of their normal scores.
LIKENESS = (
    (1.0, 0.506, 0.375, 0.301, 0.256),
    (0.506, 1.0, 0.692, 0.549, 0.468),
    (0.375, 0.692, 1.0, 0.794, 0.699),
    (0.301, 0.549, 0.794, 1.0, 0.849),
    (0.256, 0.468, 0.699, 0.849, 1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurves:
    """Errors of configurations at some units, one row each; between units by their logarithm."""

    units: tuple[float, ...]  # ascending, above 0
    errors: Errors

    def __len__(self) -> int:
        """Return the number of configurations."""
        return len(self.errors)

    def error(self, number: int, units: float) -> float:
        """Return the error of a configuration after training for some units."""
        return float(np.interp(np.log(units), np.log(self.units), self.errors[number]))

    def at(self, units: Sequence[int]) -> Errors:
        """Return the errors of all configurations at these units, one row each."""
        rows = range(len(self))
        return np.array([[self.error(number, at) for at in units] for number in rows])


def drawn(trials: int, *, most: int, seed: int) -> LearningCurves:
    """Draw the curves of configurations that train for at most ``most`` units."""
    chance = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, trials])))
    scores = chance.standard_normal((trials, len(HUNDREDTHS))) @ np.linalg.cholesky(LIKENESS).T
    # Each one's place among the drawn ones; the tails are filled evenly, whatever the seed.
    places = (np.argsort(np.argsort(scores, axis=0), axis=0) + 0.5) / trials
    columns = [np.interp(places[:, k], SHARES, row) for k, row in enumerate(QUANTILES)]
    return LearningCurves(
        units=tuple(most * at / HUNDREDTHS[-1] for at in HUNDREDTHS), errors=np.stack(columns, 1)
    )


def medians(tables: Sequence[ArrayLike]) -> tuple[Errors, Errors]:
    """Return what QUANTILES and LIKENESS are, of other sets of curves.

    Args:
        tables: per set the errors, a row for each configuration, a column for each of HUNDREDTHS.
    """
    quantiles, likeness = [], []
    for table in tables:
        errors = np.asarray(table, dtype=np.float64)
        quantiles.append(np.quantile(errors, SHARES, axis=0).T)
        likeness.append(np.corrcoef(_normal_scores(errors).T))
    return np.median(quantiles, axis=0), np.median(likeness, axis=0)


def _normal_scores(errors: Errors) -> Errors:
    """Return the normal score of each error's place in its column; equal ones share theirs."""
    below = [(column[:, None] > column).sum(1) for column in errors.T]
    alike = [(column[:, None] == column).sum(1) for column in errors.T]
    places = (np.stack(below, 1) + np.stack(alike, 1) / 2.0) / len(errors)
    quantile = np.vectorize(NormalDist().inv_cdf, otypes=[np.float64])
    scores: Errors = quantile(places)
    return scores
