"""What is still to be paid, by the instances that are there and the time that is left.

Time is cut into bins. Durations rounded down give a lower bound of all plans, rounded up the cost
of a plan that is surely in time. The instances matter only whether a stage needs more of them or
not, and what growing costs is linear in both numbers: so a stage takes one pass over instances x
bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bftrainer.study.plan.cloud import Billing
from bftrainer.study.plan.draws import Floats
from bftrainer.study.plan.options import Option
from bftrainer.study.plan.stage_cost import Costs

CELLS = 4_000_000  # of all stages
MOST_BINS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Least costs of the stages from one on: ``to_pay[stage][instances, bins left]``."""

    to_pay: tuple[Floats, ...]  # one more than stages; the last is 0
    bin_s: float
    rounds_up: bool

    def rest(self, stage: int, instances: int | np.ndarray, left_s: Floats) -> Floats:
        """Return what is to be paid from a stage on; infinite where it cannot be in time."""
        table = self.to_pay[stage]
        bins = left_s / self.bin_s
        whole = (np.floor(bins) if self.rounds_up else np.ceil(bins)).astype(np.int64)
        rows = np.minimum(instances, len(table) - 1)
        rest = table[rows, np.clip(whole, 0, table.shape[1] - 1)]
        return np.where(left_s < -1e-9, np.inf, rest)


def grid(
    costs: Costs, options: Sequence[Sequence[Option]], deadline_s: float, *, rounds_up: bool
) -> Grid:
    """Compute the costs backward from the end."""
    rows = 1 if costs.cloud.is_free_to_grow else 1 + max(o.instances for of in options for o in of)
    bins = max(200, min(MOST_BINS, CELLS // (rows * len(options))))
    bin_s = deadline_s / bins
    tables = [np.zeros((rows, bins + 1))]
    for of in reversed(options):
        tables.append(_before(costs, of, tables[-1], bin_s, rounds_up=rounds_up))
    return Grid(to_pay=tuple(reversed(tables)), bin_s=bin_s, rounds_up=rounds_up)


def _before(
    costs: Costs, options: Sequence[Option], after: Floats, bin_s: float, *, rounds_up: bool
) -> Floats:
    """Return the costs with one stage more in front."""
    rows = len(after)

    def bins(seconds: float) -> int:
        return math.ceil(seconds / bin_s - 1e-9) if rounds_up else math.floor(seconds / bin_s)

    stay = np.full(after.shape, np.inf)  # by the instances of the stage
    for one in options:
        row = min(one.instances, rows - 1)
        np.minimum(stay[row], one.cost + _later(after[row], bins(one.length_s)), out=stay[row])
    if rows == 1:
        return stay
    grow_s = _grow_s(costs, rows - 1, rounds_up=rounds_up)
    each_new, each_old = _growing(costs, grow_s)
    count = np.arange(rows)[:, None]
    grown = np.full(after.shape, np.inf)
    shift = bins(grow_s)
    grown[:, shift:] = stay[:, : after.shape[1] - shift] + count * each_new
    least_above = np.minimum.accumulate(grown[::-1], axis=0)[::-1]
    here = np.minimum.accumulate(stay, axis=0)
    here[:-1] = np.minimum(here[:-1], least_above[1:] + count[:-1] * each_old)
    return here


def _grow_s(costs: Costs, most: int, *, rounds_up: bool) -> float:
    """Return a bound of how long growing takes, by however many."""
    if costs.cloud.init_spread == 0.0:
        return costs.grow_s(1)
    each = [costs.grow_s(new) for new in range(1, most + 1)]
    return max(each) if rounds_up else min(each)


def _growing(costs: Costs, grow_s: float) -> tuple[float, float]:
    """Cost of growing as a x (instances of the stage) + b x (instances before)."""
    cloud = costs.cloud
    if cloud.billing is Billing.FUNCTION:
        new = cloud.init_s * cloud.price_s + cloud.data_price
        return new, -new
    new = max(0.0, grow_s - cloud.scale_s) * cloud.price_s + cloud.data_price
    return new, grow_s * cloud.price_s - new


def _later(row: Floats, shift: int) -> Floats:
    """Return the costs if so many bins pass first."""
    moved = np.full(len(row), np.inf)
    if shift < len(row):
        moved[shift:] = row[: len(row) - shift]
    return moved
