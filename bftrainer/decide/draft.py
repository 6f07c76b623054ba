"""A plan under construction, passed from stage to stage of a decision. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from bftrainer.decide.end_cost import leave_to_jobs
from bftrainer.decide.policies.base import AllocationPolicy, Decided
from bftrainer.decide.pool import Pool, build_pool, gap_end
from bftrainer.decide.queue.backfill import BackfillPlan
from bftrainer.decide.queue.models import QueueModel
from bftrainer.decide.victims import Pick, tiers_of
from bftrainer.model.decision import Claim, DecisionInput, Memory, PoolNode, Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The decision so far; every stage returns a new draft."""

    given: DecisionInput
    queue: QueueModel  # of the given snapshot
    memory: Memory  # including what this decision observed and decided
    pick: Pick  # chooses victims among the nodes of trainers
    policy: AllocationPolicy | None  # None: every trainer keeps its nodes
    for_jobs: AbstractSet[str] = frozenset()  # nodes on which pending jobs are about to start
    next_plan: BackfillPlan | None = None  # of the jobs that cannot start; None: no job is pending
    refused: Mapping[str, str] = field(default_factory=dict)  # job without nodes -> why
    releases: tuple[Release, ...] = ()
    pool: Pool = field(default_factory=Pool)  # without the nodes of released pilots
    decided: Decided | None = None  # the policy's answer
    assignment: Mapping[str, str] = field(default_factory=dict)  # node -> trainer
    swaps: Mapping[str, str] = field(default_factory=dict)  # node of another user -> trainer
    claims: tuple[Claim, ...] = ()

    def releasing(self, more: Iterable[Release], *, is_held_off: bool) -> Draft:
        """Release further pilots, each once; ``is_held_off``: hold their nodes off."""
        gone = {release.pilot_id for release in self.releases}
        new = tuple(release for release in more if release.pilot_id not in gone)
        if not new:
            return self
        memory = self.memory
        if is_held_off:
            off = dict.fromkeys([release.node for release in new], self.given.now_s)
            memory = replace(memory, held_off={**memory.held_off, **off})
        return replace(self, memory=memory, releases=(*self.releases, *new))

    def cheapest(self, count: int, nodes: Sequence[PoolNode]) -> list[PoolNode]:
        """Choose up to ``count`` of our nodes, the cheapest for the trainers."""
        by_name = {node.name: node for node in nodes}
        is_held = {node.name: node.is_held for node in nodes}
        *at_no_cost, of_trainers = tiers_of(is_held, self.memory.assignment)
        chosen = [name for tier in at_no_cost for name in tier][:count]
        if missing := min(count - len(chosen), len(of_trainers)):
            gone = [release.node for release in self.releases]
            chosen += sorted(self.pick(missing, of_trainers, gone))
        return [by_name[name] for name in chosen]

    def with_pool(self) -> Draft:
        """Build the pool, counting the released pilots as leaving."""
        gone = {release.pilot_id for release in self.releases}
        pilots = tuple(
            replace(p, is_leaving=True) if p.pilot_id in gone else p for p in self.given.pilots
        )
        given, queue, plan = self.given, self.queue, self.next_plan
        planned = {} if plan is None else plan.ends
        pool = build_pool(
            given.snapshot,
            queue,
            planned,
            pilots,
            self.memory,
            given.settings,
            given.now_s,
            gap_end(given),
        )
        pool = leave_to_jobs(pool, queue, given, self.memory)
        cools = {  # without a pilot; ``allocating`` skips those with one
            node.name: given.cooling[node.name].sentence(given.now_s)
            for node in pool.nodes
            if node.name in given.cooling and not node.pilot_id
        }
        return replace(self, pool=pool.without(cools))
