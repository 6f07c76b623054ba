"""Chooses the parts of hosts that ordinary jobs get, where GPUs are lent one by one. Pure.

``giveback`` asks this module instead of ``feasible`` and ``victims`` when hosts are shown by their
parts (``division``): a job then gets GPUs, CPUs and memory of hosts, beside other jobs, and gives
back no more than the parts that it lacks. Jobs are judged in the order of the scheduler, each
against what the earlier ones leave. A job that could not start even with all of ours gets nothing.

Of the hosts that a job could have, those come first that need no release, then those that need
the fewest parts of trainers. If one part of a trainer suffices, it is the cheapest of all such
hosts for the trainers (``Pick``); the parts of a host are chosen by their tier, smallest first.

A job that must wait is planned as the scheduler has printed it: backfill keeps later jobs off the
hosts of its plan as a whole, also where jobs share them (Slurm 22.05, ``backfill.c``).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bftrainer.decide.draft import Draft
from bftrainer.decide.feasible import TOO_FEW
from bftrainer.decide.host_rooms import (
    OF_OTHERS,
    HostRoom,
    LentPart,
    RoomNeed,
    free_amount,
)
from bftrainer.decide.queue.backfill import BackfillPlan
from bftrainer.decide.victims import Pick, tiers_of
from bftrainer.model.census import LOST_STATES, NodeCensus, whole, why_it_waits
from bftrainer.model.cluster import Job, Node, NodeState, node_of
from bftrainer.model.lookups import by_job, by_name
from bftrainer.model.node_sets import NodeSet
from bftrainer.model.parts import ANY_TYPE, NodePart, type_name
from bftrainer.model.queue import JobNeeds, NodeDemand

TRAINERS_TIER = 3


class ReleaseCost(NamedTuple):
    """What a release costs, the dearest first; the least is preferred."""

    n_others: int  # parts of other daemons
    n_trainers: int  # parts of trainers
    n_parts: int  # all of them


_Order = tuple[ReleaseCost, int, str]  # of choices: cost, free GPUs, host


class Choice(NamedTuple):  # made by the thousand, as ``LentPart``
    """A host for a job, and what is released for it there."""

    room: HostRoom
    need: RoomNeed | None  # None: all of the host
    released: tuple[LentPart, ...]
    cost: ReleaseCost
    n_gpus_left: int  # free ones before the job: of hosts that cost the same the fullest is taken

    @property
    def order(self) -> _Order:
        """Return its place among the hosts that a job could have."""
        return self.cost, self.n_gpus_left, self.room.name


def _choice(room: HostRoom, need: RoomNeed | None) -> Choice | None:
    """Return what a job would have released on a host; None: it has no room there."""
    victims = room.victims(need)
    if victims is None:
        return None
    n_others = n_trainers = 0
    for lent in victims:
        n_others += lent.tier == OF_OTHERS
        n_trainers += lent.tier == TRAINERS_TIER
    return Choice(
        room=room,
        need=need,
        released=tuple(victims),
        cost=ReleaseCost(n_others=n_others, n_trainers=n_trainers, n_parts=len(victims)),
        n_gpus_left=room.free.n_gpus(),
    )


class RankedHosts:
    """The hosts that have room for one need, the cheapest first.

    Many jobs have equal needs, and a placed job changes few rooms: only those are looked at again.
    """

    def __init__(self, need: RoomNeed | None, rooms: Sequence[HostRoom]) -> None:
        self._need = need
        self._valid: dict[str, Choice] = {}  # by host
        self._hosts: NodeSet = 0  # of ``_valid``
        self._ranking: list[tuple[_Order, int, Choice]] = []  # with some that are no longer valid
        self._n_ranked = 0
        self._n_changes = 0  # that were taken into account
        self._ranking += [self._ranked(choice) for choice in map(self._considered, rooms) if choice]
        self._ranking.sort()

    def _considered(self, room: HostRoom) -> Choice | None:
        choice = _choice(room, self._need)
        if choice is None:
            self._valid.pop(room.name, None)
            self._hosts &= ~room.bit
            return None
        self._valid[room.name] = choice
        self._hosts |= room.bit
        return choice

    def _ranked(self, choice: Choice) -> tuple[_Order, int, Choice]:
        self._n_ranked += 1  # a room may be as dear as it was before
        return choice.order, self._n_ranked, choice

    def update(self, changed: Sequence[HostRoom]) -> None:
        """Take the rooms into account that have changed, in order, since the beginning."""
        for room in by_name(changed[self._n_changes :]).values():
            choice = self._considered(room)
            if choice is not None:
                insort(self._ranking, self._ranked(choice))
        self._n_changes = len(changed)

    def best(self, among: NodeSet, count: int) -> list[Choice]:
        """Return the cheapest ``count`` of these hosts; []: there are fewer."""
        among &= self._hosts
        if among.bit_count() < count:
            return []
        best: list[Choice] = []
        for _, _, choice in self._ranking:
            if len(best) == count:
                break
            # Unless the room has changed since.
            if choice.room.bit & among and self._valid[choice.room.name] is choice:
                best.append(choice)
        return best

    def count(self, among: NodeSet) -> int:
        """Return how many of these hosts have room."""
        return (among & self._hosts).bit_count()

    def alike(self, choice: Choice, among: NodeSet) -> Iterator[Choice]:
        """Yield the hosts of which as much would be released as of this one."""
        for candidate in self._valid.values():
            if candidate.cost == choice.cost and candidate.room.bit & among:
                yield candidate


@dataclass(slots=True, kw_only=True)
class QueueVerdict:
    """What the jobs of a queue get."""

    starts: list[Job] = field(default_factory=list)  # in queue order
    choices: dict[str, list[Choice]] = field(default_factory=dict)  # by job
    refused: dict[str, str] = field(default_factory=dict)  # job -> why it cannot start
    held_off: dict[str, list[str]] = field(default_factory=dict)  # job -> free parts it will take


def judge(draft: Draft, refusals: Mapping[str, str]) -> tuple[QueueVerdict, BackfillPlan]:
    """Judge every pending job, and choose what is released for those that could start.

    Args:
        draft: before give-back.
        refusals: why nothing is released for some jobs, by ``Job.counts_as``.
    """
    rooms = _rooms(draft)
    wholly_usable: NodeSet = 0
    for room in rooms:
        if not room.is_shared_out:
            wholly_usable |= room.bit
    plan = draft.queue.next_plan(wholly_usable)
    judge_of_jobs = _Judge(draft=draft, rooms=rooms, plan=plan, refusals=refusals, pick=draft.pick)
    for job in draft.queue.jobs:
        judge_of_jobs.judge(job)
    return judge_of_jobs.verdict, plan


@dataclass(slots=True, kw_only=True)
class _Judge:
    """One pass over the queue."""

    draft: Draft
    rooms: list[HostRoom]
    plan: BackfillPlan
    refusals: Mapping[str, str]
    pick: Pick
    verdict: QueueVerdict = field(default_factory=QueueVerdict)
    _hopeless: set[object] = field(default_factory=set)  # requests that found too little
    _gone: set[str] = field(default_factory=set)  # parts of trainers that are released
    _candidates: dict[RoomNeed | None, RankedHosts] = field(default_factory=dict)
    _changed: list[HostRoom] = field(default_factory=list)  # rooms in which jobs were placed

    def judge(self, job: Job) -> None:
        """Place a job, or plan it."""
        queue = self.draft.queue
        why, request = why_it_waits(job, queue.now_s), None
        if not why:
            # Where an announcement says no more than the GPUs (an earlier release's hook), the
            # look that shows the job tells the rest.
            judged_job = job
            if job.is_announced and job.cpus <= 0:
                judged_job = replace(job, can_share=True)
            request = queue.requests.of(judged_job)
            why = request.why_not or self.refusals.get(job.counts_as, "")
            if why:
                request = None
            elif not self._start(job, request):
                why = TOO_FEW
        if why:
            self.verdict.refused[job.job_id] = why
            if job.can_share:
                request = None  # its plan is that of amounts, as printed
            self.plan.wait(job, request)

    def _start(self, job: Job, request: JobNeeds) -> bool:
        off = self.plan.kept_off(request.limit_s, is_in_reservation=bool(job.reservations))
        key = request.ways, request.limit_s, bool(job.reservations)
        # Rooms only get smaller and plans only grow, so what was too little stays so.
        if key in self._hopeless:
            return False
        best: list[Choice] = []
        best_way: Iterable[NodeDemand] = ()
        for position, way in enumerate(request.ways):
            if best and position >= request.n_preferred > 0:
                break
            choices = self._choices(way, off)
            if choices and (not best or _total(choices) < _total(best)):
                best, best_way = choices, way
        if not best:
            self._hopeless.add(key)
            return False
        self._place(job, request, [*best, *self._further(best_way, best, off)])
        return True

    def _choices(self, way: Iterable[NodeDemand], off: NodeSet) -> list[Choice]:
        """Return a host for each node that a way asks for; []: too few."""
        choices: list[Choice] = []
        hosts: NodeSet = 0  # of the choices
        for demand in way:
            among = demand.among & ~off & ~hosts
            candidates = self._candidates_for(demand)
            best = candidates.best(among, demand.count)
            if len(best) < demand.count:
                return []
            if demand.count == 1:
                best = [self._cheapest(best[0], candidates, among)]
            for choice in best:
                hosts |= choice.room.bit
            choices += best
        return choices

    def _further(
        self, way: Iterable[NodeDemand], choices: Iterable[Choice], off: NodeSet
    ) -> list[Choice]:
        """Return the hosts that a job with a range of nodes takes beyond its least, ``choices``.

        As many as have room, and none ``off``, which others keep. Without our pilots it would
        begin on them, too.
        """
        hosts: NodeSet = 0
        for choice in choices:
            hosts |= choice.room.bit
        further: list[Choice] = []
        for demand in way:
            if not demand.n_more:
                continue
            among = demand.among & ~off & ~hosts
            candidates = self._candidates_for(demand)
            n_hosts = min(demand.n_more, candidates.count(among))
            for choice in candidates.best(among, n_hosts):
                further.append(choice)
                hosts |= choice.room.bit
        return further

    def _candidates_for(self, demand: NodeDemand) -> RankedHosts:
        """Return the hosts that have room for a node of this demand now."""
        need: RoomNeed | None = None
        if demand.share is not None:
            need = RoomNeed.of(demand.share, demand.gpu_type)
        candidates = self._candidates.get(need)
        if candidates is None:
            candidates = self._candidates[need] = RankedHosts(need, self.rooms)
        candidates.update(self._changed)
        return candidates

    def _cheapest(self, best: Choice, candidates: RankedHosts, among: NodeSet) -> Choice:
        """Return the best host for one node; where single parts suffice, the cheapest part."""
        if len(best.released) != 1 or best.released[0].tier != TRAINERS_TIER:
            return best
        by_part: dict[str, Choice] = {}
        for choice in candidates.alike(best, among):
            for lent in choice.room.sufficient(choice.need):
                if lent.tier == TRAINERS_TIER:
                    by_part[lent.part.name] = choice._replace(released=(lent,))
        cheapest = list(self.pick(1, list(by_part), self._gone))
        if not cheapest:
            return best
        return by_part[cheapest[0]]

    def _place(self, job: Job, request: JobNeeds, choices: list[Choice]) -> None:
        if job.is_announced:
            choices = choices[:1]  # it may still be refused; the others follow when it is shown
        names: list[str] = []
        nodes: NodeSet = 0
        for choice in choices:
            choice.room.place(choice.need, choice.released)
            self._changed.append(choice.room)
            nodes |= choice.room.bit
            self._gone.update([lent.part.name for lent in choice.released])
            shapes = {name: _part_named(self.draft.census, name) for name in choice.room.free_names}
            crowded_out = choice.room.names_held_off(shapes)
            names += crowded_out
            free_names = choice.room.free_names
            choice.room.free_names = [name for name in free_names if name not in crowded_out]
        self.plan.start(request.limit_s, nodes)
        self.verdict.starts.append(job)
        self.verdict.choices[job.job_id] = choices
        self.verdict.held_off[job.job_id] = names


def _total(choices: Iterable[Choice]) -> ReleaseCost:
    """Return what the releases on several hosts cost together."""
    costs = [choice.cost for choice in choices]
    return ReleaseCost(
        n_others=sum([cost.n_others for cost in costs]),
        n_trainers=sum([cost.n_trainers for cost in costs]),
        n_parts=sum([cost.n_parts for cost in costs]),
    )


def _rooms(draft: Draft) -> list[HostRoom]:
    """Return the room of each host that is not lost."""
    census, hosts = draft.census, draft.hosts
    tier_of: dict[str, int] = {}
    is_held = {name: pilot.is_held for name, pilot in census.in_the_way.items()}
    for tier, names in enumerate(tiers_of(is_held, draft.memory.assignment)):
        tier_of.update(dict.fromkeys(names, tier))
    rooms: dict[str, HostRoom] = {}
    for node in hosts.sets.nodes:
        if node.state in LOST_STATES or node.state is NodeState.UNKNOWN:
            continue
        rooms[node.name] = HostRoom(
            name=node.name,
            bit=hosts.sets.bit_of[node.name],
            free=free_amount(node),
            is_shared_out=node.name in hosts.taken,
        )
    for name, pilot in census.in_the_way.items():
        room = rooms.get(node_of(name))
        if room is not None:
            part = census.parts[name]
            if part.name == part.node:
                part = replace(part, gpu_type=_type_of_host(hosts.by_name[room.name]))
            lent = LentPart(part=part, tier=tier_of[name], pilot_id=pilot.pilot_id)
            room.lent.append(lent)
    for name in (census.free | draft.coming_back) - census.in_the_way.keys():
        room = rooms.get(node_of(name))
        if room is None or name not in census.by_name:
            continue
        room.free_names.append(name)
        if name not in census.free:  # its pilot has still to leave, or its host completes
            room.free.add(_part_named(census, name))
            _assume_rest(room, hosts.by_name[room.name])
    for room in rooms.values():
        room.free_names.sort()
        _add_left_since(room, census)
    _add_others(draft, hosts, rooms)
    return list(rooms.values())


def _add_left_since(room: HostRoom, census: NodeCensus) -> None:
    """Add the parts that are free although their host showed their GPUs as used.

    Nodes are read before jobs, and pilots of ours have ended between (``division``). Their CPUs
    and memory are not shown as free either.
    """
    parts = [_part_named(census, name) for name in room.free_names]
    parts = [part for part in parts if part.name != part.node]
    gpus_shown = dict(room.free.gpus)  # of the names that follow, by type
    for part in parts:
        if part.name not in census.free:  # the room has got it above
            gpus_shown[part.gpu_type] = gpus_shown.get(part.gpu_type, 0) - part.gpus
    for part in parts:
        if part.name not in census.free:
            continue
        n_shown = gpus_shown.get(part.gpu_type, 0)
        if n_shown < part.gpus:
            room.free.add(part)
        else:
            gpus_shown[part.gpu_type] = n_shown - part.gpus


def _type_of_host(host: Node) -> str:
    """Return the type of a host's GPUs as parts have it; a whole node's name counts them, too."""
    if len(host.lends) == 1:
        return type_name(host.lends[0])
    return ANY_TYPE


def _part_named(census: NodeCensus, name: str) -> NodePart:
    part = census.parts.get(name)
    if part is None:  # neither free nor with a pilot of ours
        part = whole(census.by_name[name])
    return part


def _assume_rest(room: HostRoom, host: Node) -> None:
    """Assume CPUs and memory for a job that gets GPUs which are about to be free.

    What else a host has that completes is not told. A look later it is; till then a job gets no
    more GPUs only because they come with CPUs.
    """
    if host.state is NodeState.COMPLETING and host.left is None:
        room.free.cpus = max(room.free.cpus, host.cpus)
        room.free.memory_mb = max(room.free.memory_mb, host.memory_mb)


def _add_others(draft: Draft, hosts: NodeCensus, rooms: Mapping[str, HostRoom]) -> None:
    """Add what pilots of other daemons hold: they give it back for the same jobs."""
    ours = {pilot.pilot_id for pilot in draft.given.pilots}
    for job in hosts.snapshot.jobs or ():
        if job.pilot_id is None or job.pilot_id in ours:
            continue
        for host in job.nodes:
            room = rooms.get(host)
            if room is not None:
                part = _part_of_other(hosts, host, job)
                room.lent.append(LentPart(part=part, tier=OF_OTHERS))


def _part_of_other(hosts: NodeCensus, host: str, job: Job) -> NodePart:
    """Return what another's pilot holds, as far as it can be told from its GPUs."""
    node = hosts.by_name[host]
    if not node.lends or not 0 < job.gpus_per_node < node.gpus:
        return replace(whole(node), gpu_type=_type_of_host(node))
    lent = node.lends[0]
    return NodePart(
        name=f"{host} {job.job_id}",
        node=host,
        gpu_type=type_name(lent),
        gpus=job.gpus_per_node,
        cores=job.gpus_per_node * lent.cpus,
        memory_mb=job.gpus_per_node * lent.memory_mb,
    )


def spared(draft: Draft) -> set[str]:
    """Return the parts of ours that stay when the job starts that is planned next on their host.

    A planned job needs an amount of its hosts. Of a host as many parts leave for it as have the
    GPUs that it asks for; a job that needs no GPU, or all of a host, spares none. If more were
    needed, the job would show it when it could start, as any other does (``judge``).
    """
    jobs = by_job(draft.queue.jobs)
    by_host: dict[str, list[str]] = {}
    for name in sorted(draft.census.ours):
        by_host.setdefault(node_of(name), []).append(name)
    staying = set[str]()
    for host, names in by_host.items():
        end = draft.queue.gap_ends.get(host)
        job = jobs.get(end.by) if end is not None else None
        if job is None or not job.can_share:
            continue
        n_needed = max(job.gpus_per_node, math.ceil(job.gpus / max(1, job.n_nodes)))
        if not n_needed:
            continue
        # Those without a trainer leave first, then in the order of their names.
        names.sort(key=lambda name: name in draft.memory.assignment)
        for name in names:
            part = draft.census.parts.get(name)
            if n_needed > 0 and part is not None:
                n_needed -= part.gpus
            else:
                staying.add(name)
    return staying
