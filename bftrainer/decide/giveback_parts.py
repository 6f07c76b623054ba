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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from bftrainer.decide.draft import Draft
from bftrainer.decide.feasible import TOO_FEW
from bftrainer.decide.host_rooms import OF_OTHERS, HostRoom, LentPart, Need, free_amount
from bftrainer.decide.queue.backfill import BackfillPlan
from bftrainer.decide.victims import Pick, tiers_of
from bftrainer.model.census import LOST_STATES, NodeCensus, whole, why_it_waits
from bftrainer.model.cluster import Job, NodeState, node_of
from bftrainer.model.node_sets import NodeSet
from bftrainer.model.parts import NodePart, type_name
from bftrainer.model.queue import JobNeeds, NodeDemand

TRAINERS_TIER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A host for a job, and what is released for it there."""

    room: HostRoom
    need: Need | None  # None: all of the host
    released: tuple[LentPart, ...]

    @property
    def cost(self) -> tuple[int, int, int, float, str]:
        """Order of preference: no parts of others, few of trainers, few at all, a tight fit."""
        n_others = sum(lent.tier == OF_OTHERS for lent in self.released)
        n_trainers = sum(lent.tier == TRAINERS_TIER for lent in self.released)
        n_left = self.room.free.n_gpus()
        return n_others, n_trainers, len(self.released), n_left, self.room.name


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What the jobs of a queue get."""

    starts: list[Job] = field(default_factory=list)  # in queue order
    choices: dict[str, list[Choice]] = field(default_factory=dict)  # by job
    refused: dict[str, str] = field(default_factory=dict)  # job -> why it cannot start
    held_off: dict[str, list[str]] = field(default_factory=dict)  # job -> free parts it will take


def judge(draft: Draft, refusals: Mapping[str, str]) -> tuple[Verdict, BackfillPlan]:
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
    verdict: Verdict = field(default_factory=Verdict)
    # By what is asked for, the shortest limit of a job that found too little.
    _hopeless_from_s: dict[object, float] = field(default_factory=dict)
    # By need, what each host has for it, as it is after the jobs placed so far; None: too little.
    _offers: dict[Need | None, dict[str, Choice | None]] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)  # parts of trainers that are released

    def judge(self, job: Job) -> None:
        """Place a job, or plan it."""
        queue = self.draft.queue
        why, request = why_it_waits(job, queue.now_s), None
        if not why:
            request = queue.requests.of(job)
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
        key = request.ways, bool(job.reservations)
        # A job whose limit is not known is kept off no plan.
        limit_s = -math.inf if request.limit_s is None else request.limit_s
        # Rooms only get smaller and plans only grow, so what was too little stays so; and a longer
        # job is kept off the hosts of at least as many plans.
        if limit_s >= self._hopeless_from_s.get(key, math.inf):
            return False
        best: list[Choice] = []
        for position, way in enumerate(request.ways):
            if best and position >= request.n_preferred > 0:
                break
            choices = self._choices(way, off)
            if choices and (not best or _cost(choices) < _cost(best)):
                best = choices
        if not best:
            self._hopeless_from_s[key] = limit_s
            return False
        self._place(job, request, best)
        return True

    def _choices(self, way: Iterable[NodeDemand], off: NodeSet) -> list[Choice]:
        """Return a host for each node that a way asks for; []: too few."""
        chosen: list[Choice] = []
        used: NodeSet = 0
        for demand in way:
            among = demand.among & ~off & ~used
            need: Need | None = None
            if demand.share is not None:
                need = Need.of(demand.share, demand.gpu_type)
            candidates = [choice for choice in self._offered(need) if choice.room.bit & among]
            if len(candidates) < demand.count:
                return []
            candidates.sort(key=lambda choice: choice.cost)
            own = candidates[: demand.count]
            if demand.count == 1:
                own = [self._cheapest(candidates)]
            for choice in own:
                used |= choice.room.bit
            chosen += own
        return chosen

    def _offered(self, need: Need | None) -> list[Choice]:
        """Return the hosts that have room for a need, and what is released for it there."""
        offers = self._offers.setdefault(need, {})
        offered: list[Choice] = []
        for room in self.rooms:
            if room.name not in offers:
                victims = room.victims(need)
                offers[room.name] = None
                if victims is not None:
                    offers[room.name] = Choice(room=room, need=need, released=tuple(victims))
            choice = offers[room.name]
            if choice is not None:
                offered.append(choice)
        return offered

    def _cheapest(self, candidates: list[Choice]) -> Choice:
        """Return the best host for one node; where single parts suffice, the cheapest part."""
        best = candidates[0]
        if len(best.released) != 1 or best.released[0].tier != TRAINERS_TIER:
            return best
        by_part: dict[str, Choice] = {}
        for choice in candidates:
            if choice.cost[:3] != best.cost[:3]:
                break
            for lent in choice.room.lent:
                if lent.tier == TRAINERS_TIER and self._suffices(choice, lent):
                    by_part[lent.part.name] = replace(choice, released=(lent,))
        names = self.pick(1, list(by_part), self._gone)
        for name in names:
            return by_part[name]
        return best

    def _suffices(self, choice: Choice, lent: LentPart) -> bool:
        if choice.need is None:
            return choice.released == (lent,)
        only = HostRoom(
            name=choice.room.name, bit=choice.room.bit, free=choice.room.free, lent=[lent]
        )
        return only.victims(choice.need) == [lent]

    def _place(self, job: Job, request: JobNeeds, choices: list[Choice]) -> None:
        if job.is_announced:
            choices = choices[:1]  # it may still be refused; the others follow when it is shown
        names: list[str] = []
        nodes: NodeSet = 0
        for choice in choices:
            choice.room.place(choice.need, choice.released)
            for offers in self._offers.values():
                offers.pop(choice.room.name, None)
            nodes |= choice.room.bit
            self._gone.update([lent.part.name for lent in choice.released])
            crowded_out = choice.room.names_held_off(self.draft.census.parts)
            names += crowded_out
            free_names = choice.room.free_names
            choice.room.free_names = [name for name in free_names if name not in crowded_out]
        self.plan.start(request.limit_s, nodes)
        self.verdict.starts.append(job)
        self.verdict.choices[job.job_id] = choices
        self.verdict.held_off[job.job_id] = names


def _cost(choices: Iterable[Choice]) -> tuple[int, int, int]:
    n_others = n_trainers = n_parts = 0
    for choice in choices:
        of_others, of_trainers, count, _, _ = choice.cost
        n_others += of_others
        n_trainers += of_trainers
        n_parts += count
    return n_others, n_trainers, n_parts


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
            lent = LentPart(part=census.parts[name], tier=tier_of[name], pilot_id=pilot.pilot_id)
            room.lent.append(lent)
    for name in (census.free | draft.coming_back) - census.in_the_way.keys():
        room = rooms.get(node_of(name))
        if room is None or name not in census.parts:
            continue
        room.free_names.append(name)
        if name not in census.free:  # its pilot has still to leave
            room.free.add(census.parts[name])
    for room in rooms.values():
        room.free_names.sort()
    _add_others(draft, hosts, rooms)
    return list(rooms.values())


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
        return whole(node)
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
    jobs = {job.job_id: job for job in draft.queue.jobs}
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
        # Those without a trainer leave first, then those with the highest numbers.
        names.sort(key=lambda name: name in draft.memory.assignment)
        for name in names:
            part = draft.census.parts.get(name)
            if n_needed > 0 and part is not None:
                n_needed -= part.gpus
            else:
                staying.add(name)
    return staying
