"""Divides hosts into the parts that are lent, for one decision. Pure.

A snapshot shows hosts. Where GPUs are lent one by one (``Node.lends``), the stages of a decision
see each host's parts as nodes instead: the parts that pilots of ours hold or wait for, under the
names that the pilots have, and its free GPUs, under the smallest numbers that are not in use. A GPU
that is given back has no name in the batch system; the name of the part that it was stands for it
until a job has it (``Memory.held_off`` and others remember such names). So the parts of a host
are, in this order of claim on its free GPUs:

1. those of pilots that run: their GPUs are in use;
2. those of pilots that wait for their GPU; without a free one they are *taken* by ordinary jobs;
3. remembered names, of GPUs given back; likewise;
4. further free GPUs.

The names given back last stand for what is free: of a job that started meanwhile, the parts that
were given back before it are the likelier ones.

While a host completes it may show GPUs as used that pilots of ours have just left: the names of 2
and 3 then stand for GPUs that are about to be free, not for taken ones. So does a name of 3 that is
younger than the look, where the jobs of the host explain fewer GPUs than it shows used: nodes are
read before jobs, and the pilot has ended between.

The queue model goes on to see hosts (``queue``): jobs ask for hosts and for amounts of them.
A host is shown as a whole where a pilot has all of it, and where it has no part to show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from bftrainer.model.census import (
    FREE_STATES,
    LOST_STATES,
    is_as_before,
    jobs_that_came,
    once_per_look,
)
from bftrainer.model.cluster import PART_MARK, Job, JobState, Node, NodeState, Snapshot, node_of
from bftrainer.model.decision import Cooling, DecisionInput, Memory, PilotView
from bftrainer.model.parts import ANY_TYPE, NodePart, type_name

LOOK_S: Final = 1.0  # in which a batch system answers all commands of a look
NOTHING_LEFT: Final = "no GPU of it is free with the CPUs and memory that go with it"
_Used = Mapping[str, int] | None  # GPUs that other jobs use, by type
_UNUSABLE: Final = (*LOST_STATES, NodeState.UNKNOWN)
_MOST_DIVIDED: Final = 1 << 14  # hosts remembered
# By host the last division and what it was made of: most hosts do not change between decisions.
_DIVIDED: dict[str, tuple[Node, tuple[PilotPart, ...], tuple[str, ...], _Used, HostParts]] = {}
_NAMED: dict[str, tuple[Job, str, Job]] = {}  # by id our pilots' jobs, and with their parts' names


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotPart:
    """A part that a pilot of ours holds or waits for."""

    part: NodePart
    job_state: JobState | None  # of its pilot's job; None: the snapshot does not show it on a node
    is_leaving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostParts:
    """The parts of a host as nodes."""

    nodes: tuple[Node, ...]
    taken: tuple[str, ...] = ()  # of ``nodes``, those that ordinary jobs have


@dataclass(frozen=True, slots=True, kw_only=True)
class _OurPilots:
    """Where our pilots are."""

    parts: Mapping[str, Sequence[PilotPart]]  # by host
    part_of: Mapping[str, str]  # by pilot
    whole_hosts: AbstractSet[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Occupation:
    """What a division depends on besides the snapshot."""

    ours: _OurPilots
    remembered: Mapping[str, tuple[str, ...]]  # names of parts, by host
    fresh_hosts: AbstractSet[str]  # given back a part as the look began, or since


@dataclass(slots=True)
class _LastDivision:
    """The last division: between two looks most decisions have the same one, or nearly so."""

    snapshot: Snapshot | None = None
    occupation: _Occupation | None = None
    divided: Snapshot | None = None
    taken_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by host

    # Of the last look at our pilots.
    pilots: tuple[PilotView, ...] = ()
    jobs: tuple[Job, ...] = ()
    ours: _OurPilots | None = None


_LAST = _LastDivision()


@once_per_look
def _lend_parts(nodes: tuple[Node, ...]) -> bool:
    return any(node.lends for node in nodes)


def divided(given: DecisionInput) -> DecisionInput:
    """Return the input with hosts that lend GPUs, or have lent some, as parts."""
    snapshot = given.snapshot
    if snapshot.nodes is None:
        return given
    has_parts = any(pilot.part is not None for pilot in given.pilots)
    if not (has_parts or _lend_parts(snapshot.nodes)):
        return given
    occupation = _Occupation(
        ours=_our_pilots(given),
        remembered=_remembered(given.memory),
        fresh_hosts=_fresh_hosts(given),
    )
    # The same object as before where nothing has changed: what is worked out by it is kept.
    if _LAST.divided is None or _LAST.snapshot is not snapshot or _LAST.occupation != occupation:
        _LAST.divided, _LAST.taken_of = _divided(snapshot, occupation)
        _LAST.snapshot, _LAST.occupation = snapshot, occupation
    parted = _LAST.divided
    return replace(given, snapshot=parted, cooling=_cooling(given.cooling, parted.nodes or ()))


def _divided(
    snapshot: Snapshot, occupation: _Occupation
) -> tuple[Snapshot, Mapping[str, tuple[str, ...]]]:
    """Return the snapshot with the parts of hosts in place of these, and which jobs have taken."""
    before = _LAST.snapshot
    if before is not None and before.nodes is snapshot.nodes and occupation == _LAST.occupation:
        jobs_as_before = _named_as_before(snapshot.jobs or (), occupation.ours, _LAST.taken_of)
        if jobs_as_before and _LAST.divided is not None:
            nodes_before = _LAST.divided.nodes
            return replace(snapshot, nodes=nodes_before, jobs=jobs_as_before), _LAST.taken_of
    nodes: list[Node] = []
    taken_of: dict[str, tuple[str, ...]] = {}
    ours = occupation.ours
    used_of = _used_gpus(snapshot.nodes or (), snapshot.jobs or (), occupation)
    for node in snapshot.nodes or ():
        our_parts = ours.parts.get(node.name, ())
        if not (node.lends or our_parts) or node.name in ours.whole_hosts:
            nodes.append(node)
            continue
        remembered = occupation.remembered.get(node.name, ())
        host = parts_of(node, tuple(our_parts), remembered, used_of.get(node.name))
        nodes += host.nodes
        if host.taken:
            taken_of[node.name] = host.taken
    # A host whose parts are as they were has the same objects; often all hosts do.
    shown = tuple(nodes)
    if _LAST.divided is not None and is_as_before(shown, _LAST.divided.nodes or ()):
        shown = _LAST.divided.nodes or ()
    jobs = snapshot.jobs
    if jobs is not None:
        jobs = _named_as_before(jobs, ours, taken_of) or _renamed(jobs, ours.part_of, taken_of)
    return replace(snapshot, nodes=shown, jobs=jobs), taken_of


def _named_as_before(
    jobs: tuple[Job, ...], ours: _OurPilots, taken_of: Mapping[str, tuple[str, ...]]
) -> tuple[Job, ...]:
    """Return the jobs of the last division, with those that have come since; (): made anew."""
    before, occupation, divided_before = _LAST.snapshot, _LAST.occupation, _LAST.divided
    if before is None or occupation is None or divided_before is None:
        return ()
    if occupation.ours is not ours or taken_of != _LAST.taken_of:
        return ()
    came = jobs_that_came(jobs, before.jobs or ())
    if came is None:
        return ()
    return (*(divided_before.jobs or ()), *came)


def _cooling(cooling: Mapping[str, Cooling], nodes: Iterable[Node]) -> Mapping[str, Cooling]:
    """Return what cools down by part: a host does as a whole, which GPU of it failed is unknown."""
    if not cooling:
        return cooling
    by_host: dict[str, Cooling] = {}
    for name in sorted(cooling):
        by_host.setdefault(node_of(name), cooling[name])
    of_parts: dict[str, Cooling] = {}
    for node in nodes:
        host = node_of(node.name)
        if PART_MARK in node.name and host in by_host:
            of_parts[node.name] = by_host[host]
    return {**cooling, **of_parts}


def _our_pilots(given: DecisionInput) -> _OurPilots:
    """Return where our pilots are: the same object while neither they nor their jobs change."""
    jobs, ours = given.snapshot.jobs or (), _LAST.ours
    has_same_pilots = is_as_before(given.pilots, _LAST.pilots)
    if ours is not None and has_same_pilots and jobs_that_came(jobs, _LAST.jobs) is not None:
        return ours
    ours = _OurPilots(
        parts=_our_parts(given),
        part_of={pilot.pilot_id: pilot.node for pilot in given.pilots if pilot.part is not None},
        whole_hosts={pilot.node for pilot in given.pilots if pilot.part is None},
    )
    _LAST.pilots, _LAST.jobs, _LAST.ours = given.pilots, jobs, ours
    return ours


def _our_parts(given: DecisionInput) -> dict[str, list[PilotPart]]:
    """Return the parts of our pilots, by host."""
    states: dict[str, JobState] = {}
    for job in given.snapshot.jobs or ():
        if job.pilot_id is not None:
            states[job.pilot_id] = job.state
    parts: dict[str, list[PilotPart]] = {}
    for pilot in given.pilots:
        if pilot.part is None:
            continue
        state = states.get(pilot.pilot_id)
        if state is JobState.PENDING:
            state = None
        pilot_part = PilotPart(part=pilot.part, job_state=state, is_leaving=pilot.is_leaving)
        parts.setdefault(pilot.part.node, []).append(pilot_part)
    return parts


def _remembered(memory: Memory) -> dict[str, tuple[str, ...]]:
    """Return the names of parts that stand for GPUs given back, by host."""
    names = {*memory.held_off, *memory.ends.ending}
    for record in memory.vain.values():
        names.update(record.nodes)
    by_host: dict[str, tuple[str, ...]] = {}
    for name in sorted(names, key=lambda name: (-memory.held_off.get(name, 0.0), name)):
        if PART_MARK in name:
            host = node_of(name)
            by_host[host] = (*by_host.get(host, ()), name)
    return by_host


def _fresh_hosts(given: DecisionInput) -> AbstractSet[str]:
    """Return hosts of which a part was given back so lately that the look may show it used."""
    hosts: set[str] = set()
    for name, at_s in given.memory.held_off.items():
        if PART_MARK in name and at_s >= given.snapshot.taken_at_s - LOOK_S:
            hosts.add(node_of(name))
    return hosts


def _used_gpus(
    nodes: Iterable[Node], jobs: Iterable[Job], occupation: _Occupation
) -> dict[str, dict[str, int]]:
    """Return the GPUs that jobs other than our pilots use on fresh hosts, by host and type."""
    used_of: dict[str, dict[str, int]] = {host: {} for host in occupation.fresh_hosts}
    if not used_of:
        return used_of
    full_hosts = {node.name: node for node in nodes if node.name in used_of and node.is_full}
    for job in jobs:
        if job.pilot_id in occupation.ours.part_of or job.state is JobState.PENDING:
            continue
        for host in job.nodes:
            by_type = used_of.get(host)
            if by_type is None:
                continue
            n_gpus = job.gpus_per_node
            if not (n_gpus or job.can_share) and host in full_hosts:
                n_gpus = full_hosts[host].gpus  # as jobs with --exclusive have
            by_type[job.gpu_type] = by_type.get(job.gpu_type, 0) + n_gpus
    return used_of


def parts_of(
    node: Node,
    held: tuple[PilotPart, ...] = (),
    remembered: tuple[str, ...] = (),
    used: Mapping[str, int] | None = None,
) -> HostParts:
    """Return the parts of a host.

    Args:
        node: as the batch system shows it.
        held: the parts of our pilots on it.
        remembered: names of further parts, of GPUs that were given back, the latest first.
        used: GPUs that other jobs use, by type ("" any), where one was given back just now.
    """
    entry = _DIVIDED.get(node.name)
    if entry is not None:
        its_node, its_held, its_names, its_used, host_before = entry
        is_same = its_node is node and its_held == held and its_names == remembered
        if is_same and its_used == used:
            return host_before
    host = _Division(node, used).of(held, remembered)
    if entry is not None and host == host_before:
        host = host_before
    if len(_DIVIDED) >= _MOST_DIVIDED:
        _DIVIDED.clear()
    _DIVIDED[node.name] = node, held, remembered, used, host
    return host


class _Division:
    """The division of one host, part by part."""

    def __init__(self, node: Node, used: Mapping[str, int] | None = None) -> None:
        self._node, self._used = node, used
        self._types = {type_name(lent): lent for lent in node.lends}
        self._n_free = {kind: lent.n_free for kind, lent in self._types.items()}
        self._is_unusable = node.state in _UNUSABLE
        if self._is_unusable:
            self._n_free = dict.fromkeys(self._n_free, 0)
        self._n_ending = dict.fromkeys(self._n_free, 0)  # about to be free, at most
        self._n_unshown = dict.fromkeys(self._n_free, 0)  # free since the host was read
        self._free_state = NodeState.IDLE
        if node.state is NodeState.PLANNED:
            self._free_state = NodeState.PLANNED
        # While a job completes there, the batch system starts nothing on any GPU of the host.
        self._unclaimed_state = self._free_state
        if node.state is NodeState.COMPLETING:
            self._unclaimed_state = NodeState.COMPLETING
        self._nodes: list[Node] = []
        self._taken: list[str] = []

    def of(self, held: Sequence[PilotPart], remembered: Iterable[str]) -> HostParts:
        waiting: list[PilotPart] = []
        leaving: list[PilotPart] = []
        for held_part in held:
            if held_part.job_state is not None:
                self._add_running(held_part)
            elif held_part.is_leaving:
                leaving.append(held_part)
            else:
                waiting.append(held_part)
        self._bound(held)
        for held_part in waiting:
            self._add_from_free(held_part.part, self._free_state)
        for held_part in leaving:
            self._add_left(held_part.part)
        names = {held_part.part.name for held_part in held}
        for name in remembered:
            if name not in names:
                names.add(name)
                self._add_left(self._single(name))
        number = 0
        for kind in self._types:
            while self._n_free[kind] > 0:
                name = f"{self._node.name}{PART_MARK}{number}"
                number += 1
                if name not in names:
                    self._add_from_free(self._single(name, kind), self._unclaimed_state)
        if not self._nodes:
            return HostParts(nodes=(_without_parts(self._node),))
        return HostParts(nodes=tuple(self._nodes), taken=tuple(self._taken))

    def _bound(self, held: Iterable[PilotPart]) -> None:
        """Count no more GPUs than there are: nodes and jobs are not read at the same instant.

        A host that completes may have all GPUs soon that pilots of ours do not hold.
        """
        is_completing = self._node.state is NodeState.COMPLETING
        for kind, lent in self._types.items():
            n_held = 0
            for held_part in held:
                if held_part.part.gpu_type == kind and held_part.job_state is not None:
                    n_held += held_part.part.gpus
            n_bound = lent.n_gpus - n_held
            self._n_free[kind] = max(0, min(self._n_free[kind], n_bound))
            if is_completing:
                self._n_ending[kind] = max(0, n_bound - self._n_free[kind])
            elif self._used is not None:
                n_used = sum(self._used.get(name, 0) for name in {lent.gpu_type, ""})
                self._n_unshown[kind] = max(0, n_bound - n_used - self._n_free[kind])

    def _single(self, name: str, kind: str = "") -> NodePart:
        """Return a part of one GPU; of a type of which one is free, or is soon, unless named."""
        if not kind:
            kind = self._likely_kind()
        lent = self._types.get(kind)
        cpus, memory_mb = 1, 0
        if lent is not None:
            cpus, memory_mb = lent.cpus, lent.memory_mb
        return NodePart(
            name=name,
            node=self._node.name,
            gpu_type=kind,
            gpus=1,
            cores=cpus,
            memory_mb=memory_mb,
        )

    def _likely_kind(self) -> str:
        """Return the type that a GPU given back probably has: its name does not tell."""
        for kind, count in self._n_free.items():
            if count:
                return kind
        if any(self._n_ending.values()):
            return max(self._n_ending, key=self._n_ending.__getitem__)
        for kind in self._types:
            return kind
        return ANY_TYPE

    def _add_running(self, held_part: PilotPart) -> None:
        state = NodeState.ALLOCATED
        if held_part.job_state is JobState.COMPLETING:
            state = NodeState.COMPLETING
        self._add(held_part.part, state)

    def _add_left(self, part: NodePart) -> None:
        """Add a part that a pilot of ours has left, or is about to."""
        n_free = self._n_free.get(part.gpu_type, 0)
        n_unshown = self._n_unshown.get(part.gpu_type, 0)
        if n_free < part.gpus <= n_unshown:
            self._n_unshown[part.gpu_type] = n_unshown - part.gpus
            self._add(part, self._free_state)
        else:
            self._add_from_free(part, self._free_state)

    def _add_from_free(self, part: NodePart, state: NodeState) -> None:
        n_free = self._n_free.get(part.gpu_type, 0)
        if n_free >= part.gpus:
            self._n_free[part.gpu_type] = n_free - part.gpus
            self._add(part, state)
            return
        n_ending = self._n_ending.get(part.gpu_type, 0)
        if n_ending >= part.gpus:
            self._n_ending[part.gpu_type] = n_ending - part.gpus
            self._add(part, NodeState.COMPLETING)
            return
        if not self._is_unusable:
            self._taken.append(part.name)
        self._add(part, NodeState.ALLOCATED)

    def _add(self, part: NodePart, state: NodeState) -> None:
        if self._is_unusable:
            state = self._node.state
        self._nodes.append(
            replace(
                self._node,
                name=part.name,
                state=state,
                node_type=part.gpu_type,
                gpus=part.gpus,
                cpus=part.cores,
                memory_mb=part.memory_mb,
                left=None,
            )
        )


def _without_parts(node: Node) -> Node:
    """Return a host of which nothing can be lent now, as it is shown for that."""
    if node.state in FREE_STATES:
        return replace(node, state=NodeState.ALLOCATED, reason=NOTHING_LEFT, lends=())
    return replace(node, lends=())


def _renamed(
    jobs: tuple[Job, ...], part_of: Mapping[str, str], taken_of: Mapping[str, tuple[str, ...]]
) -> tuple[Job, ...]:
    """Name parts in jobs: our pilots have theirs, and ordinary jobs those that they have taken.

    Whose of several ordinary jobs on a host a taken part is, makes no difference to a decision.
    """
    unnamed = dict(taken_of)
    renamed: list[Job] = []
    for job in jobs:
        if job.pilot_id in part_of:
            renamed.append(_of_part(job, part_of[job.pilot_id or ""]))
            continue
        if unnamed and job.pilot_id is None and job.state is not JobState.PENDING:
            names: list[str] = []
            for host in job.nodes:
                names += unnamed.pop(host, ())
            if names:
                renamed.append(replace(job, nodes=(*job.nodes, *names)))
                continue
        renamed.append(job)
    return tuple(renamed)


def _of_part(job: Job, name: str) -> Job:
    """Return a pilot's job with its part for its host."""
    entry = _NAMED.get(job.job_id)
    if entry is not None:
        its_job, its_name, renamed = entry
        if its_job is job and its_name == name:
            return renamed
    nodes = (name,) if job.nodes else ()
    required = (name,) if job.required_nodes else ()
    renamed = replace(job, nodes=nodes, required_nodes=required, planned_nodes=())
    if len(_NAMED) >= _MOST_DIVIDED:
        _NAMED.clear()
    _NAMED[job.job_id] = job, name, renamed
    return renamed
