"""The choice of our nodes to release: as few as needed, and of those the cheapest.

Takes the demands of startable jobs, the free nodes and what our nodes are worth to the trainers;
returns which demand gets which nodes. Called by ``giveback``; ``limits`` applies the same
rule for the reserve and the back-off. A node's cost to its trainer depends on which others go,
so ``milp.victims`` chooses, exactly as long as any choice of that many nodes meets the demands.
Where it does not, because jobs want different nodes, the demands it meets are kept and the rest
is chosen again: still the fewest nodes, and the cheapest of each round.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bftrainer.decide import problem as problem_of
from bftrainer.decide.feasible import Placed
from bftrainer.decide.queue.matching import Matching
from bftrainer.model.cluster import Job
from bftrainer.model.decision import DecisionInput, Memory, PilotView, PoolNode
from bftrainer.model.node_sets import NodeSet, NodeSets, first
from milp.problem import Problem
from milp.victims import choose_victims
from milp.worth import without


class Pick(Protocol):
    """Chooses ``count`` of the candidates, the cheapest for the trainers."""

    def __call__(
        self, count: int, candidates: Collection[str], gone: Collection[str]
    ) -> Collection[str]:
        """``gone``: nodes of trainers that are already released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimPool:
    """The nodes by which demands may be met, in this order."""

    free: NodeSet  # without a release
    at_no_cost: Sequence[NodeSet]  # ours, and no trainer loses by their release
    of_trainers: NodeSet
    of_others: NodeSet = 0  # with a pilot of another daemon, which releases it by itself

    @classmethod
    def of(
        cls,
        sets: NodeSets,
        free: Iterable[str],
        ours: Iterable[PilotView],
        of_others: Iterable[str],
        assignment: Mapping[str, str],
    ) -> VictimPool:
        """Sort our nodes by what they are worth to the trainers (``tiers_of``)."""
        tiers = tiers_of({pilot.node: pilot.is_held for pilot in ours}, assignment)
        *at_no_cost, of_trainers = map(sets.named, tiers)
        return cls(
            free=sets.named(free),
            at_no_cost=at_no_cost,
            of_trainers=of_trainers,
            of_others=sets.named(of_others),
        )


def give(
    placed: Sequence[Placed], sets: NodeSets, offer: VictimPool, pick: Pick
) -> list[tuple[Job, NodeSet]]:
    """Return for each demand, in the given order, the nodes that meet it."""
    matching = Matching(offer.free)
    lacking: dict[NodeSet, int] = {}
    for _, demand in placed:
        lacking[demand.among] = lacking.get(demand.among, 0) + demand.count
    _meet(matching, lacking)
    for tier in offer.at_no_cost:
        if lacking:
            matching.offer(tier)
            _meet(matching, lacking)
    candidates_left, released = offer.of_trainers, 0
    while lacking and (candidates := matching.reachable(lacking) & candidates_left):
        count = min(sum(lacking.values()), candidates.bit_count())
        names = pick(count, sets.names(candidates), sets.names(released))
        victims = sets.named(names)
        matching.offer(victims)
        _meet(matching, lacking)
        candidates_left &= ~victims  # what does not help now will not later
        released |= victims & ~matching.unused
        matching.unused &= ~victims
    if lacking:
        matching.offer(offer.of_others)
        _meet(matching, lacking)
    return _shared_out(placed, matching.has, offer)


def _meet(matching: Matching, lacking: dict[NodeSet, int]) -> None:
    for among, count in list(lacking.items()):
        lacking[among] = count - matching.add_up_to(among, count)
        if not lacking[among]:
            del lacking[among]


def _shared_out(
    placed: Sequence[Placed], has: Mapping[NodeSet, NodeSet], offer: VictimPool
) -> list[tuple[Job, NodeSet]]:
    """Split the nodes of each set of demands among its jobs; the first get the free ones."""
    unshared = dict(has)
    shares: list[tuple[Job, NodeSet]] = []
    for job, demand in placed:
        among, missing, share = demand.among, demand.count, 0
        for tier in (offer.free, *offer.at_no_cost, offer.of_trainers, offer.of_others):
            share |= first(unshared[among] & tier, missing - share.bit_count())
        unshared[among] &= ~share
        shares.append((job, share))
    return shares


def tiers_of(is_held: Mapping[str, bool], assignment: Mapping[str, str]) -> list[list[str]]:
    """Sort our nodes into four tiers by their worth; only the last costs trainers anything.

    The first: not held and not assigned. The last: held and assigned.

    Args:
        is_held: our nodes -> whether an agent holds it.
        assignment: node -> trainer, of the last decision.
    """
    tiers: list[list[str]] = [[], [], [], []]
    for name, is_there in is_held.items():
        tiers[2 * (name in assignment) + is_there].append(name)
    return tiers


def cheapest(
    count: int,
    nodes: Sequence[PoolNode],
    pick: Pick,
    assignment: Mapping[str, str],
    gone: Collection[str],
) -> list[PoolNode]:
    """Choose up to ``count`` of our nodes, the cheapest for the trainers.

    Args:
        count: how many.
        nodes: ours.
        pick: chooses among the nodes of trainers.
        assignment: node -> trainer, of the last decision.
        gone: nodes that are already released.
    """
    by_name: dict[str, PoolNode] = {}
    is_held: dict[str, bool] = {}
    for node in nodes:
        by_name[node.name] = node
        is_held[node.name] = node.is_held
    *at_no_cost, of_trainers = tiers_of(is_held, assignment)
    victims = list(itertools.chain.from_iterable(at_no_cost))[:count]
    if missing := min(count - len(victims), len(of_trainers)):
        victims += sorted(pick(missing, of_trainers, gone))
    return [by_name[name] for name in victims]


def first_by_name(
    count: int,
    candidates: Collection[str],
    gone: Collection[str],  # noqa: ARG001 - as ``Pick`` has it
) -> Collection[str]:
    """``Pick`` without a policy."""
    return sorted(candidates)[:count]


@dataclass(slots=True)
class CheapestForTrainers:
    """``Pick`` by what trainers lose, as the allocation values it."""

    given: DecisionInput
    memory: Memory
    _problem: Problem | None = None

    def __call__(
        self, count: int, candidates: Collection[str], gone: Collection[str]
    ) -> Collection[str]:
        """Choose exactly; ties: fewest trainers, then nodes whose pilots end soonest."""
        if count == len(candidates):
            return candidates
        if self._problem is None:
            self._problem = problem_of.of_held(self.given, self.memory)
        problem = self._problem
        if gone:
            problem = replace(problem, trainers=without(problem.trainers, set(gone)))
        return choose_victims(problem, count, candidates=candidates).nodes
