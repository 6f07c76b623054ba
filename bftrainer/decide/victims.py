"""Which of our nodes go: as few as the demands lack, the cheapest of those.

Takes the demands of jobs that can start, what is free and what our nodes are to the
trainers; returns who gets which nodes. Called by ``giveback``. What a node costs its
trainer depends on which others go, so that choice is ``milp.victims``' and exact for as
long as every choice of so many nodes meets the demands. Where one does not, because jobs
want different nodes, what it does meet is kept and the rest is chosen again: then still
the fewest nodes go, and the cheapest of each choice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from bftrainer.decide.curves import problem_trainer
from bftrainer.decide.feasible import Placed
from bftrainer.decide.matching import Demand, Matching
from bftrainer.decide.nodesets import NodeSet, NodeSets, first
from bftrainer.decide.remaining import forward_time_s
from bftrainer.decide.types import DecisionInput, Memory
from bftrainer.poll.snapshot import Job
from milp.problem import Problem, ProblemNode, ProblemTrainer
from milp.victims import choose_victims


class Pick(Protocol):
    """Chooses so many of the candidates, cheapest for the trainers."""

    def __call__(
        self, count: int, candidates: Collection[str], gone: Collection[str]
    ) -> Collection[str]:
        """``gone``: nodes of trainers that are given up already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the demands may be met with, in this order."""

    free: NodeSet  # nobody has to give them back
    at_no_cost: Sequence[NodeSet]  # ours, and no trainer loses anything by them
    of_trainers: NodeSet


def give(
    placed: Sequence[Placed], sets: NodeSets, offer: Offer, pick: Pick
) -> list[tuple[Job, NodeSet]]:
    """Return for each demand, in its order, the nodes that meet it."""
    matching = Matching(offer.free)
    lacking: dict[NodeSet, int] = {}
    for one in placed:
        lacking[one.demand.among] = lacking.get(one.demand.among, 0) + one.demand.count
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
        lacking[among] = count - matching.add_up_to(Demand(among, count))
        if not lacking[among]:
            del lacking[among]


def _names(sets: NodeSets, some: NodeSet) -> list[str]:
    return [node.name for node in sets.members(some)]


def _shared_out(
    placed: Sequence[Placed], has: Mapping[NodeSet, NodeSet], offer: Offer
) -> list[tuple[Job, NodeSet]]:
    """Split what each set of demands has among its jobs: the first get what is free."""
    left = dict(has)
    shares: list[tuple[Job, NodeSet]] = []
    for one in placed:
        among, missing, share = one.demand.among, one.demand.count, 0
        for tier in (offer.free, *offer.at_no_cost, offer.of_trainers):
            share |= first(left[among] & tier, missing - share.bit_count())
        left[among] &= ~share
        shares.append((one.job, share))
    return shares


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
            problem = replace(
                problem,
                trainers=tuple(_without(trainer, set(gone)) for trainer in problem.trainers),
            )
        return choose_victims(problem, count, candidates=candidates).nodes

    def _state(self) -> Problem:
        """State who has which nodes now; only nodes that are held count for a trainer."""
        given = self.given
        pilots = {p.node: p for p in given.pilots if p.is_held and not p.is_leaving}
        held: dict[str, list[str]] = {}
        for name in sorted(self.memory.assignment.keys() & pilots.keys()):
            held.setdefault(self.memory.assignment[name], []).append(name)
        nodes = [_node(p.node, p.end_s) for p in given.pilots]
        trainers = [
            problem_trainer(
                record,
                tuple(own),
                given.settings,
                tuple(name for name in own if given.training.get(name) == record.trainer_id),
            )
            for record in given.trainers
            if (own := held.get(record.trainer_id))
        ]
        return Problem(
            nodes=tuple(nodes),
            trainers=tuple(trainers),
            t_fwd_s=forward_time_s(given.settings.t_fwd_s, self.memory.joins),
            p_jmax=given.settings.p_jmax,
            objective=given.settings.objective,
        )


@lru_cache(maxsize=1 << 16)  # the same nodes, give-back after give-back
def _node(name: str, end_s: float | None) -> ProblemNode:
    # Which of two leaves sooner is all that is asked, so that when it ends does as well.
    return ProblemNode(name=name, expected_remaining_s=end_s)


def _without(trainer: ProblemTrainer, gone: set[str]) -> ProblemTrainer:
    if gone.isdisjoint(trainer.current):
        return trainer
    return replace(trainer, current=tuple(name for name in trainer.current if name not in gone))
