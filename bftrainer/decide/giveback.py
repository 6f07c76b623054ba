"""Chooses pilots to cancel for pending ordinary jobs, before the scheduler has to preempt them.

``feasible`` judges which jobs could start, ``skipped_jobs`` remembers jobs that could have and
did not, ``victims`` chooses the nodes; the census tells which are free, coming back or ours.

The reason: a job for which the scheduler must preempt may wait a whole cycle longer
(docs/design/give-back.md); it does not wait if the nodes are free in time. A wrong release costs
one short pause. So when in doubt, release, and at once: the time of the next scheduler pass
cannot be predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from bftrainer.batch.announcer import is_stand_in
from bftrainer.decide import skipped_jobs
from bftrainer.decide.cycles import have_passed
from bftrainer.decide.draft import Draft
from bftrainer.decide.feasible import Feasibility
from bftrainer.decide.victims import VictimPool, give, tiers_of
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Job
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Release
from bftrainer.model.node_sets import NodeSet, NodeSets, first


def stage(draft: Draft) -> Draft:
    """Release the pilots whose nodes ordinary jobs could use, and hold those nodes off."""
    if not draft.queue.jobs:
        return draft
    given, memory, sets = draft.given, draft.memory, draft.queue.sets
    census = census_of(given.snapshot)
    ours = census.in_the_way(given.pilots)
    free = census.free - ours.keys()
    to_have = free | census.coming_back(given.pilots, memory.held_off)
    others = census.of_others(given.pilots)
    usable = sets.named(to_have | ours.keys() | others)
    judged = Feasibility(draft.queue, usable, sets.named(to_have)).of_all(
        partial(skipped_jobs.why_refused, known=memory.vain)
    )
    offer = replace(_offer(sets, to_have, ours, memory), of_others=sets.named(others))
    shares = give(judged.placed, sets, offer, draft.pick) if judged.placed else []
    served = _served(judged.starts, shares, sets, sets.named(free))
    shares = _believed(shares, offer)
    # Nodes free or coming back on which a job is about to start: held off like released ones.
    left = {node.name for _, share in shares for node in sets.members(share & offer.free)}
    held_off = dict.fromkeys(left, given.now_s) | dict(memory.held_off)
    memory = replace(
        memory, held_off=held_off, vain=skipped_jobs.serve(memory.vain, served, given.now_s)
    )
    releases = list(_releases(sets, shares, offer, ours)) if given.settings.gives_back else []
    for_jobs = left | {release.node for release in releases}
    draft = replace(draft, memory=memory, for_jobs=for_jobs, refused=judged.refused)
    draft = replace(draft, next_plan=judged.plan)
    return draft.releasing(releases, is_held_off=True)


def _served(
    starts: Sequence[Job], shares: Sequence[tuple[Job, NodeSet]], sets: NodeSets, free: NodeSet
) -> Iterator[skipped_jobs.Served]:
    """Return the startable jobs with their nodes; None where some are not free yet."""
    has = {job.job_id: 0 for job in starts}
    for job, share in shares:
        has[job.job_id] |= share
    for job in starts:
        nodes = has[job.job_id]
        names = tuple([node.name for node in sets.members(nodes)])
        yield job, None if nodes & ~free else names


def _believed(
    shares: Sequence[tuple[Job, NodeSet]], offer: VictimPool
) -> list[tuple[Job, NodeSet]]:
    """Limit an announced job to one node, a free one if possible: it may still be refused.

    The other nodes follow after the poll that shows it, a moment later.
    """
    tiers = (offer.free, *offer.at_no_cost, offer.of_trainers)
    return [
        (job, next((first(share & t, 1) for t in tiers if share & t), 0))
        if is_stand_in(job.job_id)
        else (job, share)
        for job, share in shares
    ]


def _offer(
    sets: NodeSets, free: AbstractSet[str], ours: Mapping[str, PilotView], memory: Memory
) -> VictimPool:
    """Sort our nodes by what they are worth to the trainers."""
    tiers = tiers_of({name: pilot.is_held for name, pilot in ours.items()}, memory.assignment)
    *at_no_cost, of_trainers = [sets.named(names) for names in tiers]
    return VictimPool(free=sets.named(free), at_no_cost=at_no_cost, of_trainers=of_trainers)


def _releases(
    sets: NodeSets,
    shares: Sequence[tuple[Job, NodeSet]],
    offer: VictimPool,
    ours: Mapping[str, PilotView],
) -> Iterator[Release]:
    """Release our nodes among those that jobs get now, the cheapest first."""
    for job, share in shares:
        for tier in (*offer.at_no_cost, offer.of_trainers):
            for node in sets.members(share & tier):
                yield Release(
                    pilot_id=ours[node.name].pilot_id,
                    node=node.name,
                    reason=f"Ordinary job {job.job_id} could start here.",
                    for_job=job.job_id,
                )


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Update which nodes are held off for jobs.

    The time counts from when the node was free. It ends when a job has the node, when no job
    waits any more, or after a whole scheduler cycle.
    """
    if not memory.held_off:
        return memory
    snapshot, settings = given.snapshot, given.settings
    census = census_of(snapshot)
    if not census.has_startable_jobs:
        return replace(memory, held_off={})  # no job to keep them free for
    more_s = (settings.hold_off_cycles - 1.0) * settings.cycle_s  # while backing off
    leaving = {pilot.node for pilot in given.pilots if pilot.is_leaving} | census.completing
    since_s = {
        node: given.now_s if node in leaving else at_s
        for node, at_s in memory.held_off.items()
        if node not in census.taken
    }
    held_off = {
        node: at_s
        for node, at_s in since_s.items()
        if not have_passed(1, at_s + more_s, memory, snapshot, settings)
    }
    return replace(memory, held_off=held_off)
