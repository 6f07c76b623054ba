"""A plan under construction, passed from stage to stage of a decision. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from bftrainer.decide.policies.base import AllocationPolicy, Decided
from bftrainer.decide.queue.models import QueueModel
from bftrainer.decide.victims import Pick
from bftrainer.model.census import NodeCensus
from bftrainer.model.cluster import PART_MARK
from bftrainer.model.decision import Claim, DecisionInput, Memory, Pool, Release
from bftrainer.model.node_sets import NodeSet
from bftrainer.model.queue import GapEnd

MANY: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The decision so far; every stage returns a new draft."""

    given: DecisionInput  # with parts for hosts whose GPUs are lent one by one (``division``)
    census: NodeCensus  # of the given snapshot and pilots
    hosts: NodeCensus  # of the snapshot as the batch system shows it; often the same object
    queue: QueueModel  # of the hosts
    memory: Memory  # including what this decision observed and decided
    pick: Pick  # chooses victims among the nodes of trainers
    policy: AllocationPolicy | None  # None: every trainer keeps its nodes
    end_cost_s: float = 0.0  # how long a node is not usable after its pilot, typically; 0: unknown
    coming_back: AbstractSet[str] = frozenset()  # given back, and nothing occupies them yet
    for_jobs: AbstractSet[str] = frozenset()  # nodes on which pending jobs are about to start
    planned_starts: Sequence[tuple[GapEnd, NodeSet]] = ()  # next, of the jobs that cannot start
    refused: Mapping[str, str] = field(default_factory=dict)  # job without nodes -> why
    releases: tuple[Release, ...] = ()
    pool: Pool = field(default_factory=Pool)  # without the nodes of released pilots
    decided: Decided | None = None  # the policy's answer
    assignment: Mapping[str, str] = field(default_factory=dict)  # node -> trainer
    swaps: Mapping[str, str] = field(default_factory=dict)  # node of another user -> trainer
    claims: tuple[Claim, ...] = ()
    wakes_s: tuple[float, ...] = ()  # when the next decision is due if nothing happens before

    def releasing(self, more: Iterable[Release], *, is_held_off: bool) -> Draft:
        """Release further pilots, each once; ``is_held_off``: hold their nodes off."""
        releases = list(self.releases)
        released_ids = {release.pilot_id for release in releases}
        held_off = dict(self.memory.held_off)
        for release in more:
            if release.pilot_id in released_ids:
                continue
            releases.append(release)
            if is_held_off:
                names = (release.node, *self._further_names(release.node, held_off))
                held_off.update(dict.fromkeys(names, self.given.now_s))
        if len(releases) == len(self.releases):
            return self
        memory = self.memory
        if is_held_off:
            memory = replace(memory, held_off=held_off)
        return replace(self, memory=memory, releases=tuple(releases))

    def _further_names(self, name: str, in_use: Iterable[str]) -> list[str]:
        """Return names for the second and further GPUs of a part: a name stands for one GPU."""
        part = self.census.parts.get(name)
        if part is None or part.name == part.node or part.gpus < MANY:
            return []
        numbers = [0]
        for part_name in (*self.census.by_name, *in_use):
            host, _, number = part_name.partition(PART_MARK)
            if host == part.node and number:
                numbers.append(int(number))
        first = max(numbers) + 1
        return [f"{part.node}{PART_MARK}{first + k}" for k in range(part.gpus - 1)]
