"""Nodes shared with other daemons: who asks, who steps back, and whose nodes are the reserve. Pure.

Daemons that borrow the same nodes see each other's pilots in the queue, and nothing else of each
other. docs/adr/0047-two-borrowers.md states the rule. ``step_back`` is called by ``claims``,
``observe`` an estimator (``observation``). Without pilots of other daemons nothing here has an
effect.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bftrainer.decide.draft import Draft
from bftrainer.model.census import NodeCensus, once_per_look
from bftrainer.model.cluster import Job, JobState, node_of
from bftrainer.model.decision import Claim, DecisionInput, Memory, PilotView, Release

WAITED_FOR: Final = "A pilot of another daemon waits for it."
TAKEN: Final = "A pilot of another daemon has the node."
LATER: Final = "A pilot of another daemon was submitted for the node before."
SHARED: Final = "Another daemon waits for it and has no node, while this one has several."
SETTLED_S: Final = 5.0  # from a submission until it is known whether the pilot starts at once
LEAST_NODES: Final = 2  # a daemon with fewer gives none to another one

Order = tuple[float, int, str]
_TOKEN = re.compile(r"\S+\.[0-9a-f]{8}")  # pilots as their daemons name them (``pilot_job``)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedPilots:
    """The pilots in the queue, of all daemons, by how they stand to their nodes."""

    running: Mapping[str, Job] = field(default_factory=dict)  # by pilot
    # Those that wait for one node, by pilot, in the order of their submission.
    pending: Mapping[str, Job] = field(default_factory=dict)

    def without(self, ours: Iterable[str]) -> QueuedPilots:
        """Return those of other daemons."""
        ours = set(ours)
        return QueuedPilots(
            running={name: job for name, job in self.running.items() if name not in ours},
            pending={name: job for name, job in self.pending.items() if name not in ours},
        )


def order_of(job: Job) -> Order:
    """Return the order in which jobs were submitted, the same for all who see the queue."""
    submit_s = 0.0 if job.submit_s is None else job.submit_s
    return submit_s, len(job.job_id), job.job_id


@once_per_look
def queued_pilots(jobs: tuple[Job, ...]) -> QueuedPilots:
    """Return all pilots in the queue."""
    running: dict[str, Job] = {}
    pending: list[Job] = []
    for job in jobs:
        if job.pilot_id is None:
            continue
        if job.state is JobState.PENDING and len(job.required_nodes) == 1:
            pending.append(job)
        elif job.state is JobState.RUNNING:
            running[job.pilot_id] = job
    by_pilot = {job.pilot_id or "": job for job in sorted(pending, key=order_of)}
    return QueuedPilots(running=running, pending=by_pilot)


def others(census: NodeCensus, pilots: Iterable[PilotView]) -> QueuedPilots:
    """Return the pilots of other daemons that the snapshot shows; ``pilots`` are ours."""
    queued = queued_pilots(census.snapshot.jobs or ())
    if not (queued.running or queued.pending):
        return queued
    return queued.without(pilot.pilot_id for pilot in pilots)


def waited_for(census: NodeCensus, pilots: Iterable[PilotView]) -> frozenset[str]:
    """Return the nodes that a pilot of another daemon waits for.

    Nodes whose GPUs are lent one by one are not among them: pilots of both may have room there.
    """
    names = set[str]()
    for job in others(census, pilots).pending.values():
        names.update(job.required_nodes)
    return frozenset(name for name in names if _is_whole(census, name))


# ---- who steps back ------------------------------------------------------------------------


def step_back(draft: Draft) -> Draft:
    """Release the pilots that stand back behind those of other daemons."""
    theirs = others(draft.census, draft.given.pilots)
    if not (theirs.running or theirs.pending):
        return draft
    releases = [*_lost(draft, theirs), *_shared(draft, theirs)]
    if not releases:
        return draft
    return draft.releasing(releases, is_held_off=False)


def _lost(draft: Draft, theirs: QueuedPilots) -> Iterator[Release]:
    """Release our pending pilots whose node another daemon's pilot has, or waited for before.

    While we have no node at all, the first of them goes on waiting if its holder has nodes to
    share: it shows the holder that we are there.
    """
    census, given = draft.census, draft.given
    ours = queued_pilots(census.snapshot.jobs or ()).pending
    holders: dict[str, Job] = {}  # by node
    for job in theirs.running.values():
        holders.update(dict.fromkeys(job.nodes, job))
    firsts: dict[str, Job] = {}  # likewise
    for job in theirs.pending.values():
        firsts.setdefault(job.required_nodes[0], job)
    why_lost: dict[str, str] = {}  # by pilot
    waiting = {pilot.pilot_id: pilot for pilot in given.pilots if _waits(pilot)}
    for pilot_id, pilot in waiting.items():
        name, ours_job = pilot.node, ours.get(pilot_id)
        if pilot.part is not None or not _is_whole(census, name):
            continue
        if name in holders and name not in census.free:
            why_lost[pilot_id] = TAKEN
        elif name in firsts and ours_job and order_of(firsts[name]) < order_of(ours_job):
            why_lost[pilot_id] = LATER
    has_none = not any(map(_is_had, given.pilots)) and why_lost.keys() == waiting.keys()
    sizes = Counter(job.user for job in theirs.running.values())
    for pilot_id in sorted(why_lost, key=lambda name: _place(ours.get(name), name)):
        node, why = waiting[pilot_id].node, why_lost[pilot_id]
        if has_none and why == TAKEN and sizes[holders[node].user] >= LEAST_NODES:
            has_none = False  # this one waits on
            continue
        yield Release(pilot_id=pilot_id, node=node, reason=why)


def _shared(draft: Draft, theirs: QueuedPilots) -> Iterator[Release]:
    """Release a node for each other user whose daemon waits for it and has none.

    By users, not by daemons: nobody gets more nodes by more daemons, or by names of such.
    """
    census = draft.census
    released = {release.pilot_id for release in draft.releases}
    sharable = {
        name: pilot
        for name, pilot in census.ours.items()
        if pilot.is_held and pilot.part is None and pilot.pilot_id not in released
    }
    n_left = len(sharable)
    served = {job.user for job in theirs.running.values()}
    settled_s = census.snapshot.taken_at_s - SETTLED_S
    for name, job in theirs.pending.items():
        pilot = sharable.get(job.required_nodes[0])
        is_early = job.submit_s is None or job.submit_s > settled_s
        is_pilot = job.is_entitled and _TOKEN.fullmatch(name)
        if job.user in served or pilot is None or is_early or not is_pilot:
            continue
        if n_left < LEAST_NODES:
            return
        served.add(job.user)
        n_left -= 1
        yield Release(pilot_id=pilot.pilot_id, node=pilot.node, reason=SHARED)


def _waits(pilot: PilotView) -> bool:
    return not (pilot.is_held or pilot.is_leaving or pilot.is_silent or pilot.end_s is not None)


def _is_had(pilot: PilotView) -> bool:
    return not (_waits(pilot) or pilot.is_leaving)


def _place(job: Job | None, pilot_id: str) -> tuple[bool, Order]:
    if job is None:
        return True, (0.0, 0, pilot_id)
    return False, order_of(job)


def _is_whole(census: NodeCensus, name: str) -> bool:
    node = census.by_name.get(node_of(name))
    return node is not None and not node.lends


# ---- who asks first ------------------------------------------------------------------------


def in_turn(claims: Sequence[Claim], draft: Draft) -> tuple[Claim, ...]:
    """Return the claims in the order of requests: two daemons begin at opposite ends.

    Both ask for the same idle nodes at once. Who came later begins with the last.
    """
    theirs = others(draft.census, draft.given.pilots)
    first = min(map(order_of, theirs.running.values()), default=None)
    if first is None:
        return tuple(claims)
    running = queued_pilots(draft.census.snapshot.jobs or ()).running
    ours = [order_of(job) for name, job in running.items() if name not in theirs.running]
    if ours and min(ours) < first:
        return tuple(claims)
    return tuple(reversed(claims))


# ---- the reserve ---------------------------------------------------------------------------


def observe(memory: Memory, given: DecisionInput, census: NodeCensus) -> Memory:
    """Note which nodes that we left free another daemon has taken, or waits for.

    They stay our reserve as long as its pilot is there.
    To be called while ``memory`` still tells which nodes were free before.
    """
    if not given.is_new_snapshot or given.snapshot.jobs is None:
        return memory
    theirs = others(census, given.pilots)
    pilot_on: dict[str, str] = {}
    for pilot_id, job in theirs.pending.items():
        pilot_on.setdefault(job.required_nodes[0], pilot_id)
    for pilot_id, job in theirs.running.items():
        pilot_on.update(dict.fromkeys(job.nodes, pilot_id))
    reserve_taken: dict[str, str] = {}
    for name, pilot_id in sorted(pilot_on.items()):
        was_left = name in memory.idle_seen and name not in memory.assignment
        if was_left or memory.reserve_taken.get(name) == pilot_id:
            reserve_taken[name] = pilot_id
    if reserve_taken == memory.reserve_taken:
        return memory
    return replace(memory, reserve_taken=reserve_taken)


def reserve_taken(memory: Memory, census: NodeCensus) -> Counter[str]:
    """Return how many nodes of our reserve other daemons have or wait for, by node type."""
    counts = Counter[str]()
    for name in memory.reserve_taken:
        node = census.by_name.get(name)
        if node is not None and (name in census.of_others or name in census.free):
            counts[node.node_type] += 1
    return counts
