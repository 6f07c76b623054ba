"""Which of our nodes go: as few as are asked for, the cheapest of those.

Takes the demands of jobs that can start, what is free and what our nodes are to the
trainers; returns who gets which nodes. Called by ``giveback``; ``Draft.cheapest`` is the same
rule for the reserve and for a daemon that backs off. What a node costs its trainer depends on
which others go, so that choice is ``milp.victims``' and exact for as long as every choice of so
many nodes meets the demands. Where one does not, because jobs want different nodes, what it
does meet is kept and the rest is chosen again: then still the fewest nodes go, and the
cheapest of each choice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bftrainer.decide.feasible import Placed
from bftrainer.decide.stating import nodes_by_trainer, problem_node, problem_trainer
from bftrainer.model.cluster import Job
from bftrainer.model.decision import DecisionInput, Memory
from bftrainer.queue.matching import Matching
from bftrainer.queue.nodesets import NodeSet, NodeSets, first
from milp.problem import Problem
from milp.slow import without
from milp.victims import choose_victims


class Pick(Protocol):
    """Chooses so many of the candidates, cheapest for the trainers."""

    def __call__(
        self, count: int, candidates: Collection[str], gone: Collection[str]
    ) -> Collection[str]:
        """``gone``: nodes of trainers that are given up already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimPool:
    """What the demands may be met with, in this order."""

    free: NodeSet  # nobody has to give them back
    at_no_cost: Sequence[NodeSet]  # ours, and no trainer loses anything by them
    of_trainers: NodeSet


def give(
    placed: Sequence[Placed], sets: NodeSets, offer: VictimPool, pick: Pick
) -> list[tuple[Job, NodeSet]]:
    """Return for each demand, in its order, the nodes that meet it."""
    matching = Matching(offer.free)
    lacking: dict[NodeSet, int] = {}
    for _, demand in placed:
        lacking[demand.among] = lacking.get(demand.among, 0) + demand.count
    _meet(matching, lacking)
    for tier in offer.at_no_cost:
        if lacking:
            matching.offer(tier)
            _meet(matching, lacking)
    left, gone = offer.of_trainers, 0
    while lacking:
        candidates = matching.reachable(lacking) & left
        names = pick(sum(lacking.values()), _names(sets, candidates), _names(sets, gone))
        chosen = sets.named(names)
        matching.offer(chosen)
        _meet(matching, lacking)
        left &= ~chosen  # of no help now is of no help later
        gone |= chosen & ~matching.unused
        matching.unused &= ~chosen
    return _shared_out(placed, matching.has, offer)


def _meet(matching: Matching, lacking: dict[NodeSet, int]) -> None:
    for among, count in list(lacking.items()):
        lacking[among] = count - matching.add_up_to(among, count)
        if not lacking[among]:
            del lacking[among]


def _names(sets: NodeSets, some: NodeSet) -> list[str]:
    return [node.name for node in sets.members(some)]


def _shared_out(
    placed: Sequence[Placed], has: Mapping[NodeSet, NodeSet], offer: VictimPool
) -> list[tuple[Job, NodeSet]]:
    """Split what each set of demands has among its jobs: the first get what is free."""
    left = dict(has)
    shares: list[tuple[Job, NodeSet]] = []
    for job, demand in placed:
        among, missing, share = demand.among, demand.count, 0
        for tier in (offer.free, *offer.at_no_cost, offer.of_trainers):
            share |= first(left[among] & tier, missing - share.bit_count())
        left[among] &= ~share
        shares.append((job, share))
    return shares


def tiers_of(is_held: Mapping[str, bool], assignment: Mapping[str, str]) -> list[list[str]]:
    """Sort nodes of ours by what they are to the trainers, who lose something by the last only.

    First those nobody has yet and nobody wants; last those that trainers have.

    Args:
        is_held: node -> whether a pilot is on it, of those that are ours.
        assignment: node -> trainer, as decided last.
    """
    tiers: list[list[str]] = [[], [], [], []]
    for name, is_there in is_held.items():
        tiers[2 * (name in assignment) + is_there].append(name)
    return tiers


def first_by_name(
    count: int,
    candidates: Collection[str],
    gone: Collection[str],  # noqa: ARG001 - as ``Pick`` has it
) -> Collection[str]:
    """``Pick`` when nothing can be said of the trainers."""
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
        """Choose exactly; equal costs: fewest trainers, those that leave soonest."""
        if count == len(candidates):
            return candidates
        if self._problem is None:
            self._problem = self._state()
        problem = self._problem
        if gone:
            problem = replace(problem, trainers=without(problem.trainers, set(gone)))
        return choose_victims(problem, count, candidates=candidates).nodes

    def _state(self) -> Problem:
        """State who has which nodes now; only nodes that are held count for a trainer."""
        given, settings = self.given, self.given.settings
        held = {p.node for p in given.pilots if p.is_held and not p.is_leaving}
        own_of = nodes_by_trainer(self.memory.assignment, held)
        return Problem(
            # Which of two leaves sooner is all that is asked, so that when it ends does as well.
            nodes=tuple([problem_node(p.node, remaining_s=p.end_s) for p in given.pilots]),
            trainers=tuple(
                [
                    problem_trainer(
                        record,
                        own,
                        settings,
                        tuple(n for n in own if given.training.get(n) == record.trainer_id),
                    )
                    for record in given.trainers
                    if (own := own_of.get(record.trainer_id))
                ]
            ),
            t_fwd_s=settings.t_fwd_s,
            p_jmax=settings.p_jmax,
            objective=settings.objective,
        )
