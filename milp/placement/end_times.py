"""The distribution of nodes by end time, so that leaves touch as few trainers as possible.

Takes how many nodes each trainer still needs and how many nodes leave at which time,
returns how many of each it gets; called by placement, before switches and pilots. A
trainer pays once for each leave it will feel (a fixed charge), so this is a packing
problem: trainers are filled one by one from the cheapest sources, then one or two are
emptied and filled again while that gains.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

ENDLESS = math.inf  # the end of nodes that have none in sight
ROAM = -1  # the source of nodes that cost the same wherever they go
MAX_WORK = 4_000  # bound on the search in groups looked at: deterministic, unlike a clock
ALIKE = 1.1  # nodes that leave alone and weigh no more than that times the next are one step
MAX_PRICES = 6  # tried for an endless node
NOISE = 1e-12


Share = dict[float, int]  # end, or ENDLESS for roaming nodes -> nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """The nodes that a trainer still needs."""

    need: int
    feels_s: frozenset[float]  # ends of the nodes it has for sure
    # A trainer that shrinks chooses among its own nodes: how many it has per end.
    own: Mapping[float, int] | None = None


def share_leavers(
    wants: Sequence[Want], counts: Mapping[float, int], weights: Mapping[float, float]
) -> tuple[list[Share], frozenset[float]]:
    """Fill every need.

    Roaming are the endless nodes and the used ones that leave alone: those disturb one trainer
    whichever has them.

    Args:
        wants: by trainer.
        counts: nodes by end; ``ENDLESS``: without one in sight.
        weights: of a leave at each end.

    Returns:
        By trainer how many nodes of which end; the ends of nodes that leave alone and are used.
    """
    needs, n_endless = tuple(want.need for want in wants), counts.get(ENDLESS, 0)
    owned = [want for want in wants if want.own is not None]
    if sum(needs) <= n_endless and all(
        want.need <= (want.own or {}).get(ENDLESS, 0) for want in owned
    ):
        return [{ENDLESS: need} for need in needs], frozenset()
    known = frozenset[float]().union(
        *(want.feels_s for want in wants), *(w.own or () for w in owned)
    )
    order = sorted(counts.keys() - {ENDLESS}, key=lambda end: (weights[end], -end))
    alone = [end for end in order if counts[end] == 1 and end not in known]
    groups = [end for end in order if counts[end] > 1 or end in known]
    index = {end: g for g, end in enumerate(groups)} | {ENDLESS: ROAM}
    state = _State(
        needs=needs,
        felt=tuple(
            frozenset(index[end] for end in want.feels_s - {ENDLESS} if end in index)
            for want in wants
        ),
        own=tuple(
            None if want.own is None else {index[end]: n for end, n in want.own.items()}
            for want in wants
        ),
        weights=tuple(weights[end] for end in groups),
        slack=[counts[end] for end in groups],
        n_endless=n_endless,
        alone=tuple(weights[end] for end in alone),
        shares=[{} for _ in needs],
        roaming=0,
    )
    best = _search(state)
    shares = [
        {ENDLESS: share.get(ROAM, 0)} | {groups[g]: n for g, n in share.items() if g != ROAM}
        for share in best.shares
    ]
    return shares, frozenset(alone[: max(best.roaming - n_endless, 0)])


@dataclass(slots=True, kw_only=True)
class _State:
    """A solution under construction; ``shares`` maps sources (groups or ROAM) to nodes."""

    needs: tuple[int, ...]
    felt: tuple[frozenset[int], ...]
    own: tuple[dict[int, int] | None, ...]
    weights: tuple[float, ...]  # [g], rising
    slack: list[int]  # [g]
    n_endless: int
    alone: tuple[float, ...]  # weights of nodes that leave alone, rising; after the endless
    shares: list[dict[int, int]]
    roaming: int  # roaming nodes in use
    work: int = 0

    def copy(self) -> _State:
        """A state that can be changed without changing this one."""
        shares = [dict(share) for share in self.shares]
        return replace(self, slack=list(self.slack), shares=shares)

    def cost(self, trainers: Sequence[int]) -> tuple[float, float]:
        """Disturbances and leaving nodes, by weight, of these trainers and all roaming."""
        disturbances = leaving = math.fsum(self.alone[: max(self.roaming - self.n_endless, 0)])
        for j in trainers:
            for g, n in self.shares[j].items():
                if g != ROAM:
                    leaving += n * self.weights[g]
                    disturbances += 0.0 if g in self.felt[j] else self.weights[g]
        return disturbances, leaving

    def take(self, j: int, g: int, n: int) -> None:
        """Give trainer j so many more nodes of a source."""
        if n:
            self.shares[j][g] = self.shares[j].get(g, 0) + n
            if g == ROAM:
                self.roaming += n
            else:
                self.slack[g] -= n

    def empty(self, j: int) -> None:
        """Take back all that trainer j got."""
        for g, n in self.shares[j].items():
            if g == ROAM:
                self.roaming -= n
            else:
                self.slack[g] += n
        self.shares[j] = {}

    def missing(self, j: int) -> int:
        """Nodes trainer j still needs."""
        return self.needs[j] - sum(self.shares[j].values())

    def fill(self, j: int, price: float) -> None:
        """Cover what trainer j still needs; an endless node counts as ``price``."""
        self.work += len(self.weights) + 8
        left = self.missing(j)
        offers = self._offers(j)
        # Another node of a leave that is felt anyhow costs nothing and spares endless ones.
        for g in sorted(self.felt[j]):
            n = min(left, offers[g])
            self.take(j, g, n)
            offers[g] -= n
            left -= n
        for g, n in self._cheapest(j, left, offers, price):
            self.take(j, g, n)

    def _offers(self, j: int) -> list[int]:
        """Nodes of each group that trainer j may still take."""
        own = self.own[j]
        if own is None:
            return list(self.slack)
        return [min(n, own.get(g, 0)) for g, n in enumerate(self.slack)]

    def _cheapest(
        self, j: int, n_nodes: int, offers: list[int], price: float
    ) -> list[tuple[int, int]]:
        """Sources for so many nodes: the cheapest per node until one group has the rest."""
        own = self.own[j]
        n_endless = max(self.n_endless - self.roaming, 0)
        # Endless nodes come before those that leave alone, which are nobody's.
        next_alone = max(self.roaming - self.n_endless, 0) if own is None else len(self.alone)
        n_endless = n_endless if own is None else min(n_endless, own.get(ROAM, 0))
        plan: list[tuple[int, int]] = []
        best_plan, best_cost = plan, math.inf
        cost, left = 0.0, n_nodes
        while left and cost < best_cost - NOISE:
            source, n = ROAM, max(min(left, n_endless), 1)
            if n_endless:
                rate = price
            else:
                rate = self.alone[next_alone] if next_alone < len(self.alone) else math.inf
            for g, weight in enumerate(self.weights):
                if weight >= min(rate * left, best_cost - cost):
                    break  # so are all that follow
                if weight < rate * min(offers[g], left):
                    source, n = g, min(offers[g], left)
                    rate = weight / n
                if offers[g] >= left:
                    best_plan, best_cost = [*plan, (g, left)], cost + weight
            if rate == math.inf:
                break  # nothing is left
            if source != ROAM:
                offers[source] = 0
                cost += self.weights[source]
            elif n_endless:
                n_endless -= n
                cost += price * n
            else:
                similar = bisect_right(self.alone, rate * ALIKE, next_alone)
                n = min(similar - next_alone, left)
                cost += math.fsum(self.alone[next_alone : next_alone + n])
                next_alone += n
            plan.append((source, n))
            left -= n
        return plan if not left and cost <= best_cost else best_plan


def _prices(state: _State) -> list[float]:
    """Return the prices to try for a node without an end: 0, and the costs of groups per node."""
    rates = sorted({w / max(n, 1) for w, n in zip(state.weights, state.slack, strict=True)})
    rates = [rate * (1 + NOISE) for rate in rates]
    step = max(len(rates) // MAX_PRICES, 1)
    return [0.0, *rates[step - 1 :: step]] if state.n_endless else [0.0]


def _search(start: _State) -> _State:
    """The best over a few prices of an endless node, improved by filling again."""
    everyone = range(len(start.needs))
    prices = _prices(start)
    found: list[_State] = []
    work = 0
    for price in prices:
        if work > MAX_WORK:
            break
        state = start.copy()
        # Who shrinks has least choice; the largest needs find most while much is left.
        order = sorted(everyone, key=lambda j: (state.own[j] is None, -state.needs[j], j))
        for j in order:
            if state.own[j] is not None:
                state.fill(j, price)
        if not price:
            _take_endless(state, order)
        for j in order:
            state.fill(j, price)
        work += state.work
        found.append(state)
    best = min(found, key=lambda state: state.cost(everyone))
    best.work = work
    _improve(best, prices)
    return best


def _take_endless(state: _State, order: Sequence[int]) -> None:
    """Endless nodes to the smallest needs first: so the fewest trainers need others."""
    for j in reversed(order):
        own = state.own[j]
        if own is None and not state.felt[j]:
            state.take(j, ROAM, min(state.needs[j], max(state.n_endless - state.roaming, 0)))


def _improve(state: _State, prices: Sequence[float]) -> None:
    """Empty one or two trainers and fill them again, while that costs less."""
    everyone = range(len(state.needs))
    has_gained = True
    while has_gained:
        has_gained = False
        paying = [j for j in everyone if any(g != ROAM for g in state.shares[j])]
        pairs = [(j,) for j in paying] + [(i, j) for j in paying for i in everyone if i != j]
        for pair, price in itertools.product(pairs, prices):
            if state.work > MAX_WORK:
                return
            slack, roaming = list(state.slack), state.roaming
            shares = [state.shares[j] for j in pair]
            disturbances, leaving = state.cost(pair)
            for j in pair:
                state.empty(j)
            for j in pair:
                state.fill(j, price if j == pair[0] else 0.0)
            now, leaving_now = state.cost(pair)
            is_better = now < disturbances - NOISE or (
                now <= disturbances + NOISE and leaving_now < leaving - NOISE
            )
            if is_better and not any(state.missing(j) for j in pair):
                has_gained = True
                continue
            state.slack, state.roaming = slack, roaming
            for j, share in zip(pair, shares, strict=True):
                state.shares[j] = share
