"""Random latencies of the tasks of a study, the same numbers for every plan.

Common random numbers make plans comparable with few samples. The closed form and the graph of
tasks (``dag``) draw from here.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from bftrainer.study.plan.experiment import Stage
from bftrainer.study.plan.scaling_profile import Draw, Scaling

Floats = npt.NDArray[np.float64]
LEAST = 0.05  # nothing is faster than this share of its mean
FEW = 16  # units drawn one by one; the sum of more is normal


def unit_draws(scaling: Scaling, stage: Stage, index: int, samples: int, seed: int) -> Floats:
    """Return the length of each trial of a stage in mean units: samples x trials."""
    if scaling.spread == 0.0:
        return np.full((1, stage.trials), float(stage.units))
    random = np.random.default_rng((seed, index))
    shape = (samples, stage.trials)
    if scaling.draw is Draw.TASK:
        return stage.units * _varied(random.standard_normal(shape), scaling.spread)
    if stage.units <= FEW:
        each = random.standard_normal((*shape, stage.units))
        return np.asarray(_varied(each, scaling.spread).sum(2))
    mean, variance = _moments(scaling.spread)
    sums = stage.units * mean + math.sqrt(stage.units * variance) * random.standard_normal(shape)
    return np.maximum(LEAST * stage.units, sums)


def _varied(normal: Floats, spread: float) -> Floats:
    return np.maximum(LEAST, 1.0 + spread * normal)


@cache
def _moments(spread: float) -> tuple[float, float]:
    """Mean and variance of one unit: a normal number that is cut off below."""
    z = np.linspace(-8.0, 8.0, 20_001)
    weight = np.exp(-z * z / 2.0)
    weight /= weight.sum()
    x = _varied(z, spread)
    mean = float(weight @ x)
    return mean, float(weight @ x**2) - mean**2
