"""Pending ordinary jobs → pilots to cancel now, before the scheduler has to preempt.

``feasible`` judges which jobs could start, ``chances`` remembers who could and did not,
``victims`` chooses the nodes; this module knows which nodes are free, coming back or ours.

Why: a job that only backfill can start waits one further whole backfill interval
when backfill must preempt for it (+30.0 s in 5 of 5 runs measured on Slurm 22.05
with bf_interval=30), and not at all when the nodes are free by then. A false
release costs one short pause; so when in doubt, give back. But such a job gains
nothing by nodes that are free long before the cycle that can start it: it gets them
``backfill_lead_s`` before that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from bftrainer.decide import turns
from bftrainer.decide.chances import Chances, cycle_passed
from bftrainer.decide.feasible import Verdict, judge
from bftrainer.decide.next_plan import replanned
from bftrainer.decide.nodesets import NodeSet, NodeSets, first
from bftrainer.decide.pool import FREE_STATES, LOST_STATES, taken_nodes
from bftrainer.decide.requests import Requests, Site, why_it_waits
from bftrainer.decide.shadow import Shadows
from bftrainer.decide.types import GaveBack, Memory, PilotView, Release, Settings
from bftrainer.decide.victims import Offer, Pick, give
from bftrainer.decide.waiting import in_order, next_cycle_s, pending_jobs, waits_for_nodes
from bftrainer.poll.announcer import is_stand_in
from bftrainer.poll.snapshot import Job, NodeState, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """Pilots to cancel, and the memory of having done so."""

    releases: tuple[Release, ...]
    gave_back: Mapping[str, GaveBack]
    left_to_jobs: AbstractSet[str]  # free nodes on which a waiting job is about to start
    # Free or ours, for jobs that need no backfill -> since when they could have started.
    spoken_for: Mapping[str, float] = field(default_factory=dict)
    # Spoken for, and shortly before a cycle what it gives away: nobody's reserve.
    soon_taken: AbstractSet[str] = frozenset()
    verdicts: tuple[Verdict, ...] = ()  # of every pending ordinary job, in the queue's order


def give_back(
    snapshot: Snapshot,
    pilots: Sequence[PilotView],
    memory: Memory,
    settings: Settings,
    now_s: float,
    pick: Pick,
) -> GiveBack:
    """Choose the pilots in the way of ordinary jobs that could start now.

    Args:
        snapshot: complete.
        pilots: ours, not ended.
        memory: of the decision fold.
        settings: policy.
        now_s: batch system's clock.
        pick: chooses among the nodes of trainers.
    """
    pending = in_order(pending_jobs(snapshot), snapshot)
    if not pending:
        return GiveBack(releases=(), gave_back={}, left_to_jobs=frozenset())
    sets = NodeSets.of(snapshot.nodes or ())
    present = sets.bit_of.keys() - taken_nodes(snapshot) - _names_in(LOST_STATES, snapshot)
    idle = _names_in(FREE_STATES, snapshot)
    ours = _in_the_way(pilots, present, idle if snapshot.pilots_come_last else set())
    free = idle - ours.keys()
    to_have = free | coming_back(snapshot, pilots, memory)
    usable, free_now = to_have | ours.keys(), sets.named(free)
    cycle_at_s = next_cycle_s(snapshot, settings.cycle_s, now_s) or 0.0
    site = Site.of(snapshot, sets, sets.named(usable), now_s, cycle_at_s)
    requests = Requests(site)
    waiting = [j for j in pending if not why_it_waits(j, now_s, site.in_queue)]
    chances = Chances.of(memory.gave_back, waiting, snapshot, usable, settings, now_s)
    shadows = Shadows.of(snapshot, sets, now_s, settings.cycle_s)
    queue = replanned(turns.had_first(pending, requests, free_now), snapshot, requests)
    outcome = judge(queue, requests, sets.named(to_have), shadows, chances.had)
    offer = _offer(sets, to_have, ours, memory)
    shares = _believed(give(outcome.placed, sets, offer, pick), offer) if outcome.placed else []
    placed = {node.name for _, share in shares for node in sets.members(share)}
    remembered = chances.remembered
    spoken_for = _spoken_for(sets, shares, free_now, outcome.behind, remembered, now_s)
    not_yet, due_s = turns.served(waiting), turns.due_s(snapshot, settings, now_s)
    if due_s > now_s:  # their chance is a cycle that finds the nodes free
        chances.put_off(outcome.behind, due_s)
    if due_s > now_s or turns.is_overtaken(snapshot, pilots, cycle_at_s - now_s):
        not_yet |= outcome.behind
    return GiveBack(
        releases=tuple(_releases(sets, shares, not_yet, offer, ours)),
        gave_back=remembered,
        left_to_jobs=free & placed,
        spoken_for=spoken_for,
        soon_taken=placed if due_s <= now_s else spoken_for.keys(),
        verdicts=tuple(outcome.verdicts),
    )


def _believed(shares: Sequence[tuple[Job, NodeSet]], offer: Offer) -> list[tuple[Job, NodeSet]]:
    """Leave an announced job one node, free if there is one: perhaps nobody accepts it.

    The others follow by the look that shows it, a moment later.
    """
    tiers = (offer.free, *offer.at_no_cost, offer.of_trainers)
    return [
        (job, next((first(share & t, 1) for t in tiers if share & t), 0))
        if is_stand_in(job.job_id)
        else (job, share)
        for job, share in shares
    ]


def _spoken_for(
    sets: NodeSets,
    shares: Sequence[tuple[Job, NodeSet]],
    free: NodeSet,
    behind: AbstractSet[str],
    remembered: Mapping[str, GaveBack],
    now_s: float,
) -> dict[str, float]:
    """Return the nodes of jobs that the main scheduler starts, and since when it could.

    A large job whose last nodes are still being left has not been passed over.
    """
    return {
        node.name: now_s if share & ~free else remembered[job.job_id].at_s
        for job, share in shares
        if job.job_id not in behind
        for node in sets.members(share)
    }


def _in_the_way(
    pilots: Sequence[PilotView], present: AbstractSet[str], idle: AbstractSet[str]
) -> dict[str, PilotView]:
    """Return the pilots whose node a job could have; one that waits for ``idle`` is in no way."""
    return {
        p.node: p
        for p in pilots
        if p.node in present and not p.is_leaving and (p.is_held or p.node not in idle)
    }


def _offer(
    sets: NodeSets, free: AbstractSet[str], ours: Mapping[str, PilotView], memory: Memory
) -> Offer:
    """Sort our nodes by what they are to the trainers."""
    # First those nobody has yet and nobody wants; last those that trainers have.
    tiers: list[list[str]] = [[], [], [], []]
    for name, pilot in ours.items():
        tiers[2 * (name in memory.assignment) + pilot.is_held].append(name)
    *at_no_cost, of_trainers = [sets.named(names) for names in tiers]
    return Offer(free=sets.named(free), at_no_cost=at_no_cost, of_trainers=of_trainers)


def _releases(
    sets: NodeSets,
    shares: Sequence[tuple[Job, NodeSet]],
    not_yet: AbstractSet[str],
    offer: Offer,
    ours: Mapping[str, PilotView],
) -> Iterator[Release]:
    """Release what is ours of what jobs get now, the cheapest first."""
    for job, share in shares:
        tiers = () if job.job_id in not_yet else (*offer.at_no_cost, offer.of_trainers)
        for tier in tiers:
            for node in sets.members(share & tier):
                yield Release(
                    pilot_id=ours[node.name].pilot_id,
                    node=node.name,
                    reason=f"Ordinary job {job.job_id} could start here.",
                    for_job=job.job_id,
                )


def still_held_off(
    held_off: Mapping[str, float], snapshot: Snapshot, settings: Settings
) -> dict[str, float]:
    """Drop nodes for which a whole scheduler cycle has passed since the give-back."""
    if not waits_for_nodes(snapshot):
        return {}  # nobody waits: there is no one to keep them free for
    more_s = (settings.hold_off_cycles - 1.0) * settings.cycle_s  # of a daemon that backs off
    return {
        node: since
        for node, since in held_off.items()
        if not cycle_passed(since + more_s, snapshot, settings)
    }


def coming_back(snapshot: Snapshot, pilots: Sequence[PilotView], memory: Memory) -> set[str]:
    """Return the nodes we gave back that nobody has taken yet, whatever their state shows."""
    given_back = {p.node for p in pilots if p.is_leaving} | set(memory.held_off)
    kept = {p.node for p in pilots if not p.is_leaving}
    shown = {node.name for node in snapshot.nodes or ()} - _names_in(LOST_STATES, snapshot)
    return (given_back & shown) - taken_nodes(snapshot) - kept


def _names_in(states: Collection[NodeState], snapshot: Snapshot) -> set[str]:
    return {node.name for node in snapshot.nodes or () if node.state in states}
