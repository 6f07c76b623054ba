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
    own_ends: Mapping[float, int] | None = None


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
    needs, n_endless = [want.need for want in wants], counts.get(ENDLESS, 0)
    if sum(needs) <= n_endless and all(map(_has_enough_endless, wants)):
        return [{ENDLESS: need} for need in needs], frozenset()
    ends_of_some: set[float] = set()  # of nodes that some trainer has or chooses from
    for want in wants:
        ends_of_some.update(want.feels_s, want.own_ends or ())
    groups: list[float] = []
    slack: list[int] = []
    alone: list[float] = []
    for end in sorted(counts.keys() - {ENDLESS}, key=lambda end: (weights[end], -end)):
        if counts[end] > 1 or end in ends_of_some:
            groups.append(end)
            slack.append(counts[end])
        elif counts[end] == 1:
            alone.append(end)
    index = {end: g for g, end in enumerate(groups)} | {ENDLESS: ROAM}
    state = _State(
        needs=tuple(needs),
        felt=tuple([_groups_felt(want, index) for want in wants]),
        choices=tuple([_groups_to_choose_from(want, index) for want in wants]),
        weights=tuple(map(weights.__getitem__, groups)),
        slack=slack,
        n_endless=n_endless,
        alone=tuple(map(weights.__getitem__, alone)),
        shares=[{} for _ in needs],
        roaming=0,
    )
    best = _search(state)
    shares: list[Share] = []
    for counts_taken in best.shares:
        share = {ENDLESS: counts_taken.get(ROAM, 0)}
        for g, n in counts_taken.items():
            if g != ROAM:
                share[groups[g]] = n
        shares.append(share)
    return shares, frozenset(alone[: max(best.roaming - n_endless, 0)])


def _has_enough_endless(want: Want) -> bool:
    """Return whether one that shrinks has as many endless nodes of its own as it keeps."""
    return want.own_ends is None or want.need <= want.own_ends.get(ENDLESS, 0)


def _groups_felt(want: Want, index: Mapping[float, int]) -> frozenset[int]:
    return frozenset([index[end] for end in want.feels_s if end in index and end != ENDLESS])


def _groups_to_choose_from(want: Want, index: Mapping[float, int]) -> dict[int, int] | None:
    if want.own_ends is None:
        return None
    return {index[end]: n for end, n in want.own_ends.items()}


@dataclass(slots=True, kw_only=True)
class _State:
    """A solution under construction; ``shares`` maps sources (groups or ROAM) to nodes."""

    needs: tuple[int, ...]
    felt: tuple[frozenset[int], ...]
    choices: tuple[dict[int, int] | None, ...]  # own nodes by source, of those that shrink
    weights: tuple[float, ...]  # [g], rising
    slack: list[int]  # [g]
    n_endless: int
    alone: tuple[float, ...]  # weights of nodes that leave alone, rising; after the endless
    shares: list[dict[int, int]]
    roaming: int  # roaming nodes in use
    work: int = 0

    def copy(self) -> _State:
        """A state that can be changed without changing this one."""
        shares = list(map(dict, self.shares))
        return replace(self, slack=list(self.slack), shares=shares)

    def cost(self, trainers: Sequence[int]) -> tuple[float, float]:
        """Disturbances and leaving nodes, by weight, of these trainers and all roaming."""
        disturbances = leaving = math.fsum(self.alone[: max(self.roaming - self.n_endless, 0)])
        for j in trainers:
            for g, n in self.shares[j].items():
                if g != ROAM:
                    leaving += n * self.weights[g]
                    if g not in self.felt[j]:
                        disturbances += self.weights[g]
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
        n_missing = self.missing(j)
        offers = self._offers(j)
        # Another node of a leave that is felt anyhow costs nothing and spares endless ones.
        for g in sorted(self.felt[j]):
            n = min(n_missing, offers[g])
            self.take(j, g, n)
            offers[g] -= n
            n_missing -= n
        for g, n in self._cheapest(j, n_missing, offers, price):
            self.take(j, g, n)

    def _offers(self, j: int) -> list[int]:
        """Nodes of each group that trainer j may still take."""
        choice = self.choices[j]
        if choice is None:
            return list(self.slack)
        return [min(n, choice.get(g, 0)) for g, n in enumerate(self.slack)]

    def _roaming_left(self, j: int) -> tuple[int, int]:
        """How many endless nodes trainer j may take, and the first of those that leave alone."""
        n_endless = max(self.n_endless - self.roaming, 0)
        choice = self.choices[j]
        if choice is not None:  # those that leave alone are nobody's
            return min(n_endless, choice.get(ROAM, 0)), len(self.alone)
        # Endless nodes are used up before those that leave alone.
        return n_endless, max(self.roaming - self.n_endless, 0)

    def _cheapest(
        self, j: int, n_nodes: int, offers: list[int], price: float
    ) -> list[tuple[int, int]]:
        """Sources for so many nodes: the cheapest per node until one group has the rest."""
        n_endless, next_alone = self._roaming_left(j)
        plan: list[tuple[int, int]] = []
        best_plan, best_cost = plan, math.inf
        cost, n_missing = 0.0, n_nodes
        while n_missing and cost < best_cost - NOISE:
            source, n = ROAM, max(min(n_missing, n_endless), 1)
            rate = math.inf  # of a node of the cheapest source so far
            if n_endless:
                rate = price
            elif next_alone < len(self.alone):
                rate = self.alone[next_alone]
            for g, weight in enumerate(self.weights):
                if weight >= min(rate * n_missing, best_cost - cost):
                    break  # so are all that follow
                if weight < rate * min(offers[g], n_missing):
                    source, n = g, min(offers[g], n_missing)
                    rate = weight / n
                if offers[g] >= n_missing:
                    best_plan, best_cost = [*plan, (g, n_missing)], cost + weight
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
                n = min(similar - next_alone, n_missing)
                cost += math.fsum(self.alone[next_alone : next_alone + n])
                next_alone += n
            plan.append((source, n))
            n_missing -= n
        if n_missing or cost > best_cost:
            return best_plan
        return plan


def _prices(state: _State) -> list[float]:
    """Return the prices to try for a node without an end: 0, and the costs of groups per node."""
    if not state.n_endless:
        return [0.0]
    rates = sorted({w / max(n, 1) for w, n in zip(state.weights, state.slack, strict=True)})
    step = max(len(rates) // MAX_PRICES, 1)
    return [0.0, *[rate * (1 + NOISE) for rate in rates[step - 1 :: step]]]


def _search(start: _State) -> _State:
    """The best over a few prices of an endless node, improved by filling again."""
    everyone = range(len(start.needs))
    prices = _prices(start)
    states: list[_State] = []
    work = 0
    for price in prices:
        if work > MAX_WORK:
            break
        state = start.copy()
        # Who shrinks has least choice; the largest needs find most while much is left.
        order = sorted(everyone, key=lambda j: (state.choices[j] is None, -state.needs[j], j))
        for j in order:
            if state.choices[j] is not None:
                state.fill(j, price)
        if not price:
            _take_endless(state, order)
        for j in order:
            state.fill(j, price)
        work += state.work
        states.append(state)
    best = min(states, key=lambda state: state.cost(everyone))
    best.work = work
    _improve(best, prices)
    return best


def _take_endless(state: _State, order: Sequence[int]) -> None:
    """Endless nodes to the smallest needs first: so the fewest trainers need others."""
    for j in reversed(order):
        if state.choices[j] is None and not state.felt[j]:
            n_unused = max(state.n_endless - state.roaming, 0)
            state.take(j, ROAM, min(state.needs[j], n_unused))


def _improve(state: _State, prices: Sequence[float]) -> None:
    """Empty one or two trainers and fill them again, while that costs less."""
    has_gained = True
    while has_gained:
        has_gained = False
        for pair, price in itertools.product(_pairs_to_try(state), prices):
            if state.work > MAX_WORK:
                return
            slack, roaming = list(state.slack), state.roaming
            shares = [state.shares[j] for j in pair]
            disturbances, leaving = state.cost(pair)
            for j in pair:
                state.empty(j)
            for j in pair:
                # Only the first pays for endless nodes.
                state.fill(j, price if j == pair[0] else 0.0)
            disturbances_now, leaving_now = state.cost(pair)
            is_better = disturbances_now < disturbances - NOISE or (
                disturbances_now <= disturbances + NOISE and leaving_now < leaving - NOISE
            )
            if is_better and not any(map(state.missing, pair)):
                has_gained = True
                continue
            state.slack, state.roaming = slack, roaming
            for j, share in zip(pair, shares, strict=True):
                state.shares[j] = share


def _pairs_to_try(state: _State) -> list[tuple[int, ...]]:
    """Return the trainers that pay for leaves, each alone and then with each other trainer."""
    paying = [j for j, share in enumerate(state.shares) if share.keys() - {ROAM}]
    pairs: list[tuple[int, ...]] = [(j,) for j in paying]
    for j in paying:
        pairs += [(i, j) for i in range(len(state.needs)) if i != j]
    return pairs
