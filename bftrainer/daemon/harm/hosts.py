"""Finds the job that got the part of a node that a pilot left, where both share nodes. Pure.

A job on the host need not have the pilot's part: it may run on what was free beside it. So an
account is kept of each host with parts of ours: what it had free at the last look, and what the
jobs on it have. A job that starts has first what was free or came free otherwise; what it *lacks*
then it has of pilots that left: first of those released for it, then of the others, as many as it
needs, in the order of starts. What is left over of a part serves the jobs after it. A part that the
batch system took goes to the job that starts in the second of its signal, before what other jobs
left between the two looks: that is the job it took the part for.

Batch systems tell the whole request of pending jobs only, so requests are remembered. A job that
no look showed pending and that names no GPUs had as many as the host has fewer than it should. A
job that is alone on a host on which nothing is free has all of it.

A job that has started and whose part is not known yet may have one that a later look shows gone.
Called by ``bftrainer.daemon.harm.ledger``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bftrainer.daemon.harm.ends import End
from bftrainer.daemon.harm.lost_cycle import WHOLE_S
from bftrainer.model.cluster import FREE, Job, JobState, Node, Snapshot, node_of
from bftrainer.model.lookups import by_job, by_pilot
from bftrainer.model.parts import NodePart, type_name

ANY: Final = ""  # GPUs of no certain type
_GPU: Final = "gpu"
_UNKNOWN: Final = math.inf  # CPUs or memory that nobody tells never lack


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeed:
    """What a job has of a host, or lacks."""

    gpu_type: str = ANY  # "gpu:a100"
    gpus: int = 0
    cpus: float = 0.0
    memory_mb: float = 0.0

    @property
    def is_met(self) -> bool:
        """Return whether nothing lacks."""
        return self.gpus <= 0 and self.cpus <= 0.0 and self.memory_mb <= 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LentHost:
    """A host at the last look."""

    free_gpus: Mapping[str, int] = field(default_factory=dict)  # by type
    free_cpus: float = _UNKNOWN
    free_memory_mb: float = _UNKNOWN
    needs: Mapping[str, HostNeed] = field(default_factory=dict)  # of the ordinary jobs on it
    lacks: Mapping[str, HostNeed] = field(default_factory=dict)  # of jobs whose parts are not known
    # Of pilots on it and of open ends: they are not in what is free.
    parts: Mapping[str, NodePart] = field(default_factory=dict)
    node: Node | None = None  # as it was shown

    def is_same(
        self, node: Node | None, jobs: Sequence[Job], parts: Mapping[str, NodePart]
    ) -> bool:
        """Return whether a look shows nothing new of a host from which no pilot goes."""
        if self.lacks or node != self.node or parts.keys() != self.parts.keys():
            return False
        return len(jobs) == len(self.needs) and all(job.job_id in self.needs for job in jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """State of the fold; empty while no pilot has a part of a node."""

    by_name: Mapping[str, LentHost] = field(default_factory=dict)
    asked: Mapping[str, Job] = field(default_factory=dict)  # pending jobs, by id and by family

    def request(self, job: Job) -> Job | None:
        """Return a job that runs as it was pending; None: no look showed it."""
        return self.asked.get(job.job_id) or self.asked.get(job.counts_as)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLook:
    """What one look shows of the parts of our pilots."""

    snapshot: Snapshot
    parts: Mapping[str, NodePart]  # of all pilots that have not ended, by pilot
    ends: Sequence[End]  # of parts, that ordinary jobs may have got


@dataclass(slots=True)
class _Room:
    """What is there for the jobs that have started."""

    gpus: dict[str, int]
    cpus: float
    memory_mb: float

    def add(self, gpu_type: str, gpus: int, cpus: float, memory_mb: float) -> None:
        self.gpus[gpu_type] = self.gpus.get(gpu_type, 0) + gpus
        self.cpus += cpus
        self.memory_mb += memory_mb

    def merge(self, other: _Room) -> None:
        """Take over what another one has, which is empty then."""
        self.add(ANY, 0, other.cpus, other.memory_mb)
        for gpu_type, gpus in other.gpus.items():
            self.add(gpu_type, gpus, 0.0, 0.0)
        other.gpus, other.cpus, other.memory_mb = {}, 0.0, 0.0

    def use(self, need: HostNeed) -> HostNeed:
        """Use what there is of a need; return what lacks."""
        types = [need.gpu_type, ANY]
        if need.gpu_type == ANY:
            types = sorted(self.gpus)
        n_lacking = need.gpus
        for gpu_type in dict.fromkeys(types):
            n_used = min(n_lacking, self.gpus.get(gpu_type, 0))
            if n_used > 0:
                self.gpus[gpu_type] -= n_used
                n_lacking -= n_used
        lacks = replace(
            need,
            gpus=n_lacking,
            cpus=max(0.0, need.cpus - self.cpus),
            memory_mb=max(0.0, need.memory_mb - self.memory_mb),
        )
        self.cpus = max(0.0, self.cpus - need.cpus)
        self.memory_mb = max(0.0, self.memory_mb - need.memory_mb)
        return lacks

    def use_part(self, part: NodePart) -> None:
        self.use(_need_of_part(part))

    def add_part(self, part: NodePart) -> None:
        self.add(part.gpu_type, part.gpus, part.cores, part.memory_mb)


def look(before: Hosts, seen: HostLook) -> tuple[Hosts, list[tuple[End, Job]]]:
    """Return the state after a look, and which jobs got which parts."""
    names = {part.node for part in seen.parts.values()}
    names.update(node_of(end.node) for end in seen.ends)
    if not names:
        return Hosts(), []
    jobs, present = _jobs_on(names, seen.snapshot), _present(seen.snapshot)
    nodes = {node.name: node for node in seen.snapshot.nodes or () if node.name in names}
    if "nodes" in seen.snapshot.unread:
        nodes = {}  # as last known: it says nothing of now
    ends: dict[str, list[End]] = {}
    for end in seen.ends:
        ends.setdefault(node_of(end.node), []).append(end)
    parts: dict[str, dict[str, NodePart]] = {}
    for pilot_id, part in seen.parts.items():
        if pilot_id in present:
            parts.setdefault(part.node, {})[pilot_id] = part
    after: dict[str, LentHost] = {}
    pairs: list[tuple[End, Job]] = []
    for name in sorted(names):
        host, on_host, of_ours = before.by_name.get(name), jobs.get(name, []), parts.get(name, {})
        if (
            host is not None
            and name not in ends
            and host.is_same(nodes.get(name), on_host, of_ours)
        ):
            after[name] = host
            continue
        account = _Account(
            name=name,
            hosts=before,
            node=nodes.get(name),
            jobs=on_host,
            parts=of_ours,
            ends=ends.get(name, []),
            present=present,
        )
        pairs += account.settle()
        after[name] = account.after()
    return Hosts(by_name=after, asked=_asked(seen.snapshot)), pairs


def has_use_for(job: Job, part: NodePart, before: Hosts) -> bool:
    """Return whether a job asks for GPUs of a part's type, or does not say what it needs."""
    job = before.request(job) or job
    if not (job.gpus or job.gpus_per_node):
        return not (job.cpus or job.cpus_per_node)
    return _type_of(job) in (ANY, part.gpu_type)


class _Account:
    """One host and one look."""

    def __init__(
        self,
        *,
        name: str,
        hosts: Hosts,
        node: Node | None,
        jobs: Sequence[Job],
        parts: Mapping[str, NodePart],
        ends: Sequence[End],
        present: Mapping[str, JobState],
    ) -> None:
        """``jobs``: ordinary ones on it; ``parts``: of pilots whose jobs are on it."""
        before = hosts.by_name.get(name)
        self._before, self._node, self._jobs = before or LentHost(), node, jobs
        self._parts, self._present = parts, present
        self._hosts = hosts
        self._open = by_pilot(ends)
        all_parts = [*parts.values(), *(end.part for end in ends if end.part is not None)]
        self._types = {part.gpu_type for part in all_parts} | {*self._before.free_gpus} - {ANY}
        if node is not None:
            self._types.update(map(type_name, node.lends))
        self._is_memory_counted = any(part.memory_mb for part in all_parts)
        self._room = self._otherwise()
        self._left_by_jobs = self._came_free()
        known_ids = self._before.needs.keys()
        newcomers = [job for job in jobs if job.job_id not in known_ids]
        if before is None and not ends:
            newcomers = []
        self._newcomers = sorted(newcomers, key=lambda job: (job.start_s or 0.0, job.job_id))
        self._needs: dict[str, HostNeed] = {}
        for job in jobs:
            self._needs[job.job_id] = self._before.needs.get(job.job_id) or self._need_of(job)
        self._pairs: list[tuple[End, Job]] = []
        self._lacks = self._lacking()

    def settle(self) -> list[tuple[End, Job]]:
        """Return which jobs got which of the parts that pilots left."""
        by_id = by_job(self._jobs)
        waiting = [by_id[job_id] for job_id in self._lacks]
        waiting.sort(key=lambda job: (job.start_s or 0.0, job.job_id))
        for job in waiting:
            self._take(job, own_only=True)
        for job in waiting:
            self._lacks[job.job_id] = self._room.use(self._lacks[job.job_id])
            self._take(job, own_only=False)
        return self._pairs

    def after(self) -> LentHost:
        """Return the host with what is left of it."""
        parts = dict(self._parts)
        for end in self._open.values():
            if end.part is not None:
                parts[end.pilot_id] = end.part
        room = self._room  # as reckoned, where the host does not show its GPUs by type
        if self._node is not None and self._node.lends:
            room = _room_of(self._node, self._is_memory_counted)
            for pilot_id, part in parts.items():
                if pilot_id not in self._present:
                    room.use_part(part)
            for need in self._completing():
                if self._is_shown_free(need, room):
                    room.use(need)
        return LentHost(
            free_gpus=room.gpus,
            free_cpus=room.cpus,
            free_memory_mb=room.memory_mb,
            needs=self._needs,
            lacks={job_id: lack for job_id, lack in self._lacks.items() if not lack.is_met},
            parts=parts,
            node=self._node,
        )

    def _completing(self) -> list[HostNeed]:
        """Return what pilots and ordinary jobs have whose end is not over."""
        needs: list[HostNeed] = []
        for pilot_id, part in self._parts.items():
            if self._present[pilot_id] is JobState.COMPLETING:
                needs.append(_need_of_part(part))
        ending = [job for job in self._jobs if job.state is JobState.COMPLETING]
        return [*needs, *(self._needs[job.job_id] for job in ending)]

    def _is_shown_free(self, need: HostNeed, shown: _Room) -> bool:
        """Return whether what a completing job has is in what the host shows free.

        Slurm counts it as free at once, though it gives it to nobody before the end is over
        (``deallocate_nodes``, 22.05). Nodes are read before jobs, so that they may show the moment
        before: then they show no more than was reckoned.
        """
        n_reckoned = self._room.gpus.get(need.gpu_type, 0)
        return need.gpus > 0 and shown.gpus.get(need.gpu_type, 0) >= n_reckoned + need.gpus

    def _otherwise(self) -> _Room:
        """Return what was free before, or came free by ends of pilots that were for no job."""
        before = self._before
        room = _Room(dict(before.free_gpus), before.free_cpus, before.free_memory_mb)
        for pilot_id, part in before.parts.items():
            if pilot_id not in self._parts and pilot_id not in self._open:
                room.add_part(part)  # it ended for no job
        new_parts = dict(self._parts)
        for end in self._open.values():
            if end.part is not None:
                new_parts[end.pilot_id] = end.part
        for pilot_id, part in new_parts.items():
            if pilot_id not in before.parts:
                room.use_part(part)
        return room

    def _came_free(self) -> _Room:
        """Return what ordinary jobs left since the last look, nobody knows when."""
        room = _Room({}, 0.0, 0.0)
        still_here = {job.job_id for job in self._jobs}
        for job_id, need in self._before.needs.items():
            if job_id not in still_here:
                room.add(need.gpu_type, need.gpus, need.cpus, need.memory_mb)
        return room

    def _lacking(self) -> dict[str, HostNeed]:
        """Return what jobs lack of what was there without the ends; it is used up then."""
        before = self._before.lacks
        lacks = {job_id: before[job_id] for job_id in before if job_id in self._needs}
        self._guess_needs()
        for job in self._newcomers:
            # What was free for certain comes first: Slurm preempts for nobody whom that suffices.
            lack = self._room.use(self._needs[job.job_id])
            lack = self._preempted_for(job, lack)
            lacks[job.job_id] = self._left_by_jobs.use(lack)
        self._room.merge(self._left_by_jobs)
        return {job_id: lack for job_id, lack in lacks.items() if not lack.is_met}

    def _preempted_for(self, job: Job, need: HostNeed) -> HostNeed:
        """Let a job have the parts that were preempted as it started; return what it lacks then."""
        for end in sorted(self._open.values(), key=lambda end: end.node):
            if end.part is None or not _is_preempted_for(end, job) or not _helps(end, need):
                continue
            del self._open[end.pilot_id]
            self._room.add_part(end.part)
            need = self._room.use(need)
            self._pairs.append((end, job))
        return need

    def _guess_needs(self) -> None:
        """Work out what jobs have that do not tell all of it."""
        if self._node is None:
            return
        for job in self._newcomers:
            if self._has_all(job, self._node):
                self._needs[job.job_id] = HostNeed(gpus=self._n_had())
        silent = [job for job in self._newcomers if not self._is_told(job)]
        if not silent or self._node.left is None or len(self._node.lends) != 1:
            return
        n_now = sum(_free_gpus(self._node).values())
        n_told = sum(self._needs[job.job_id].gpus for job in self._newcomers)
        need = self._typed(HostNeed(gpus=max(0, self._n_had() - n_now - n_told)))
        self._needs[silent[0].job_id] = need

    def _n_had(self) -> int:
        """Return how many GPUs newcomers can have come to have."""
        return self._n_free() + sum(part.gpus for part in self._gone())

    def _has_all(self, job: Job, node: Node) -> bool:
        """Return whether a job has the host to itself, and nothing of it is free."""
        is_alone = len(self._jobs) == 1 and not self._parts
        return is_alone and node.is_full and not (self._request(job) or job).can_share

    def _n_free(self) -> int:
        return sum(self._room.gpus.values()) + sum(self._left_by_jobs.gpus.values())

    def _gone(self) -> list[NodePart]:
        return [
            end.part
            for end in self._open.values()
            if end.part is not None and end.gone_s is not None
        ]

    def _is_told(self, job: Job) -> bool:
        if self._request(job) is not None:
            return True
        return any((job.gpus, job.gpus_per_node, job.cpus, job.cpus_per_node))

    def _request(self, job: Job) -> Job | None:
        """Return the job as it was pending, or, if no look showed it so, as it was announced."""
        pending = self._hosts.request(job)
        if pending is not None:
            return pending
        for end in self._open.values():
            if end.is_for(job):
                return end.job
        return None

    def _need_of(self, job: Job) -> HostNeed:
        need, request = _asks_for(job, job.n_nodes), self._request(job)
        if request is not None:
            requested = _asks_for(request, job.n_nodes)
            need = HostNeed(
                gpu_type=need.gpu_type or requested.gpu_type,
                gpus=max(need.gpus, requested.gpus),
                cpus=max(need.cpus, requested.cpus),
                memory_mb=max(need.memory_mb, requested.memory_mb),
            )
        if not self._is_memory_counted:
            need = replace(need, memory_mb=0.0)
        return self._typed(need)

    def _typed(self, need: HostNeed) -> HostNeed:
        """Return a need of any type with that of the host, if its GPUs are of one."""
        if need.gpu_type == ANY and len(self._types) == 1:
            return replace(need, gpu_type=next(iter(self._types)))
        return need

    def _take(self, job: Job, *, own_only: bool) -> None:
        while end := self._next(job, own_only=own_only):
            del self._open[end.pilot_id]
            if end.part is not None:
                self._room.add_part(end.part)
            self._lacks[job.job_id] = self._room.use(self._lacks[job.job_id])
            self._pairs.append((end, job))

    def _next(self, job: Job, *, own_only: bool) -> End | None:
        """Return the next part for what a job lacks; None: it lacks nothing that one has."""
        lack = self._lacks[job.job_id]
        candidates: list[End] = []
        for end in self._open.values():
            is_left = end.gone_s is not None and end.part is not None and end.may_be_for(job)
            if is_left and (end.is_for(job) or not own_only) and _helps(end, lack):
                candidates.append(end)
        return min(candidates, key=lambda end: (*_rank(end, lack), end.node), default=None)


def _is_preempted_for(end: End, job: Job) -> bool:
    """Return whether the batch system took a part in the second in which a job started.

    Slurm's main scheduler starts a job as soon as what it preempted for it is free, mostly within
    a tenth of a second. Ends without a signal say no second.
    """
    if not end.is_preempted or end.gone_s is None or end.told_s is None or job.start_s is None:
        return False
    is_at_once = abs(job.start_s - end.told_s) <= WHOLE_S
    return is_at_once and end.may_be_for(job)


def _helps(end: End, lack: HostNeed) -> bool:
    if lack.cpus > 0.0 or lack.memory_mb > 0.0:
        return True
    return lack.gpus > 0 and _has_type(end, lack)


def _has_type(end: End, lack: HostNeed) -> bool:
    return lack.gpu_type in (ANY, end.gpu_type)


def _rank(end: End, lack: HostNeed) -> tuple[bool, bool, float]:
    """Return the order of parts: the right GPUs, that nobody else is to get, that went first."""
    has_none = lack.gpus > 0 and not _has_type(end, lack)
    return has_none, end.job is not None, end.began_s or end.gone_s or 0.0


def _jobs_on(names: set[str], snapshot: Snapshot) -> dict[str, list[Job]]:
    on_host: dict[str, list[Job]] = {}
    for job in snapshot.jobs or ():
        if job.is_ordinary and job.state is not JobState.PENDING:
            for name in names.intersection(job.nodes):
                on_host.setdefault(name, []).append(job)
    return on_host


def _present(snapshot: Snapshot) -> Mapping[str, JobState]:
    """Return the states of our pilots whose jobs are on hosts."""
    present: dict[str, JobState] = {}
    for job in snapshot.jobs or ():
        if job.pilot_id is not None and job.state is not JobState.PENDING:
            present[job.pilot_id] = job.state
    return present


def _asked(snapshot: Snapshot) -> dict[str, Job]:
    pending_jobs: dict[str, Job] = {}
    for job in snapshot.jobs or ():
        if job.is_ordinary and job.state is JobState.PENDING:
            pending_jobs[job.job_id] = job
            pending_jobs.setdefault(job.counts_as, job)
    return pending_jobs


def _asks_for(job: Job, n_nodes: int) -> HostNeed:
    """Return what a job asks for on each of its nodes."""
    n_nodes = max(1, n_nodes)
    cpus = max(math.ceil(job.cpus / n_nodes), job.cpus_per_node)
    gpus = max(math.ceil(job.gpus / n_nodes), job.gpus_per_node)
    by_unit_mb = max(job.memory_per_cpu_mb * cpus, job.memory_per_gpu_mb * gpus)
    return HostNeed(
        gpu_type=_type_of(job),
        gpus=gpus,
        cpus=cpus,
        memory_mb=max(job.memory_mb, by_unit_mb),
    )


def _type_of(job: Job) -> str:
    """Return the type of a job's GPUs as parts have it."""
    name = job.gpu_type.removeprefix(f"{_GPU}:")
    if name in ("", _GPU):
        return ANY
    return f"{_GPU}:{name}"


def _need_of_part(part: NodePart) -> HostNeed:
    return HostNeed(
        gpu_type=part.gpu_type, gpus=part.gpus, cpus=part.cores, memory_mb=part.memory_mb
    )


def _free_gpus(node: Node) -> dict[str, int]:
    """Return the free GPUs by type.

    As many as pilots could have, or more where CPUs or memory are scarce for those.
    """
    gpus: dict[str, int] = {}
    for lent in node.lends:
        gpus[type_name(lent)] = lent.n_free
    if node.left is not None and len(gpus) == 1:
        (gpu_type,) = gpus
        gpus[gpu_type] = max(gpus[gpu_type], node.left.gpus)
    return gpus


def _room_of(node: Node, is_memory_counted: bool) -> _Room:
    """Return what a node shows free."""
    cpus, memory_mb = 0.0, 0.0
    if node.left is not None:
        cpus, memory_mb = node.left.cpus, node.left.memory_mb
    elif node.state in FREE:
        cpus, memory_mb = node.cpus, node.memory_mb
    elif any(lent.n_free for lent in node.lends):
        cpus = memory_mb = _UNKNOWN
    if not is_memory_counted:
        memory_mb = _UNKNOWN
    return _Room(_free_gpus(node), cpus, memory_mb)
