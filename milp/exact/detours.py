"""What straying from the price's picks costs at least: a bound that drops most sizes.

Takes the sizes that undecided trainers may have, as steps away from their picks with
what each loses, and how many nodes the picks leave; returns which steps can be part of
a best answer. Called by ``milp.exact.columns`` where many trainers are undecided.

If every step could be taken any number of times, by whichever trainer loses least, the
least loss of all ways to stray by x in total would be a shortest path. It bounds the
real one from below, as in truth a trainer takes one step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from milp.exact.core import CoreChoice, solve_core
from milp.tables import BoolArray, FloatArray, IntArray

MAX_CELLS = 1 << 18  # of one round; beyond, the bound is not worth its time
MAX_ROUNDS = 24
FEW = 8  # trainers that are searched first for steps downwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Detours:
    """Least loss of straying by x in total, were every step free for all."""

    least: FloatArray  # [x + reach]
    reach: int
    span: int  # the longest step

    def at(self, total: int) -> float:
        """The bound for one total."""
        return float(self.least[total + self.reach])

    def can_serve(self, steps: IntArray, losses: FloatArray, total: int, most: float) -> BoolArray:
        """Which steps can be part of a way that strays by ``total`` and loses at most that."""
        served: BoolArray = losses + self.least.take(total + self.reach - steps) <= most
        return served


def find_detours(
    steps: IntArray, losses: FloatArray, left: int, price: float, noise: float
) -> Detours | None:
    """The bound for totals around ``left``; None when it takes too long.

    A node that is left over is a step by one that loses the price.
    """
    span = int(np.abs(steps).max(initial=1))
    by_step = np.full(2 * span + 1, np.inf)
    by_step[span + 1] = price
    # Below 0 is float noise, which must not add up on a way that goes round in circles.
    np.minimum.at(by_step, steps + span, np.maximum(losses, 0.0))
    # The steps of a way can be ordered so that it never strays further than by one step.
    reach = abs(left) + 1 + 2 * span
    n_totals = 2 * reach + 1
    if n_totals * len(by_step) > MAX_CELLS:
        return None
    around = np.full(n_totals + 2, np.inf)  # one more on either side, never reached
    around[reach + 1] = 0.0
    inside, near = around[1:-1], around[1 + reach - span : 2 + reach + span]
    for _ in range(MAX_ROUNDS):
        kinds = (by_step < np.inf).nonzero()[0]
        through = around.take(np.arange(1, n_totals + 1) - (kinds - span)[:, None], mode="clip")
        through += by_step[kinds][:, None]
        best = through.min(axis=0)
        if (best >= inside - noise).all():
            return Detours(least=inside, reach=reach, span=span)
        np.minimum(inside, best, out=inside)
        np.minimum(by_step, near, out=by_step)  # a way is a step, too: fewer rounds
    return None


@dataclass(frozen=True, slots=True)
class Ways:
    """Looks for a way that loses as little as a bound says: then it is a best one."""

    rows: IntArray  # ascending: the trainer of each step
    steps: IntArray  # ascending within a trainer
    losses: FloatArray
    detours: Detours = field(kw_only=True)
    price: float = field(kw_only=True)
    tolerance: float = field(kw_only=True)

    def take(self, total: int, most: float) -> IntArray | None:
        """A step for each trainer that together lose ``most``, if no way loses less.

        Ties: the earlier the larger. None: there is no such way, or it is not found.

        As long as trainers stray upwards the bound tells the next of them and how far: it
        rules out only what is impossible, so what it leads to is the best if it is
        possible. Who strays downwards at the end, and as late as can be, is searched.
        """
        taken = np.zeros(int(self.rows[-1]) + 1, dtype=np.int64)
        allowed = most + self.tolerance
        at, ups = 0, self.steps > 0
        while at < len(self.rows):
            if abs(total) > self.detours.reach - self.detours.span:
                return None  # further than the bound was computed
            ahead = slice(at, None)
            fits = self.detours.can_serve(self.steps[ahead], self.losses[ahead], total, allowed)
            fits &= ups[ahead]
            first = at + int(fits.argmax())
            if not fits[first - at]:
                break
            row = self.rows[first]
            at = int(self.rows.searchsorted(row, side="right"))
            last = first + int(fits[first - ahead.start : at - ahead.start].nonzero()[0][-1])
            taken[row] = self.steps[last]
            total -= int(self.steps[last])
            allowed -= float(self.losses[last])
        if total >= 0 and self.price * total <= allowed:
            return taken
        return self.finish(taken, at, total, allowed)

    def finish(self, taken: IntArray, at: int, total: int, allowed: float) -> IntArray | None:
        """Search among the steps from ``at`` on."""
        if at == len(self.rows) or abs(total) > self.detours.reach - self.detours.span:
            return None
        keep = self.detours.can_serve(self.steps[at:], self.losses[at:], total, allowed)
        if not keep.any():
            return None
        rows, steps, losses = self.rows[at:][keep], self.steps[at:][keep], self.losses[at:][keep]
        members, starts = np.unique(rows, return_index=True)
        bounds = [*starts.tolist(), len(rows)]
        # Steps from 0 on, as sizes; what that adds is added to the total.
        lowest = steps[starts]
        sizes = steps - lowest.repeat(np.diff(bounds))
        choices = [
            CoreChoice(sizes[start:end], losses[start:end]) for start, end in pairwise(bounds)
        ]
        # No step upwards is left, so that who comes first strays least if only the last do.
        n_last = min(len(choices), FEW)
        while True:
            nodes = total - int(lowest[-n_last:].sum())
            found = None
            if nodes >= 0:
                last = choices[-n_last:]
                gaps = (allowed, allowed)
                found = solve_core(last, nodes, self.price, gaps, self.tolerance).sizes
            if found is not None:
                taken[members[-n_last:]] = lowest[-n_last:] + np.array(found, dtype=np.int64)
                return taken
            if n_last == len(choices):
                return None
            n_last = min(len(choices), 4 * n_last)
