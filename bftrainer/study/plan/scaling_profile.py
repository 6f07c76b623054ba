"""How long a trial takes for a unit of its budget, by its GPUs (section 4.1 of the paper)."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import cache

from milp.problem import Curve

LEAST_S, MOST_S = 1e-6, 1e9  # of a unit


class Draw(enum.StrEnum):
    """What varies: the paper leaves it open, and its Fig. 9 depends on it."""

    UNIT = "unit"  # each unit of a trial by itself
    TASK = "task"  # a trial in a stage, all its units alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """A scaling profile, the same for all trials.

    Between the measured sizes it is a straight line in logarithms; beyond the last one the last
    slope goes on.
    """

    gpus: tuple[int, ...]  # ascending, from 1 on
    unit_s: tuple[float, ...]  # seconds per unit
    spread: float = 0.0  # standard deviation as a share of the mean
    draw: Draw = Draw.UNIT
    start_s: float = 0.0  # of a trial in a stage: its checkpoint is read, its workers connect
    n_min: int = 1  # GPUs of a trial
    n_max: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be interpolated."""
        ascending = sorted(set(self.gpus))
        if not ascending or list(self.gpus) != ascending or ascending[0] < 1:
            raise ValueError("sizes must ascend from 1 on")
        is_each = len(self.unit_s) == len(self.gpus)
        if not is_each or not all(LEAST_S <= s <= MOST_S for s in self.unit_s):
            raise ValueError(f"each size needs a time per unit, from {LEAST_S:g} to {MOST_S:g} s")
        if not 1 <= self.n_min <= (self.n_max or self.n_min):
            raise ValueError("1 <= n_min <= n_max is required of the sizes of a trial")

    def mean_s(self, gpus: int) -> float:
        """Return the mean time of a unit; more GPUs never take longer, as some may stay idle."""
        return _mean_s(self.gpus, self.unit_s, gpus)

    def share(self, gpus: int, trials: int) -> tuple[int, int]:
        """Return how many GPUs each trial of a stage gets, and how many trials train at once.

        All share equally, rounded down, and no trial gets more than make it faster. If there are
        too few for all, as many as can train, and each of the others after one of them.
        """
        each = gpus // trials
        if each < self.n_min:
            return self.n_min, gpus // self.n_min
        return max(self.n_min, self._useful(min(each, self.n_max or each))), trials

    def _useful(self, gpus: int) -> int:
        """Return the least GPUs that are as fast."""
        low, high, target_s = 1, gpus, self.mean_s(gpus)
        while low < high:
            middle = (low + high) // 2
            if self.mean_s(middle) <= target_s * (1 + 1e-12):
                high = middle
            else:
                low = middle + 1
        return low


def scaling_of(curve: Curve, samples_per_unit: float, **more: float) -> Scaling:
    """Return the profile of a throughput curve.

    Raises:
        ValueError: a size has no throughput.
    """
    if min(curve.samples_per_s, default=0.0) <= 0.0:
        raise ValueError("each size needs a positive throughput")
    unit_s = tuple(samples_per_unit / rate for rate in curve.samples_per_s)
    return Scaling(gpus=curve.sizes, unit_s=unit_s, **more)  # type: ignore[arg-type]


@cache
def _mean_s(sizes: tuple[int, ...], unit_s: tuple[float, ...], gpus: int) -> float:
    """Return the least of the line at ``gpus`` and of all that was measured below."""
    below = [s for size, s in zip(sizes, unit_s, strict=True) if size <= gpus]
    return min([*below, _line(sizes, unit_s, gpus)])


def _line(sizes: tuple[int, ...], unit_s: tuple[float, ...], gpus: int) -> float:
    if len(sizes) == 1:
        return unit_s[0] if gpus >= sizes[0] else unit_s[0] * sizes[0] / gpus
    if gpus < sizes[0]:
        return unit_s[0] * sizes[0] / gpus
    piece = next((i for i in range(1, len(sizes) - 1) if sizes[i] >= gpus), len(sizes) - 1)
    if unit_s[piece] >= unit_s[piece - 1]:
        return unit_s[piece - 1]  # the least is taken anyway, and a rising line may overflow
    slope = math.log(unit_s[piece] / unit_s[piece - 1]) / math.log(sizes[piece] / sizes[piece - 1])
    return float(unit_s[piece - 1] * (gpus / sizes[piece - 1]) ** slope)
