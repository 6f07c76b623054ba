"""Chooses pilots to cancel for pending ordinary jobs, before the scheduler has to preempt them.

``feasible`` judges which jobs could start, ``skipped_jobs`` remembers jobs that could have and
did not, ``victims`` chooses the nodes; the census tells which are free, coming back or ours. Where
GPUs are lent one by one, ``giveback_parts`` does what ``feasible`` and ``victims`` do.

The reason: a job for which the scheduler must preempt may wait a whole cycle longer
(docs/design/give-back.md); it does not wait if the nodes are free in time. A wrong release costs
one short pause. So when in doubt, release, and at once: the time of the next scheduler pass
cannot be predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from bftrainer.decide import giveback_parts, skipped_jobs
from bftrainer.decide.draft import Draft
from bftrainer.decide.feasible import Feasibility
from bftrainer.decide.host_rooms import LentPart
from bftrainer.decide.victims import VictimPool, give
from bftrainer.model.cluster import Job
from bftrainer.model.decision import PilotView, Release
from bftrainer.model.node_sets import NodeSet, NodeSets, first


def stage(draft: Draft) -> Draft:
    """Release the pilots whose nodes ordinary jobs could use, and hold those nodes off."""
    given, census, memory, sets = draft.given, draft.census, draft.memory, draft.queue.sets
    given_back = census.leaving | memory.held_off.keys()
    coming_back = (given_back & census.unoccupied) - census.ours.keys()
    draft = replace(draft, coming_back=coming_back)
    if not draft.queue.jobs:
        return draft
    if draft.hosts is not census:
        return _of_parts(draft)
    ours, free = census.in_the_way, census.free - census.in_the_way.keys()
    to_have = free | coming_back
    usable_nodes = sets.named(to_have | ours.keys() | census.of_others)
    refusals = skipped_jobs.refusals(memory.vain)
    judged = Feasibility(
        draft.queue,
        draft.queue.next_plan(usable_nodes),
        usable=usable_nodes,
        free=sets.named(to_have),
        refusals=refusals,
    ).of_all()
    offer = VictimPool.of(sets, to_have, ours.values(), census.of_others, memory.assignment)
    shares: list[tuple[Job, NodeSet]] = []
    if judged.placed:
        shares = give(judged.placed, sets, offer, draft.pick)
    served = _served(judged.starts, shares, sets, sets.named(free))
    shares = _believed(shares, offer)
    # Nodes free or coming back on which a job is about to start: held off like released ones.
    for_jobs = set[str]()
    for _, share in shares:
        for_jobs.update(sets.names(share & offer.free))
    releases: list[Release] = []
    if given.settings.gives_back:
        releases = list(_releases(sets, shares, offer, ours))
    draft = replace(draft, refused=judged.refused, planned_starts=judged.plan.planned_starts)
    return _given_back(draft, for_jobs, releases, served)


def _of_parts(draft: Draft) -> Draft:
    """Do the same where hosts are shown by their parts."""
    verdict, plan = giveback_parts.judge(draft, skipped_jobs.refusals(draft.memory.vain))
    for_jobs = set[str]()
    releases: list[Release] = []
    served: list[skipped_jobs.Served] = []
    for job in verdict.starts:
        names = verdict.held_off[job.job_id]
        for_jobs.update(names)
        is_free_already = draft.coming_back.isdisjoint(names)
        for choice in verdict.choices[job.job_id]:
            is_free_already = is_free_already and not choice.released
            if draft.given.settings.gives_back:
                releases += _parts_released(choice.released, job)
        served.append((job, tuple(names) if is_free_already else None))
    draft = replace(draft, refused=verdict.refused, planned_starts=plan.planned_starts)
    return _given_back(draft, for_jobs, releases, served)


def _given_back(
    draft: Draft,
    for_jobs: set[str],
    releases: Sequence[Release],
    served: Iterable[skipped_jobs.Served],
) -> Draft:
    """Return the draft with what jobs get: nodes held off for them, and pilots released.

    Args:
        draft: so far.
        for_jobs: nodes, free or coming back, on which a job is about to start.
        releases: of pilots, for jobs.
        served: the startable jobs with their nodes.
    """
    now_s, memory = draft.given.now_s, draft.memory
    released_nodes = {release.node for release in releases}
    memory = replace(
        memory,
        held_off=dict.fromkeys(for_jobs, now_s) | dict(memory.held_off),
        vain=skipped_jobs.serve(memory.vain, served, now_s),
    )
    draft = replace(draft, memory=memory, for_jobs=for_jobs | released_nodes)
    if not releases:
        return draft
    return draft.releasing(releases, is_held_off=True)


def _parts_released(parts: Iterable[LentPart], job: Job) -> Iterator[Release]:
    """Release parts of ours; those of other daemons are theirs to release."""
    for lent in parts:
        if lent.pilot_id:
            yield Release(
                pilot_id=lent.pilot_id,
                node=lent.part.name,
                reason=f"Ordinary job {job.job_id} could start here.",
                for_job=job.job_id,
            )


def _served(
    starts: Sequence[Job], shares: Sequence[tuple[Job, NodeSet]], sets: NodeSets, free: NodeSet
) -> list[skipped_jobs.Served]:
    """Return the startable jobs with their nodes; None where some are not free yet."""
    nodes_of_job: dict[str, NodeSet] = {}
    for job, share in shares:
        nodes_of_job[job.job_id] = nodes_of_job.get(job.job_id, 0) | share
    served: list[skipped_jobs.Served] = []
    for job in starts:
        nodes = nodes_of_job.get(job.job_id, 0)
        names: tuple[str, ...] | None = None
        if not nodes & ~free:
            names = tuple(sets.names(nodes))
        served.append((job, names))
    return served


def _believed(
    shares: Sequence[tuple[Job, NodeSet]], offer: VictimPool
) -> list[tuple[Job, NodeSet]]:
    """Limit an announced job to one node, a free one if possible: it may still be refused.

    The other nodes follow after the poll that shows it, a moment later.
    """
    tiers = (offer.free, *offer.at_no_cost, offer.of_trainers)
    believed: list[tuple[Job, NodeSet]] = []
    for job, share in shares:
        nodes = share
        if job.is_announced:
            nodes = 0
            for tier in tiers:
                nodes = nodes or first(share & tier, 1)
        believed.append((job, nodes))
    return believed


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
