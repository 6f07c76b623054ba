"""The time that the end and the start of a pilot take on this site, as snapshots show it.

A node is usable again when its pilot's job has left the queue and its Epilog has ended. The
measured time counts as lead before planned starts (``applied``). Where it exceeds the site's
promise, no release is in time: then one more node of each type stays free, and nodes on which a
pending job could start are not taken (``leave_to_jobs``). ``observe`` is an estimator of the
fold (``observation``), ``asked`` records what a decision releases. docs/design/give-back.md has the
reasons. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from statistics import median

from bftrainer.decide.queue.models import QueueModel
from bftrainer.model.cluster import Job, JobState, NodeState, Snapshot, node_of
from bftrainer.model.decision import (
    DecisionInput,
    Ending,
    Ends,
    Memory,
    PilotView,
    Pool,
    Release,
    Settings,
    Slept,
)
from bftrainer.model.node_sets import NodeSet, NodeSets
from bftrainer.model.queue import NodeDemand
from bftrainer.model.site import Measured

REMEMBERED = 15  # ends, and starts
LEAST_S = 5.0  # a busy node's agent takes as long: no Epilog
MOST_S = 900.0  # longer ends hung and are not typical
_BUSY = (NodeState.COMPLETING, NodeState.DOWN)  # adapters report slow completing as down
_BACK = (NodeState.IDLE, NodeState.PLANNED, NodeState.ALLOCATED)


def end_cost_s(memory: Memory) -> float:
    """Return the typical time until a node is usable again in seconds; 0: none or unknown."""
    cost_s = median(memory.ends.took_s or (0.0,))
    if cost_s >= LEAST_S:
        return cost_s
    return 0.0


def measured(memory: Memory, settings: Settings) -> Measured:
    """Return the figures for users."""
    ends = memory.ends
    return Measured(
        end_s=end_cost_s(memory) if ends.took_s else None,
        start_s=median(ends.joined_s) if ends.joined_s else None,
        promise_s=settings.harm_slo_s,
        max_nodes=settings.max_nodes,
    )


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Learn from pilots that end and pilots that start."""
    before, snapshot = memory.ends, given.snapshot
    ours = {job.pilot_id: job for job in snapshot.jobs or () if job.pilot_id is not None}
    joining, joined_s = _joining(before, given, ours)
    # Some are ended by the batch system itself; count from now. What takes a node that cannot be
    # reached says nothing of the others.
    silent = set[str]()
    ending: dict[str, Ending] = {}
    for pilot in given.pilots:
        if pilot.is_silent:
            silent.add(pilot.pilot_id)
        if pilot.is_leaving and pilot.end_s is not None:
            ending[pilot.node] = Ending(pilot_id=pilot.pilot_id, asked_s=given.now_s)
    ending |= before.ending
    for node, end in list(ending.items()):
        if end.pilot_id in silent:
            del ending[node]
    took_s = list[float]()
    if given.is_new_snapshot and snapshot.jobs is not None and snapshot.nodes is not None:
        ending, took_s = _ending(ending, snapshot, ours, given.slept)
    ends = Ends(
        ending=ending,
        took_s=(*before.took_s, *took_s)[-REMEMBERED:],
        joining=joining,
        joined_s=(*before.joined_s, *joined_s)[-REMEMBERED:],
    )
    if ends == before:
        return memory
    return replace(memory, ends=ends)


def _ending(
    endings: Mapping[str, Ending], snapshot: Snapshot, ours: Mapping[str, Job], slept: Slept
) -> tuple[dict[str, Ending], list[float]]:
    """Return which nodes are not usable yet, and what the others took, in seconds.

    A completing pilot proves nothing: the controller's epilog holds the job but not the node, and
    nodes are read before jobs.
    """
    ending, took_s, looked_s = dict[str, Ending](), list[float](), snapshot.taken_at_s
    states = {n.name: n.state for n in snapshot.nodes or () if n.name in endings}
    for node, end in sorted(endings.items()):  # independent of read order
        state, job = states.get(node), ours.get(end.pilot_id)
        if looked_s <= end.asked_s:
            ending[node] = end
        elif state in _BUSY or (job is not None and job.state is not JobState.COMPLETING):
            ending[node] = replace(end, busy_s=looked_s)
        elif job is not None:
            ending[node] = end
        elif state in _BACK and end.asked_s >= slept.until_s:
            # A lower bound; with rare polls the best there is.
            end_s = 0.0
            if end.busy_s is not None:
                end_s = end.busy_s - end.asked_s
            if end_s <= MOST_S:
                took_s.append(end_s)
    return ending, took_s


def _joining(
    before: Ends, given: DecisionInput, ours: Mapping[str, Job]
) -> tuple[dict[str, float | None], list[float]]:
    """Return which pilots have no agent or no start yet, and what the others took, in seconds."""
    joining, joined_s = dict[str, float | None](), list[float]()
    for pilot in given.pilots:
        if (
            pilot.is_leaving
            or pilot.is_silent
            or (pilot.is_held and pilot.pilot_id not in before.joining)
        ):
            continue
        came_s = before.joining.get(pilot.pilot_id)
        if came_s is None and pilot.is_held:
            came_s = given.now_s
        job = ours.get(pilot.pilot_id)
        start_s = job.start_s if job is not None and job.state is JobState.RUNNING else None
        if came_s is None or start_s is None:
            joining[pilot.pilot_id] = came_s
        elif start_s >= given.slept.until_s:  # the batch system reports whole seconds
            joined_s.append(max(0.0, came_s - start_s))
    return joining, joined_s


def _has_begun(pilot: PilotView) -> bool:
    return (pilot.is_held or pilot.end_s is not None) and not pilot.is_silent


def asked(memory: Memory, releases: Sequence[Release], given: DecisionInput) -> Memory:
    """Record which started pilots are asked to leave now."""
    released_ids = {release.pilot_id for release in releases}
    begun = {p.pilot_id for p in given.pilots if p.pilot_id in released_ids and _has_begun(p)}
    new_endings: dict[str, Ending] = {}
    for release in releases:
        if release.pilot_id in begun:
            ending = Ending(pilot_id=release.pilot_id, asked_s=given.now_s)
            new_endings[release.node] = ending
    if not new_endings:
        return memory
    ends = replace(memory.ends, ending={**memory.ends.ending, **new_endings})
    return replace(memory, ends=ends)


def applied(settings: Settings, cost_s: float) -> Settings:
    """Return the settings of a decision with the lead that pilot ends need (``end_cost_s``)."""
    if cost_s:
        return _with_lead(settings, cost_s)
    return settings


@lru_cache(maxsize=16)  # the same object while nothing changes: other caches go by identity
def _with_lead(settings: Settings, cost_s: float) -> Settings:
    # Refilling the reserve takes as long; the extra node covers that time.
    extra = settings.reserve_extra_nodes + (cost_s > settings.harm_slo_s)
    margin_s = settings.gap_margin_s + cost_s
    return replace(settings, gap_margin_s=margin_s, reserve_extra_nodes=extra)


def leave_to_jobs(pool: Pool, queue: QueueModel, cost_s: float) -> Pool:
    """Remove nodes on which pending jobs could start: ends of pilots break the promise.

    Jobs with a planned start are covered by that plan (``QueueModel.gap_ends``) and the lead.

    Args:
        pool: of this decision.
        queue: of the same snapshot.
        cost_s: that ends of pilots take.
    """
    names = {n.name for n in pool.nodes if not n.pilot_id}
    if not names:
        return pool
    why, judged_ways = dict[str, str](), set[object]()
    for job in queue.jobs:
        if job.start_s is not None and job.start_s > queue.now_s:
            continue
        ways = queue.requests.of(job).ways
        if ways in judged_ways:
            continue
        judged_ways.add(ways)
        hosts = _named(ways, queue.sets)
        for name in names:
            if node_of(name) in hosts:
                why[name] = (
                    f"Job {job.job_id} may start on it, and a node comes back only {cost_s:.0f} s"
                    " after its pilot (docs/howto/slurm-site.md)."
                )
    return pool.without(why)


def _named(ways: Iterable[Iterable[NodeDemand]], sets: NodeSets) -> set[str]:
    """Return the names of the nodes that any way asks for."""
    among: NodeSet = 0
    for demand in chain.from_iterable(ways):
        among |= demand.among
    return set(sets.names(among))
