"""Kinds of units made of the same GPUs, exactly: prices rule out most sizes, and few are searched.

Takes values by trainer and size, whose kind each trainer is, and how many units there can be
(``milp.supply.Chain``); returns how many units each kind gets. Called by ``milp.classes`` where a
trainer has units of one kind only, for which HiGHS takes much longer. It is the argument of
``milp.exact.dual`` with a price for each kind:

* Kind i, the widest is the first, has b_i units of its own, and z_i more are made of free GPUs,
  s_i of them for each. With U_i = s_1 z_1 + ... + s_i z_i these fit exactly if U_i <= s_i M_i for
  every i, as each s_i divides the one before. Its trainers have N_i <= b_i + z_i units together.
* Take prices m_i >= 0 for GPUs of U_i, p_i = m_i + m_(i+1) + ..., which GPUs of kind i cost, and
  l_i <= s_i p_i for a unit. Trainer j of kind i alone could have a_j = max_n (v_j(n) - l_i n), and
  size n loses a_j - v_j(n) + l_i n >= 0 against that. Sizes that fit are worth

      sum_j a_j + sum_i (l_i b_i + m_i s_i M_i)  less what they lose together:
      what each loses, and l_i (b_i + z_i - N_i) + (s_i p_i - l_i) z_i + m_i (s_i M_i - U_i)

* Nothing in it is negative. So if some sizes lose at most g in all then so do the best ones, and
  none of a trainer's sizes that loses more than g is among them. Take any g and search the others;
  if the best of them lose at most g they are the optimum, proven. Else g grows.
* The search goes kind by kind: F_i(N) is the least that trainers of kind i lose with N units
  together, and a dynamic program over U_1, U_2, ... joins these.

The prices are those of the relaxation, in which a trainer's values are their concave hull. Its
constraints are nested, so the steepest edges come first, each as far as there is room; what is
closed when an edge does not fit has the slope of that edge as its price.

Ties: fewest rescales, then more units for wider kinds; who has them is for ``milp.exact.dual``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from milp.exact.dual import FIRST_GAP, GROWTH, NO_VALUE
from milp.supply import Chain
from milp.tables import BoolArray, FloatArray, IntArray, price_of

BLOCK = 1 << 17  # sums made at once: 1 MB
MOST_WORK = 1 << 30  # sums in all, some seconds; beyond, HiGHS is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class KindsAnswer:
    """Best numbers of units by kind."""

    n_units: list[int]  # by place in the chain
    prices: list[float]  # of a unit; objective units times seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindValues:
    """Trainers that have units of one kind only."""

    values: FloatArray  # [j, n]: -inf where trainer j may not have size n; size 0 always is
    current: IntArray  # C_j
    edges: FloatArray  # slopes and lengths of the rising edges of all their concave hulls


@dataclass(frozen=True, slots=True, eq=False)
class _Losses:
    """Losses of ``low``, ``low`` + 1, ... units; elsewhere they are beyond the gap."""

    low: int
    losses: FloatArray

    def at(self, n_units: int) -> float:
        """Return the loss of so many units."""
        index = n_units - self.low
        if 0 <= index < len(self.losses):
            return float(self.losses[index])
        return np.inf

    def between(self, low: int, count: int) -> FloatArray:
        """Return the losses of so many numbers of units from ``low`` on."""
        losses = np.full(count, np.inf)
        overlap = self.losses[max(low - self.low, 0) : max(low + count - self.low, 0)]
        start = max(self.low - low, 0)
        losses[start : start + len(overlap)] = overlap
        return losses

    def within(self, gap: float, fewest: int, most: int) -> _Losses:
        """Return those of so many units without the ends that are beyond the gap."""
        start = max(fewest - self.low, 0)
        losses = self.losses[start : max(most - self.low + 1, 0)]
        live = (losses <= gap).nonzero()[0]
        if not len(live):
            return _Losses(self.low, np.empty(0))
        first = int(live[0])
        return _Losses(self.low + start + first, losses[first : int(live[-1]) + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prices:
    unit: list[float]  # l_i
    gpu: list[float]  # p_i
    gpus: list[float]  # s_i p_i
    slack: list[float]  # m_i s_i


class _TooMuch(Exception):  # noqa: N818 - says what the work is
    """More sums than are worth making."""


def solve_kinds(kinds: Sequence[KindValues], chain: Chain, tolerance: float) -> KindsAnswer | None:
    """Maximise the sum of values; None: that would take longer than it should.

    Args:
        kinds: by place in the chain.
        chain: what there is of units.
        tolerance: what a rescale costs where nothing else tells answers apart.
    """
    search = _Search(kinds, chain, tolerance or NO_VALUE)
    try:
        return KindsAnswer(n_units=search.solve(), prices=search.prices.unit)
    except _TooMuch:
        return None


class _Search:
    """The search for one problem."""

    def __init__(self, kinds: Sequence[KindValues], chain: Chain, tolerance: float) -> None:
        self._chain = chain
        self._n_work = 0
        self.prices = _find_prices([kind.edges for kind in kinds], chain)
        self._losses: list[FloatArray] = []
        for kind, price in zip(kinds, self.prices.unit, strict=True):
            columns = np.arange(kind.values.shape[1])
            losses = price * columns - kind.values
            losses -= losses.min(axis=1)[:, None]
            losses[columns != kind.current[:, None]] += tolerance
            self._losses.append(losses)
        n_trainers = sum(map(len, self._losses))
        self._noise, self._step = tolerance / 4, tolerance * (n_trainers + 2)

    def solve(self) -> list[int]:
        """Return the units by kind that lose least."""
        first_gap = max(self.prices.gpu) * FIRST_GAP
        gap = first_gap
        while True:
            gap += self._step
            n_units = self._within(gap)
            if n_units is not None:
                return n_units
            gap = max(gap * GROWTH, first_gap)

    def _within(self, gap: float) -> list[int] | None:
        """Return the same among the sizes that lose at most ``gap``; None: they lose more."""
        chain, prices = self._chain, self.prices
        by_units_used: list[_Losses] = []  # of each kind
        by_units_made: list[_Losses] = []  # of each kind, of free GPUs
        largest = [_largest(losses, gap) for losses in self._losses]
        for i, losses in enumerate(self._losses):
            n_min, n_max = self._bounds(i, largest, gap)
            of_kind = self._least_of_kind(losses, gap, n_min, n_max)
            n_beyond = np.arange(len(of_kind.losses)) + of_kind.low - chain.base[i]
            with_prices = of_kind.losses + np.where(
                n_beyond > 0,
                (prices.gpus[i] - prices.unit[i]) * n_beyond,
                -prices.unit[i] * n_beyond,
            )
            by_used = _Losses(of_kind.low, with_prices)
            by_units_used.append(by_used)
            by_made = _by_units_made(by_used, chain.base[i])
            by_units_made.append(by_made.within(gap, 0, chain.most[i]))
        behind = self._least_behind(by_units_made, gap)
        if behind is None:
            return None
        return self._walk(by_units_used, by_units_made, behind)

    def _bounds(self, i: int, largest: Sequence[int], gap: float) -> tuple[int, int]:
        """Return how many units kind i has at least and at most when all lose at most ``gap``.

        ``largest``: the most units that the trainers of each kind have at such losses.
        """
        chain, prices = self._chain, self.prices
        fewest = 0
        if prices.unit[i] > 0:
            fewest = chain.base[i] - int(gap / prices.unit[i]) - 1
        n_gpus = 0  # of free ones that the others up to a kind have at most
        for n, (units, gpus) in enumerate(zip(largest, chain.gpus, strict=True)):
            if n != i:
                n_gpus += gpus * min(max(units - chain.base[n], 0), chain.most[n])
            if n >= i and prices.slack[n] > 0:
                left_over = gpus * (int(gap / prices.slack[n]) + 1)
                missing = gpus * chain.most[n] - left_over - n_gpus
                if missing > 0:
                    fewest = max(fewest, chain.base[i] + missing // chain.gpus[i])
        return fewest, chain.base[i] + chain.most[i]

    def _least_of_kind(self, losses: FloatArray, gap: float, fewest: int, most: int) -> _Losses:
        """Return F_i from ``fewest`` to ``most`` units."""
        is_near = losses <= gap
        first, last = _ends(is_near)
        is_open = last > first
        loss_of_others = math.fsum(losses[~is_open, first[~is_open]].tolist())
        # Units that trainers from here on have in any case, and at most.
        n_min_ahead, n_max_ahead = int(first[is_open].sum()), int(last[is_open].sum())
        sums = _Losses(int(first[~is_open].sum()), np.array([loss_of_others]))
        sums = sums.within(gap, fewest - n_max_ahead, most - n_min_ahead)
        near_losses = np.where(is_near, losses, np.inf)
        for j in is_open.nonzero()[0].tolist():
            start, end = int(first[j]), int(last[j])
            n_min_ahead -= start
            n_max_ahead -= end
            least_sums = self._sums(sums.losses, near_losses[j, start : end + 1])
            sums = _Losses(sums.low + start, least_sums)
            sums = sums.within(gap, fewest - n_max_ahead, most - n_min_ahead)
        return sums

    def _least_behind(self, by_units_made: Sequence[_Losses], gap: float) -> list[_Losses] | None:
        """Return by kind the least loss of GPUs left over and of kinds behind it, by U_i / s_i.

        None: all lose more than the gap.
        """
        chain, slack = self._chain, self.prices.slack
        behind: list[_Losses] = []
        after: _Losses | None = None  # nothing is behind the narrowest kind
        for i in reversed(range(len(by_units_made))):
            n_max, price = chain.most[i], slack[i]
            if after is None:
                after = _Losses(0, np.zeros(n_max + 1))
            if price > 0:
                low = max(after.low, n_max - int(gap / price) - 1)
                after = _Losses(low, after.losses[low - after.low :])
            n_left_over = n_max - after.low - np.arange(len(after.losses))
            with_slack = _Losses(after.low, after.losses + price * n_left_over)
            with_slack = with_slack.within(gap, 0, n_max)
            behind.append(with_slack)
            with_kind = self._differences(with_slack, by_units_made[i]).within(gap, 0, n_max)
            if not len(with_kind.losses):
                return None
            if i:
                after = _each(with_kind, chain.steps[i], chain.most[i - 1])
            elif with_kind.at(0) > gap:
                return None
        behind.reverse()
        return behind

    def _differences(self, behind: _Losses, by_made: _Losses) -> _Losses:
        """Return by units before a kind the least loss of those it makes and of what follows."""
        if not len(behind.losses) or not len(by_made.losses):
            return _Losses(0, np.empty(0))
        sums = self._sums(behind.losses, by_made.losses[::-1])
        low = behind.low - by_made.low - len(by_made.losses) + 1
        return _Losses(max(low, 0), sums[max(-low, 0) :])

    def _sums(self, first: FloatArray, second: FloatArray) -> FloatArray:
        """Return the least sums of the two by the sum of their places."""
        long, short = first, second
        if len(long) < len(short):
            long, short = short, long
        self._n_work += len(long) * len(short)
        if self._n_work > MOST_WORK:
            raise _TooMuch
        if len(short) > 1:
            return _least_sums(long, short)
        if not len(short):
            return short
        sums: FloatArray = long + short[0]
        return sums

    def _walk(
        self,
        by_units_used: Sequence[_Losses],
        by_units_made: Sequence[_Losses],
        behind: Sequence[_Losses],
    ) -> list[int]:
        """Read off the units, the widest kind first, as many as lose least."""
        chain, slack = self._chain, self.prices.slack
        at = 0  # U_i / s_i
        may_lose = self._differences(behind[0], by_units_made[0]).at(0) + self._noise
        n_units: list[int] = []
        for i, (by_used, by_made, after) in enumerate(
            zip(by_units_used, by_units_made, behind, strict=True)
        ):
            at *= chain.steps[i]
            sums = by_made.losses + after.between(at + by_made.low, len(by_made.losses))
            n_made = by_made.low + _last_within(sums, may_lose)
            at += n_made
            loss = by_made.at(n_made)
            n_used = chain.base[i] + n_made
            if not n_made:  # some of its own units may be left over
                up_to_base = by_used.losses[: n_used - by_used.low + 1]
                n_used = by_used.low + _last_within(up_to_base, loss + self._noise)
            n_units.append(n_used)
            may_lose -= loss + slack[i] * (chain.most[i] - at)
        return n_units


def _last_within(losses: FloatArray, most: float) -> int:
    """Return the last place with no larger loss, or with the least of all."""
    return int((losses <= max(most, losses.min())).nonzero()[0][-1])


def _ends(is_near: BoolArray) -> tuple[IntArray, IntArray]:
    """Return by trainer the first and the last size that is near; there is one."""
    return is_near.argmax(axis=1), is_near.shape[1] - 1 - is_near[:, ::-1].argmax(axis=1)


def _largest(losses: FloatArray, gap: float) -> int:
    """Return how many units trainers have at most when each loses no more than the gap."""
    _, last = _ends(losses <= gap)
    return int(last.sum())


def _least_sums(long: FloatArray, short: FloatArray) -> FloatArray:
    """Return the least sums: one row for each place of the shorter, which numpy does quickly."""
    rim = np.full(len(short) - 1, np.inf)
    padded = np.concatenate([rim, long, rim])
    n_sums, backwards = len(long) + len(short) - 1, short[::-1, None]
    step = max(1, BLOCK // len(short))
    parts = []
    for start in range(0, n_sums, step):
        width = min(step, n_sums - start)
        block = padded[start : start + width + len(short) - 1]
        rows = np.lib.stride_tricks.sliding_window_view(block, width)
        parts.append((rows + backwards).min(axis=0))
    return np.concatenate(parts)


def _by_units_made(by_used: _Losses, base: int) -> _Losses:
    """Return the losses by units made of free GPUs: none up to those that a kind has anyway."""
    n_up_to_base = base - by_used.low + 1  # numbers of units that need no free GPUs
    if n_up_to_base <= 0:
        return _Losses(by_used.low - base, by_used.losses)
    loss_with_none = by_used.losses[:n_up_to_base].min(initial=np.inf)
    return _Losses(0, np.append(loss_with_none, by_used.losses[n_up_to_base:]))


def _each(losses: _Losses, step: int, most: int) -> _Losses:
    """Return those of every so many units, up to ``most`` times so many."""
    low = -(-losses.low // step)
    every_step = losses.losses[low * step - losses.low :: step]
    return _Losses(low, every_step[: max(most - low + 1, 0)])


class _Edge(NamedTuple):
    """Units of one kind beyond its own that gain equally much."""

    slope: float  # by GPU
    n_gpus: float
    kind: int  # i


def _find_prices(edges: Sequence[FloatArray], chain: Chain) -> _Prices:
    """Return the prices of the relaxation."""
    gpu = _gpu_prices(_beyond_own(edges, chain), chain)
    gpu_behind = [*gpu[1:], 0.0]
    unit: list[float] = []
    gpus: list[float] = []
    slack: list[float] = []
    for i, n_gpus in enumerate(chain.gpus):
        gpus.append(n_gpus * gpu[i])
        slack.append(n_gpus * max(gpu[i] - gpu_behind[i], 0.0))
        # Of a unit as if none were made of free GPUs, where that is less.
        unit.append(min(price_of(edges[i], chain.base[i]), gpus[i]))
    return _Prices(unit=unit, gpu=gpu, gpus=gpus, slack=slack)


def _beyond_own(edges: Sequence[FloatArray], chain: Chain) -> list[_Edge]:
    """Return the edges but for those that a kind's own units suffice for, the steepest first."""
    beyond_own: list[_Edge] = []
    for i, ((slopes, lengths), base, gpus) in enumerate(
        zip(edges, chain.base, chain.gpus, strict=True)
    ):
        order = (-slopes).argsort(kind="stable")
        n_units = (lengths[order].cumsum() - base).clip(min=0.0)
        n_gpus = np.minimum(lengths[order], n_units) * gpus
        steepness = (slopes[order] / gpus).tolist()
        for slope, width in zip(steepness, n_gpus.tolist(), strict=True):
            beyond_own.append(_Edge(slope, width, i))
    beyond_own.sort(key=lambda edge: -edge.slope)
    return beyond_own


def _gpu_prices(edges: Sequence[_Edge], chain: Chain) -> list[float]:
    """Return what a GPU costs for each kind: the slope of the edge that did not fit any more."""
    n_kinds, n_closed = len(chain.gpus), 0
    prices = [0.0] * n_kinds
    room = [float(gpus * units) for gpus, units in zip(chain.gpus, chain.most, strict=True)]
    for edge in edges:
        i = edge.kind
        if i < n_closed or not edge.n_gpus:
            continue
        n_taken = min(edge.n_gpus, *room[i:])
        for n in range(i, n_kinds):
            room[n] -= n_taken
        if n_taken < edge.n_gpus:
            last = max([n for n in range(i, n_kinds) if room[n] <= 0])
            prices[n_closed : last + 1] = [edge.slope] * (last + 1 - n_closed)
            n_closed = last + 1
            if n_closed == n_kinds:
                break
    return prices
