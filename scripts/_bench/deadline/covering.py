"""How often the interval of a probability holds what is true of a pool."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from bftrainer.batch.traces.fragments import HOUR_S
from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.study.deadline import Counts, Drawing, PoolHistory, finish_s, futures, interval

from . import grid

KNOWN_H: Final = 3000.0  # of the pool: what is true of it
HISTORY_H: Final = 72.0  # of it: what the model is told
DEADLINES_H: Final = (1.0, 4.0)
STUDIES: Final = ("64 trials", "sha 16")
NOW: Final = (3, 15, 60)
ALIKE: Final = 0.1  # windows that began like now: deviation of log(1 + nodes)
CLOSE: Final = 0.005  # a probability of 0.001 is not missed by an interval at 0


def held(parameters: GeneratorParameters, histories: int, seed: int = 5) -> list[bool]:
    """Return for each question and history whether the interval held the true probability.

    Args:
        parameters: of the generator; its hours are ``KNOWN_H``.
        histories: drawn for each question.
        seed: of where they begin.
    """
    known = grid.usable(generate(replace(parameters, hours=KNOWN_H)))
    chance = np.random.Generator(np.random.PCG64(seed))
    found: list[bool] = []
    for asked in grid.questions(_part(known, 0)):
        is_one = asked.study in STUDIES and asked.deadline_h in DEADLINES_H
        if not (is_one and 0.2 < asked.share < 0.8):
            continue
        for now in NOW:
            true = _true(known, asked, now)
            for number in range(histories):
                last = len(known.nodes) - round(HISTORY_H * HOUR_S / known.step_s)
                history = _part(known, int(chance.integers(last)))
                low, high = _interval(history, asked, now, number)
                found.append(low - CLOSE <= true <= high + CLOSE)
    return found


def _part(known: PoolHistory, first: int) -> PoolHistory:
    steps = round(HISTORY_H * HOUR_S / known.step_s)
    return PoolHistory(step_s=known.step_s, nodes=known.nodes[first : first + steps])


def _true(known: PoolHistory, asked: grid.Asked, now: int) -> float:
    """Return the share of windows that began like now in which the study is done."""
    every = 7
    views = grid.windows(known, math.ceil(asked.deadline_h * HOUR_S / known.step_s), every)
    began = known.nodes[: len(views) * every : every]
    apart = (np.log1p(began) - math.log1p(now)) / ALIKE
    return float(np.average(_done(views, asked, known.step_s), weights=np.exp(-0.5 * apart**2)))


def _interval(history: PoolHistory, asked: grid.Asked, now: int, seed: int) -> tuple[float, float]:
    drawing = Drawing(seed=seed)
    steps = math.ceil(asked.deadline_h * HOUR_S / history.step_s)
    done = _done(futures(history, now, steps, drawing), asked, history.step_s)
    return interval(done.reshape(drawing.groups, drawing.each))


def _done(nodes: Counts, asked: grid.Asked, step_s: float) -> grid.Bools:
    rates = grid.STUDIES[asked.study].rates() / asked.longer
    is_done: grid.Bools = (
        finish_s(nodes, rates, step_s) <= asked.deadline_h * HOUR_S - grid.START_UP_S
    )
    return is_done
