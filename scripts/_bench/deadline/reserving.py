"""How often a study is in time with the nodes that the model says are to be reserved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from bftrainer.batch.traces.fragments import HOUR_S
from bftrainer.study.deadline import Drawing, finish_s, futures, least_reserve

from . import grid
from .pools import Pool

CONFIDENCE: Final = 0.95
SHARES: Final = (grid.SHARES[0], grid.SHARES[2])  # of the questions' own


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question at one instant for which nodes are to be reserved."""

    asked: grid.Asked
    at_h: float
    now: int
    reserved: int
    free: bool  # in time on idle nodes alone
    came_true: bool  # with the reserve


def rows(pool: Pool, *, every_h: float, drawing: Drawing) -> Iterator[Row]:
    """Yield each question that needs a reserve, and whether the true pool with it was enough.

    Args:
        pool: the history that is known, and what came true.
        every_h: between the instants at which is asked.
        drawing: of the futures.
    """
    history, truth = grid.usable(pool.fit), grid.usable(pool.test, grid.TRUE_STEP_S)
    every = len(grid.SHARES)
    kept = [grid.SHARES.index(share) for share in SHARES]
    asked = [one for n, one in enumerate(grid.questions(history)) if n % every in kept]
    rates = {name: work.rates() for name, work in grid.STUDIES.items()}
    hours = pool.test.duration_s / HOUR_S
    for number in range(int((hours - min(grid.DEADLINES_H)) / every_h)):
        at_h = number * every_h
        first = round(at_h * HOUR_S / grid.TRUE_STEP_S)
        now = int(truth.nodes[first])
        drawn = futures(
            history, now, math.ceil(max(grid.DEADLINES_H) * HOUR_S / grid.STEP_S), drawing
        )
        for one in asked:
            if at_h + one.deadline_h > hours:
                continue
            left_s = one.deadline_h * HOUR_S - grid.START_UP_S
            speed = rates[one.study] / one.longer
            found = least_reserve(
                drawn[:, : math.ceil(left_s / grid.STEP_S)],
                speed,
                grid.STEP_S,
                left_s=left_s,
                confidence=CONFIDENCE,
            )
            if found is None or found[0] == 0:
                continue
            real = truth.nodes[first : first + math.ceil(left_s / grid.TRUE_STEP_S)][None, :]
            alone, both = (
                bool(finish_s(real + more, speed, grid.TRUE_STEP_S)[0] <= left_s)
                for more in (0, found[0])
            )
            yield Row(
                asked=one,
                at_h=at_h,
                now=now,
                reserved=found[0],
                free=alone,
                came_true=both,
            )


def instants(found: Sequence[Row]) -> int:
    """Return at how many instants was asked: what is asked at one is not independent."""
    return len({row.at_h for row in found})


def in_time(found: Sequence[Row]) -> float:
    """Return the share that was in time with the reserve; NaN if nothing was asked."""
    return sum(row.came_true for row in found) / len(found) if found else math.nan


def limit(independent: int) -> float:
    """Return the share in time that is to be reached: what is meant, less what chance explains.

    If it is as meant, the share of so many independent windows is above this 19 times in 20.
    """
    error = math.sqrt(CONFIDENCE * (1.0 - CONFIDENCE) / max(1, independent))
    return CONFIDENCE - NormalDist().inv_cdf(0.95) * error
