"""The switches from which each trainer takes its nodes: as few as possible.

Takes how many nodes of which source each trainer gets (the ends are settled by then)
and how many there are per source and switch, returns how many of each pair it gets;
called by placement. Greedy, largest need first; then switches of which a trainer has
little are emptied by exchanging nodes of the same source.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from milp.tables import IntArray

Cell = tuple[int, int]  # source, switch
MAX_WORK = 4_000  # bound on the exchanges looked at: deterministic, unlike a clock


@dataclass(slots=True, kw_only=True)
class Taker:
    """A trainer that takes nodes: how many per source, and its kept nodes' switches."""

    counts: Mapping[int, int]  # source -> nodes
    kept_on: frozenset[int]
    takes: dict[int, dict[int, int]] = field(default_factory=dict)  # switch -> source -> nodes

    def add(self, source: int, switch: int, n: int) -> None:
        """Take so many nodes more, or fewer."""
        counts = self.takes.setdefault(switch, {})
        counts[source] = counts.get(source, 0) + n
        if not counts[source]:
            del counts[source]
            if not counts:
                del self.takes[switch]


def take_from_switches(
    takers: Sequence[Taker],
    supply: IntArray,
    favoured: Sequence[int],
    *,
    prefers_tight: bool = True,
    largest_first: bool = True,
) -> None:
    """Fill in every taker's ``takes``; ``supply[source, switch]`` counts nodes.

    Among switches that have all a taker needs it goes to the one with fewest to spare,
    or to the one with most nodes that are favoured: ``favoured[switch]``.
    """
    supply_left = supply.copy()
    order = sorted(range(len(takers)), key=lambda j: (-sum(takers[j].counts.values()), j))
    if not largest_first:
        order.reverse()
    for j in order:
        _take_greedily(takers[j], supply_left, favoured, prefers_tight=prefers_tight)
    if len(takers) > 1:
        _exchange(takers, supply_left)


def _take_greedily(
    taker: Taker, supply_left: IntArray, favoured: Sequence[int], *, prefers_tight: bool
) -> None:
    """Own switches first; then the best switch that has all, else the one with most."""
    sources: list[int] = []
    wants: list[int] = []
    for source, n in taker.counts.items():
        if n:
            sources.append(source)
            wants.append(n)
    supply = supply_left[sources]
    offers: list[list[int]] = supply.T.tolist()  # [switch][source]

    def rank(switch: int, reach: int, total: int) -> tuple[bool, int, int, int, int]:
        is_new = switch not in taker.kept_on
        if prefers_tight:
            # Fewest nodes to spare: what remains elsewhere stays whole for others.
            return is_new, -reach, total, -favoured[switch], switch
        return is_new, -reach, -favoured[switch], total, switch

    switch_totals = supply.sum(axis=0)
    switches = switch_totals.nonzero()[0].tolist()
    totals = switch_totals.tolist()
    reaches = np.minimum(supply, np.array(wants, dtype=np.int64)[:, None]).sum(axis=0).tolist()
    ranks = [rank(switch, reaches[switch], totals[switch]) for switch in switches]
    heapq.heapify(ranks)
    n_missing = sum(wants)
    while n_missing:
        if not ranks:
            raise ValueError(f"{n_missing} nodes more are wanted than there are")
        # What is left to want only shrinks, so an old rank is never too low.
        switch = ranks[0][-1]
        rank_now = rank(switch, sum(map(min, offers[switch], wants)), sum(offers[switch]))
        if rank_now > ranks[0]:
            heapq.heapreplace(ranks, rank_now)
            continue
        heapq.heappop(ranks)
        for s, source in enumerate(sources):
            n = min(offers[switch][s], wants[s])
            if n:
                taker.add(source, switch, n)
                supply_left[source, switch] -= n
                wants[s] -= n
                n_missing -= n


def _exchange(takers: Sequence[Taker], supply_left: IntArray) -> None:
    """Empty switches of single takers while that saves one, up to a bound on the work."""
    state = _Exchange(
        takers=takers, unused=supply_left.tolist(), holders=defaultdict(set), work_left=MAX_WORK
    )
    for j, taker in enumerate(takers):
        for switch, at in taker.takes.items():
            for source in at:
                state.holders[source, switch].add(j)
    has_gained = True
    while has_gained:
        has_gained = False
        for j, taker in enumerate(takers):
            for switch in sorted(taker.takes, key=lambda s: (sum(taker.takes[s].values()), s)):
                if switch in taker.kept_on or switch not in taker.takes:
                    continue
                if state.work_left <= 0:
                    return
                moves = state.moves_off(j, switch)
                if moves is not None:
                    state.carry_out(j, switch, moves)
                    has_gained = True


Move = tuple[int, int, int, int]  # source, to switch, partner (-1: nobody), nodes


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """The nodes that trainers take while switches are emptied."""

    takers: Sequence[Taker]
    unused: list[list[int]]  # [source][switch]: nodes nobody takes
    holders: defaultdict[Cell, set[int]]
    work_left: int

    def moves_off(self, j: int, switch: int) -> list[Move] | None:
        """Exchanges that free taker j of a switch at no cost to others, if there are any."""
        taker = self.takers[j]
        targets = sorted((taker.kept_on | taker.takes.keys()) - {switch})
        moves: list[Move] = []
        for source, n_there in taker.takes[switch].items():
            n_missing = n_there
            self.work_left -= len(targets)
            unused = self.unused[source]
            for target in targets:
                n = min(n_missing, unused[target])
                if n:
                    moves.append((source, target, -1, n))
                    n_missing -= n
            for target in targets:
                if not n_missing:
                    break
                for move in self._moves_with_partners(j, source, switch, target, n_missing):
                    moves.append(move)
                    *_, n = move
                    n_missing -= n
            if n_missing:
                return None
        return moves

    def _moves_with_partners(
        self, j: int, source: int, switch: int, target: int, n_missing: int
    ) -> list[Move]:
        """Exchanges with takers that have no more switches afterwards than before."""
        moves: list[Move] = []
        holders = self.holders.get((source, target))
        if not holders:
            return moves
        self.work_left -= len(holders)
        for i in sorted(holders):
            partner = self.takers[i]
            if i == j or not n_missing:
                continue
            counts = partner.takes[target]
            accepts = switch in partner.kept_on or switch in partner.takes
            leaves = (
                len(counts) == 1 and counts[source] <= n_missing and target not in partner.kept_on
            )
            if accepts or leaves:
                n = min(n_missing, counts[source])
                moves.append((source, target, i, n))
                n_missing -= n
        return moves

    def carry_out(self, j: int, switch: int, moves: Sequence[Move]) -> None:
        """Make the exchanges."""
        for source, target, i, n in moves:
            self._shift(j, source, switch, target, n)
            if i >= 0:
                self._shift(i, source, target, switch, n)
            else:
                self.unused[source][target] -= n
                self.unused[source][switch] += n

    def _shift(self, j: int, source: int, origin: int, to: int, n: int) -> None:
        taker = self.takers[j]
        taker.add(source, origin, -n)
        if source not in taker.takes.get(origin, ()):
            self.holders[source, origin].discard(j)
        taker.add(source, to, n)
        self.holders[source, to].add(j)
