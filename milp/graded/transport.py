"""Which grades the trainers get once their sizes are fixed: a transport problem, exactly.

Takes one chosen row per trainer, returns nodes by trainer and grade and the prices of
the grades that prove it optimal. Called by the graded search. Start: who earns most per
second chooses first (best by the rearrangement inequality when nothing else matters);
then nodes change hands along chains of trainers until no chain gains.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from milp.graded.rows import FORBIDDEN, NEVER, Rows
from milp.tables import FloatArray, IntArray

MAX_CYCLES = 10_000  # a few are usual; there is an end even where floats deceive
RELATIVE_STEP = 1e-13  # of the largest profit: gains below it are float noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """The best map of grades for the rows, with its proof."""

    used: IntArray  # [j, g]: chosen nodes, without the fixed ones of the rows
    value: float  # objective of the rows with these nodes
    prices: FloatArray  # [g]: what trainers would pay for one node more, shifted to >= 0
    has_idle: bool  # nodes are left over: their price, and the least of all, is 0


class _Flow:
    """Nodes by holder and grade; the last holder is idleness, which earns nothing."""

    def __init__(self, rows: Rows, free: IntArray) -> None:
        n_trainers, n_grades = rows.profit.shape
        self.profit = np.zeros((n_trainers + 1, n_grades))
        self.profit[:-1] = rows.profit
        self.used = np.zeros((n_trainers + 1, n_grades), dtype=np.int64)
        self.used[-1] = free
        self.limit = np.full((n_trainers + 1, n_grades), free.sum() + 1)
        self.limit[:-1] = rows.limit
        self.idle = n_trainers
        self.noise = RELATIVE_STEP * float(np.abs(rows.profit[rows.profit > NEVER]).max(initial=0))

    def gains(self) -> FloatArray:
        """[i, k]: best gain when i takes one node over from k (k's loss included)."""
        lost = np.where(self.used > 0, self.profit, np.inf)
        earned = np.where(self.used < self.limit, self.profit, -np.inf)
        gains: FloatArray = (earned[:, None, :] - lost[None, :, :]).max(axis=2, initial=-np.inf)
        np.fill_diagonal(gains, -np.inf)
        return gains

    def best_grade(self, taker: int, giver: int) -> int:
        """The grade by which ``gains`` is reached."""
        lost = np.where(self.used[giver] > 0, self.profit[giver], np.inf)
        earned = np.where(self.used[taker] < self.limit[taker], self.profit[taker], -np.inf)
        return int((earned - lost).argmax())

    def move(self, chain: list[int], most: int) -> int:
        """Each of the chain takes over from the next, as many nodes as all can."""
        pairs = list(itertools.pairwise(chain))
        grades = [self.best_grade(taker, giver) for taker, giver in pairs]
        wanted: dict[tuple[int, int], int] = {}
        for (_, giver), g in zip(pairs, grades, strict=True):
            wanted[giver, g] = wanted.get((giver, g), 0) + 1
        n_nodes = min(
            most,
            *(int(self.used[at]) // n for at, n in wanted.items()),
            *(
                int(self.limit[taker, g] - self.used[taker, g])
                for (taker, _), g in zip(pairs, grades, strict=True)
            ),
        )
        for (taker, giver), g in zip(pairs, grades, strict=True):
            self.used[giver, g] -= n_nodes
            self.used[taker, g] += n_nodes
        return n_nodes


def transport(rows: Rows, counts: IntArray) -> Transport | None:
    """Give each row (one per trainer) its nodes; None: they do not fit."""
    flow = _Flow(rows, counts - rows.fixed.sum(axis=0))
    missing = _choose_in_turn(flow, rows)
    if missing.any():
        _improve(flow)  # the chains that cost least exist only where no cycle gains
    for j in np.flatnonzero(missing).tolist():
        if not _fill(flow, j, int(missing[j])):
            return None
    worth = _improve(flow)
    used = flow.used[:-1]
    value = float(rows.constant.sum() + (used * np.where(used > 0, rows.profit, 0.0)).sum())
    has_idle = bool(flow.used[-1].any())
    prices = _price(flow, worth)
    return Transport(used=used, value=value, prices=prices, has_idle=has_idle)


def _price(flow: _Flow, worth: FloatArray) -> FloatArray:
    """Prices by grade, the least 0, at which nobody would choose other nodes.

    No lower than what whoever wants one would pay. A grade that nobody wants (who may have
    it has all of it) at what its holders would pay at most. 0 where nothing is to be had.
    """
    used, limit = flow.used[: len(worth)], flow.limit[: len(worth)]
    paid = flow.profit[: len(worth)] - worth[:, None]
    bids = np.where(used < limit, paid, FORBIDDEN).max(axis=0, initial=FORBIDDEN)
    asks = np.where(used > 0, paid, np.inf).min(axis=0, initial=np.inf)
    prices: FloatArray = np.where(bids > NEVER, bids, asks)
    is_priced = np.isfinite(prices)
    prices[is_priced] -= prices[is_priced].min(initial=np.inf)
    prices[~is_priced] = 0.0
    return prices


def _choose_in_turn(flow: _Flow, rows: Rows) -> IntArray:
    """Best rate first, each the best of what is left; returns what they still miss."""
    missing = rows.need.copy()
    free = flow.used[-1]
    for j in np.argsort(-rows.rate, kind="stable").tolist():
        left = int(missing[j])
        if not left:
            continue
        profit = rows.profit[j]
        for g in np.argsort(-profit, kind="stable").tolist():
            if profit[g] <= NEVER:
                break
            taken = min(left, int(free[g]), int(rows.limit[j, g]))
            if taken:
                flow.used[j, g] += taken
                free[g] -= taken
                left -= taken
                if not left:
                    break
        missing[j] = left
    return missing


def _fill(flow: _Flow, j: int, missing: int) -> bool:
    """Bring nodes to trainer j along the chains that cost least."""
    while missing:
        gains = flow.gains()
        worth = np.full(len(gains), -np.inf)
        worth[flow.idle] = 0.0
        following = np.full(len(gains), flow.idle)
        for _ in range(len(gains)):
            through = gains + worth
            best = through.argmax(axis=1)
            reached = through[np.arange(len(best)), best]
            better = reached > worth + flow.noise
            better[flow.idle] = False
            if not better.any():
                break
            worth[better], following[better] = reached[better], best[better]
        if worth[j] <= NEVER:
            return False
        chain = [j]
        while chain[-1] != flow.idle and len(chain) <= len(gains):
            chain.append(int(following[chain[-1]]))
        missing -= flow.move(chain, missing)
    return True


def _improve(flow: _Flow) -> FloatArray:
    """Move nodes around cycles that gain; returns what one node more is worth to each.

    That worth is 0 for whoever is best off as it is; without idle nodes idleness is left
    out, so that only differences between trainers count.
    """
    worth = np.zeros(len(flow.used))
    for _ in range(MAX_CYCLES):
        gains = flow.gains()
        if not flow.used[-1].any():
            gains = gains[:-1, :-1]
        worth = np.zeros(len(gains))
        following = np.full(len(gains), -1)
        for _ in range(len(gains) + 1):
            through = gains + worth
            best = through.argmax(axis=1)
            reached = through[np.arange(len(best)), best]
            better = reached > worth + flow.noise
            if not better.any():
                return worth
            worth[better], following[better] = reached[better], best[better]
        cycle = _find_cycle(following)
        if cycle is None:
            return worth
        flow.move(cycle, int(flow.used.max()))
    return worth


def _find_cycle(following: IntArray) -> list[int] | None:
    """A closed chain among the last improvements."""
    state = [0] * len(following)
    for start in range(len(following)):
        at, path = start, []
        while at >= 0 and state[at] == 0:
            state[at] = 1
            path.append(at)
            at = int(following[at])
        if at >= 0 and state[at] == 1:
            return [*path[path.index(at) :], at]
        for seen in path:
            state[seen] = 2
    return None
