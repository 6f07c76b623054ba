"""Numbers of idle nodes, past and future: futures are a block bootstrap of the past. Pure.

A future is made of pieces of the history, of one hour on the average (the stationary bootstrap of
Politis and Romano 1994). The first piece begins where the pool was like it is now, each other one
where it was like the piece before has left it; likeness is a Gaussian of the difference of
log(1 + nodes). A piece begun with other numbers of nodes is scaled to go on from those left; the
factor fades. So futures of any length follow from what is known now, and forget it as fast as the
pool does.

The history itself is a sample, too: each group of futures gives its stretches other weights (the
Bayesian bootstrap of Rubin 1981). How much the groups differ says how uncertain the answer is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.statistics import held_down

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHistory:
    """The usable nodes of a pool at instants that are ``step_s`` apart."""

    step_s: float
    nodes: Counts

    @property
    def duration_s(self) -> float:
        """The time for which the pool was watched."""
        return self.step_s * len(self.nodes)


def history_of(trace: Fragments, *, step_s: float, start_up_s: float) -> PoolHistory:
    """Return the history that a trace tells.

    Args:
        trace: of the nodes that the study may use.
        step_s: between two samples. Samples, not means over a step: those would be smoother than
            the pool.
        start_up_s: from a node's becoming idle until it trains; it is not usable before.
    """
    changes = held_down(trace, start_up_s).pool_changes()
    begin_s, end_s = trace.span_s
    at_s = np.arange(begin_s, end_s, step_s)
    newest = np.searchsorted(changes.at_s, at_s, side="right") - 1
    return PoolHistory(step_s=step_s, nodes=changes.pool_sizes()[newest])


STRETCH_S = 6 * 3600.0  # of the history, with one weight
STATE = 0.1  # states are told apart by this much, in log(1 + nodes)
MOST_BEGINNINGS = 1500  # of pieces; of a longer history they are thinned out
Floats = NDArray[np.float64]
_NEVER = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The settings by which futures are drawn."""

    groups: int = 40
    each: int = 50  # futures in a group
    seed: int = 1
    piece_s: float = 3600.0  # mean length of a piece
    likeness: float = 1.0  # standard deviation, in log(1 + nodes)
    fades_s: float = 7200.0  # the logarithm of a piece's factor falls to 1 / e in this time


def futures(history: PoolHistory, now: int, steps: int, drawing: Drawing) -> Counts:
    """Return futures, one row each; rows of a group are neighbours.

    Args:
        history: of the pool.
        now: idle nodes at present.
        steps: of the history's, from now on.
        drawing: how many, and the seed.
    """
    chance = np.random.Generator(np.random.PCG64(drawing.seed))
    nodes, count = history.nodes, drawing.groups * drawing.each
    begin = _beginner(history, max(now, int(nodes.max())), drawing, chance)
    ends_each = min(1.0, history.step_s / drawing.piece_s)
    stays = math.exp(-history.step_s / drawing.fades_s) if drawing.fades_s else 0.0
    drawn = np.empty((steps, count), dtype=np.int64)
    left, ends = np.full(count, now), np.zeros(count, dtype=np.int64)
    at, factor = np.zeros(count, dtype=np.int64), np.zeros(count)  # its logarithm
    for step in range(steps):
        at += 1
        over = np.flatnonzero((ends <= step) | (at >= len(nodes)))
        begun = begin(over, left[over])
        at[over] = begun + 1
        factor[over] = np.log1p(left[over]) - np.log1p(nodes[begun])
        ends[over] = step + chance.geometric(ends_each, len(over))
        factor *= stays
        left = np.minimum(np.rint(nodes[at] * np.exp(factor)), begin.most).astype(np.int64)
        drawn[step] = left
    return np.ascontiguousarray(drawn.T)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginnings:
    """The steps where pieces may begin, with the probability of each for each state."""

    at: Counts
    so_far: Floats  # rows of ``_likely`` of all groups, one after the other
    first_row: Counts  # of each future's group
    most: int  # nodes that a future ever has
    chance: np.random.Generator

    def __call__(self, who: Counts, left: Counts) -> Counts:
        """Draw a beginning for each of these futures, which have so many nodes left."""
        row = self.first_row[who] + _state(left)
        found = np.searchsorted(self.so_far, row + self.chance.random(len(row)), side="right")
        begun: Counts = self.at[np.minimum(found - row * len(self.at), len(self.at) - 1)]
        return begun


def _beginner(
    history: PoolHistory, most: int, drawing: Drawing, chance: np.random.Generator
) -> _Beginnings:
    every = max(1, len(history.nodes) // MOST_BEGINNINGS)
    at = np.arange(0, len(history.nodes) - 1, every)
    states = 1 + int(_state(np.array(most)))
    weights = _weights(at, history.step_s, drawing.groups, chance)
    so_far = [
        _likely(history.nodes[at], states, drawing.likeness, weights[group]) + group * states
        for group in range(drawing.groups)
    ]
    return _Beginnings(
        at=at,
        so_far=np.concatenate(so_far).ravel(),
        first_row=np.repeat(np.arange(drawing.groups) * states, drawing.each),
        most=most,
        chance=chance,
    )


def _state(nodes: Counts) -> Counts:
    state: Counts = np.rint(np.log1p(nodes) / STATE).astype(np.int64)
    return state


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


def _likely(nodes: Counts, states: int, likeness: float, weights: Floats) -> Floats:
    """Return for each state, one row each, the sums of the chances of all beginnings so far.

    Row r goes from r to r + 1, so that one search finds beginnings for many states.
    """
    apart = (np.log1p(nodes)[None, :] - STATE * np.arange(states)[:, None]) / likeness
    apart **= 2
    apart -= apart.min(axis=1, keepdims=True)  # the nearest count, however far it is
    sums = np.cumsum(np.exp(-0.5 * apart) * (weights + _NEVER), axis=1)
    sums /= sums[:, -1:]
    sums += np.arange(states)[:, None]
    return sums
