"""The grid of forecasts: deadlines, studies and amounts of work, at many instants of a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.study.deadline import (
    Counts,
    Drawing,
    PoolHistory,
    Work,
    finish_s,
    futures,
    history_of,
    parts_of,
)
from bftrainer.study.plan.problem import ScalingProfile
from bftrainer.study.rungs import Full, Sha
from bftrainer.study.trials import StudyRule

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
START_UP_S: Final = 25.5  # detection, claim and warm-up of simulate.whatif
STEP_S: Final = 60.0
TRUE_STEP_S: Final = 10.0  # Summit was looked at so often
DEADLINES_H: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
SHARES: Final = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the history's windows in which the work is enough


def scaling(n_max: int, exponent: float) -> ScalingProfile:
    """Return a profile with the speed nodes ** exponent."""
    sizes = tuple(2**k for k in range(n_max.bit_length()))
    return ScalingProfile(
        gpus=sizes, unit_s=tuple(1.0 / size**exponent for size in sizes), n_max=n_max
    )


def _work(rule: StudyRule, n_max: int, exponent: float) -> Work:
    return Work(parts=parts_of(rule)[0], scaling=scaling(n_max, exponent))


# Units are seconds; each is made longer or shorter for the grid. Free: never too few trials.
STUDIES: Final[Mapping[str, Work]] = {
    "free": _work(Full(trials=5000, most=1), 1, 1.0),
    "64 trials": _work(Full(trials=64, most=1), 4, 0.9),
    "sha 81": _work(Sha(trials=81, least=1, most=27, eta=3), 8, 0.85),
    "sha 16": _work(Sha(trials=16, least=1, most=8, eta=2), 4, 0.85),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question: is this study, so much longer, done by this deadline?"""

    study: str
    longer: float
    deadline_h: float
    share: float  # of the history's windows: the unconditional forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question at one instant: forecasts and truth."""

    asked: Asked
    at_h: float
    now: int
    model: float
    windows: float
    mean_rate: float
    came_true: bool


def usable(trace: Fragments, step_s: float = STEP_S, start_up_s: float = START_UP_S) -> PoolHistory:
    """Return the usable nodes of a trace."""
    return history_of(trace, step_s=step_s, start_up_s=start_up_s)


def windows(history: PoolHistory, steps: int, every: int) -> Counts:
    """Return windows of a history, overlapping ones, too."""
    views = np.lib.stride_tricks.sliding_window_view(history.nodes, steps)
    return np.ascontiguousarray(views[::every])


def questions(history: PoolHistory) -> tuple[Asked, ...]:
    """Return for each study and deadline the amounts that some shares of the windows can do."""
    found: list[Asked] = []
    for name, work in STUDIES.items():
        rates = work.rates()
        for deadline_h in DEADLINES_H:
            steps = math.ceil(deadline_h * HOUR_S / history.step_s)
            views = windows(history, steps, 10)
            limit_s = deadline_h * HOUR_S - START_UP_S
            for share in SHARES:
                longer, got = _longer(views, rates, limit_s, share)
                asked = Asked(study=name, longer=longer, deadline_h=deadline_h, share=got)
                found.append(asked)
    return tuple(found)


def _longer(views: Counts, rates: Floats, limit_s: float, share: float) -> tuple[float, float]:
    """Return how long a study may be that such a share of windows can do, and which does."""

    def does(longer: float) -> float:
        return float((finish_s(views, rates / longer, STEP_S) <= limit_s).mean())

    low, high = 1e-3, 1e9
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if does(middle) < share else (middle, high)
    return low, does(low)


def rows(
    fit: Fragments,
    test: Fragments,
    *,
    every_h: float,
    drawing: Drawing,
    start_up_s: float = START_UP_S,
) -> Iterator[Row]:
    """Yield all forecasts and what came true.

    Args:
        fit: the history that is known.
        test: where the questions are asked, and answered in truth.
        every_h: between the instants at which they are.
        drawing: of the futures.
        start_up_s: what the model takes the start-up of a node to be.
    """
    history, truth = usable(fit, start_up_s=start_up_s), usable(test, TRUE_STEP_S)
    asked = questions(usable(fit))
    rates = {name: work.rates() for name, work in STUDIES.items()}
    mean = float(history.nodes.mean())
    hours = test.duration_s / HOUR_S
    for number in range(int((hours - min(DEADLINES_H)) / every_h)):
        at_h = number * every_h
        first = round(at_h * HOUR_S / TRUE_STEP_S)
        now = int(truth.nodes[first])
        drawn = futures(history, now, math.ceil(max(DEADLINES_H) * HOUR_S / STEP_S), drawing)
        for one in asked:
            if at_h + one.deadline_h > hours:
                continue
            limit_s = one.deadline_h * HOUR_S - START_UP_S
            speed = rates[one.study] / one.longer
            steps = math.ceil(limit_s / STEP_S)
            real = truth.nodes[first : first + math.ceil(limit_s / TRUE_STEP_S)][None, :]
            even = np.interp(mean, np.arange(speed.shape[1]), np.arange(speed.shape[1]))
            yield Row(
                asked=one,
                at_h=at_h,
                now=now,
                model=float((finish_s(drawn[:, :steps], speed, STEP_S) <= limit_s).mean()),
                windows=one.share,
                mean_rate=float(_even_s(speed, float(even)) <= limit_s),
                came_true=bool(finish_s(real, speed, TRUE_STEP_S)[0] <= limit_s),
            )


def _even_s(speed: Floats, nodes: float) -> float:
    """Return how long it takes with the same number of nodes all the time."""
    sizes = np.arange(speed.shape[1])
    with np.errstate(divide="ignore"):
        return float(sum(1.0 / np.interp(nodes, sizes, rate) for rate in speed))
