"""A plan under construction, passed from stage to stage of a decision. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from bftrainer.decide.policies.base import AllocationPolicy, Decided
from bftrainer.decide.queue.backfill import BackfillPlan
from bftrainer.decide.queue.models import QueueModel
from bftrainer.decide.victims import Pick
from bftrainer.model.decision import Claim, DecisionInput, Memory, Pool, Release


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
        released_ids = {release.pilot_id for release in self.releases}
        new_releases = tuple(release for release in more if release.pilot_id not in released_ids)
        if not new_releases:
            return self
        memory = self.memory
        if is_held_off:
            off = dict.fromkeys([release.node for release in new_releases], self.given.now_s)
            memory = replace(memory, held_off={**memory.held_off, **off})
        return replace(self, memory=memory, releases=(*self.releases, *new_releases))
