"""Draws how many nodes may be idle from now on: a block bootstrap of the history. Pure.

A future is made of pieces of the history, of one hour on the average (the stationary bootstrap of
Politis and Romano 1994). The first piece begins where the pool was like it is now, each other one
where it was like the piece before has left it: likeness is a Gaussian of the difference of
log(1 + nodes), so that futures of any length follow from what is known now, and forget it as fast
as the pool does.

The history itself is a sample, too: each group of futures gives its stretches other weights (the
Bayesian bootstrap of Rubin 1981). How much the groups differ says how uncertain the answer is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bftrainer.study.deadline.history import Counts, History

PIECE_S = 3600.0
LIKENESS = 0.5  # standard deviation, in log(1 + nodes)
STRETCH_S = 6 * 3600.0  # of the history, with one weight
STATE = 0.1  # states are told apart by this much, in log(1 + nodes)
MOST_BEGINNINGS = 1500  # of pieces; of a longer history they are thinned out
Floats = NDArray[np.float64]
_NEVER = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """How futures are drawn."""

    groups: int = 40
    each: int = 50  # futures in a group
    seed: int = 1


def futures(history: History, now: int, steps: int, drawing: Drawing) -> Counts:
    """Return futures, one row each; rows of a group are neighbours.

    Args:
        history: of the pool.
        now: idle nodes at present.
        steps: of the history's, from now on.
        drawing: how many, and the seed.
    """
    chance = np.random.Generator(np.random.PCG64(drawing.seed))
    nodes, piece = history.nodes, max(1.0, PIECE_S / history.step_s)
    every = max(1, len(nodes) // MOST_BEGINNINGS)
    beginnings = np.arange(0, len(nodes) - 1, every)
    states = 1 + round(np.log1p(max(now, int(nodes.max()))) / STATE)
    weights = _weights(beginnings, history.step_s, drawing.groups, chance)
    so_far = [
        _likely(nodes[beginnings], states, weights[group]) + group * states
        for group in range(drawing.groups)
    ]
    chances = np.concatenate(so_far).ravel()
    table = np.repeat(np.arange(drawing.groups) * states, drawing.each)

    def begin(who: Counts, left: Counts) -> Counts:
        row = table[who] + np.rint(np.log1p(left) / STATE).astype(np.int64)
        found = np.searchsorted(chances, row + chance.random(len(row)), side="right")
        begun: Counts = beginnings[np.minimum(found - row * len(beginnings), len(beginnings) - 1)]
        return begun

    everybody = np.arange(drawing.groups * drawing.each)
    drawn = np.empty((steps, len(everybody)), dtype=np.int64)
    at = begin(everybody, np.full(len(everybody), now))
    ends = chance.geometric(1.0 / piece, len(everybody))
    for step in range(steps):
        at += 1
        over = np.flatnonzero((ends <= step) | (at >= len(nodes)))
        at[over] = begin(over, nodes[at[over] - 1]) + 1
        ends[over] = step + chance.geometric(1.0 / piece, len(over))
        drawn[step] = nodes[at]
    return np.ascontiguousarray(drawn.T)


def _weights(beginnings: Counts, step_s: float, groups: int, chance: np.random.Generator) -> Floats:
    """Return a weight for each beginning, one row for each group; alike within a stretch.

    Where stretches are cut is drawn, too. All groups together weigh each beginning alike.
    """
    length = max(1, round(STRETCH_S / step_s))
    number = (beginnings + chance.integers(length, size=(groups, 1))) // length
    drawn = chance.standard_exponential((groups, int(number.max()) + 1))
    weights = np.take_along_axis(drawn, number, axis=1)
    balanced: Floats = weights / weights.mean(axis=0)
    return balanced


def _likely(nodes: Counts, states: int, weights: Floats) -> Floats:
    """Return for each state, one row each, the sums of the chances of all beginnings so far.

    Row r goes from r to r + 1, so that one search finds beginnings for many states.
    """
    apart = (np.log1p(nodes)[None, :] - STATE * np.arange(states)[:, None]) / LIKENESS
    apart **= 2
    apart -= apart.min(axis=1, keepdims=True)  # the nearest count, however far it is
    sums = np.cumsum(np.exp(-0.5 * apart) * (weights + _NEVER), axis=1)
    sums /= sums[:, -1:]
    sums += np.arange(states)[:, None]
    return sums
