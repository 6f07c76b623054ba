"""A simulated machine as the snapshots that the Slurm adapter would have made of it.

Nodes that jobs share show their GPUs as lent one by one, if that is asked for: each with its
proportion of the node's CPUs and memory, or with what the site's settings leave to each, as many as
have these free. Where jobs have more than their part of the CPUs, GPUs are shown with fewer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bftrainer.batch.commands import SHORTEST_LIMIT_S
from bftrainer.lab.site.machine import Machine, Preemptable, SchedulerSettings, SiteJob
from bftrainer.lab.site.sharing import NodeCapacity, NodeSet
from bftrainer.lab.site.timeline import positions, union_of
from bftrainer.model.cluster import (
    Job,
    JobState,
    LentGpus,
    Node,
    NodeLeft,
    NodeState,
    Partition,
    Reservation,
    SchedulerCycle,
    Snapshot,
    node_of,
)
from slurm_plugins.lending import SMALLEST_SHARE

EPOCH_S = 1_700_000_040.0  # of the begin of a run: a whole minute
ORDINARY, PILOTS = "batch", "bf"
PARTITIONS = (ORDINARY, PILOTS)
ORDINARY_TIER = 10  # and above; the pilots' is 0
CPUS = 64
PILOT_JOBS = "9"  # begins the numbers of pilots' jobs: no ordinary job has as many digits
STATES = (
    NodeState.IDLE,
    NodeState.PLANNED,
    NodeState.ALLOCATED,
    NodeState.RESERVED,
    NodeState.COMPLETING,
)


def _partitions_of(settings: SchedulerSettings) -> tuple[Partition, ...]:
    if not settings.partitions:
        return (Partition(name=ORDINARY, tier=ORDINARY_TIER), Partition(name=PILOTS))
    ordinary = [
        Partition(name=p.name, tier=ORDINARY_TIER + p.tier, is_exclusive=p.is_whole)
        for p in settings.partitions
    ]
    return (*ordinary, Partition(name=PILOTS))


class _JobLook(NamedTuple):
    """A job as it was shown, and what would have to change for another look of it."""

    state: tuple[float | None, float | None, NodeSet, str]  # start, plan, planned nodes, reason
    job: Job


class MachineLooks:
    """A machine as snapshots; what has not changed is made once."""

    def __init__(
        self, machine: Machine, *, shows_gpus: bool = False, lending: Sequence[Node] = ()
    ) -> None:
        """Begin with a machine of which nothing was shown yet.

        Args:
            machine: to be shown.
            shows_gpus: nodes show their GPUs as lent one by one.
            lending: the nodes as they lend GPUs while they are idle, in the machine's order;
                (): each GPU with its proportion, where a partition's jobs may share the node.
        """
        self._machine, self._shows_gpus, self._lending = machine, shows_gpus, lending
        self._parted: dict[int, Node] = {}  # the nodes in use as they were last shown
        self._names = [f"n{k:05d}" for k in range(machine.settings.n_nodes)]
        nodes = list(map(self._node, range(machine.settings.n_nodes)))
        self._nodes: dict[NodeState, list[Node]] = {}
        for state in STATES:
            self._nodes[state] = [dataclasses.replace(node, state=state) for node in nodes]
        self._partitions = _partitions_of(machine.settings)
        self._known: dict[int, _JobLook] = {}  # ordinary jobs of the last look, by number
        self._reservations = tuple(
            Reservation(
                name=f"maint{k}",
                start_s=EPOCH_S + window.start_s,
                end_s=EPOCH_S + window.end_s,
                nodes=self.names(window.nodes),
                is_maintenance=True,
            )
            for k, window in enumerate(machine.maintenance)
        )

    def _node(self, k: int) -> Node:
        settings = self._machine.settings
        partitions: tuple[str, ...] = PARTITIONS
        node_partitions = [p for p in settings.partitions if p.nodes >> k & 1]
        if settings.partitions:
            partitions = tuple(sorted((*(p.name for p in node_partitions), PILOTS)))
        name, state = self._names[k], NodeState.IDLE
        if not settings.capacities:
            return Node(name=name, state=state, partitions=partitions, cpus=CPUS)
        capacity = settings.capacities[k]
        kinds = [f"gpu:{kind}:{number}" for kind, number in capacity.gpus if number]
        has_lone_jobs = bool(node_partitions) and all(p.is_whole for p in node_partitions)
        is_shared = self._shows_gpus and not has_lone_jobs
        lends: tuple[LentGpus, ...] = ()
        why_whole = ""
        if self._shows_gpus and self._lending:
            like = self._lending[k]
            lends, is_shared, why_whole = like.lends, like.is_shared, like.why_whole
        elif self._shows_gpus:
            lends = lent_gpus(capacity)
        return Node(
            name=name,
            state=state,
            partitions=partitions,
            cpus=capacity.cpus,
            memory_mb=capacity.memory_mb,
            gpus=capacity.n_gpus,
            node_type=",".join(kinds) or "cpu",
            lends=lends,
            is_shared=is_shared,
            why_whole=why_whole,
        )

    def look(self, cycle: tuple[float, float] | None) -> Snapshot:
        """Return what a look shows now."""
        machine, settings = self._machine, self._machine.settings
        last_cycle = SchedulerCycle(ended_s=None)
        if cycle is not None:
            began_s, ended_s = cycle
            last_cycle = SchedulerCycle(
                ended_s=float(math.floor(EPOCH_S + ended_s)),
                began_s=float(math.floor(EPOCH_S + began_s)),
            )
        before, self._known = self._known, {}
        ordinary = [*machine.pending, *machine.running.values()]
        jobs = [self._known_job(job, before) for job in ordinary]
        jobs += map(self._pilot, machine.preemptable.values())
        return Snapshot(
            taken_at_s=EPOCH_S + machine.now_s,
            nodes=self._node_states(),
            jobs=tuple(jobs),
            reservations=self._reservations,
            cycle=last_cycle,
            plan_window_s=settings.bf_window_s,
            plan_resolution_s=settings.bf_resolution_s,
            pilots_come_last=True,
            partitions=self._partitions,
            shortest_limit_s=SHORTEST_LIMIT_S,
        )

    def _node_states(self) -> tuple[Node, ...]:
        machine = self._machine
        planned_nodes = union_of(job.planned for job in machine.pending)
        in_use = machine.busy | machine.held
        nodes = list(self._nodes[NodeState.ALLOCATED])
        # A later state wins where a node is in several of these sets.
        for state, members in (
            (NodeState.IDLE, machine.every & ~in_use),
            (NodeState.PLANNED, planned_nodes & ~in_use),
            (NodeState.RESERVED, machine.closed & ~in_use),
            (NodeState.COMPLETING, machine.completing & ~in_use),
        ):
            alike = self._nodes[state]
            for k in positions(members):
                nodes[k] = alike[k]
        for k, share in machine.occupancy.left_on(in_use).items():
            if share.cpus > 0:
                free = NodeLeft(cpus=share.cpus, memory_mb=share.memory_mb, gpus=share.gpus)
                nodes[k] = dataclasses.replace(nodes[k], left=free)
        if self._shows_gpus:
            for k in positions(in_use):
                nodes[k] = self._with_free_gpus(k, nodes[k])
        return tuple(nodes)

    def _with_free_gpus(self, k: int, node: Node) -> Node:
        """Return a node in use with those of its GPUs that can be lent now."""
        if not node.lends:
            return node
        machine = self._machine
        counts = dict.fromkeys((lent.gpu_type for lent in node.lends), 0)
        if node.left is not None:
            counts |= machine.occupancy.gpus_left(k)
        lends = with_free(node.lends, counts, node.left or NodeLeft(cpus=0), node.memory_mb)
        node_now = dataclasses.replace(node, lends=lends)
        before = self._parted.get(k)
        # The same object where nothing has changed: the decision keeps its parts by it.
        if before == node_now:
            return before
        self._parted[k] = node_now
        return node_now

    def names(self, nodes: NodeSet) -> tuple[str, ...]:
        """Return the names of nodes."""
        return tuple([self._names[k] for k in positions(nodes)])

    def _known_job(self, job: SiteJob, before: Mapping[int, _JobLook]) -> Job:
        """Return an ordinary job: the same object as in the last look, unless it has changed."""
        state, number = (job.start_s, job.planned_s, job.planned, job.reason), job.spec.number
        job_look = before.get(number)
        if job_look is None or job_look.state != state:
            array, job_id = job.spec.array, str(number)
            if array:
                job_id = f"{array}_{number - array}"
            job_look = _JobLook(state, self.job(job, job_id, is_waiting=not job.nodes))
        self._known[number] = job_look
        return job_look.job

    def job(self, job: SiteJob, job_id: str, *, is_waiting: bool) -> Job:
        """Return an ordinary job."""
        spec, state, start_s, reason = job.spec, JobState.RUNNING, job.start_s, ""
        if is_waiting:
            state, start_s, reason = JobState.PENDING, job.planned_s, spec.held_by or job.reason
        array, is_task, _ = job_id.partition("_")
        view = Job(
            job_id=job_id,
            user=spec.user,
            partitions=(spec.partition or ORDINARY,),
            family=array if is_task else "",
            state=state,
            n_nodes=spec.n_nodes,
            time_limit_s=spec.limit_s,
            reason=reason,
            priority=spec.priority,
            submit_s=float(math.floor(EPOCH_S + spec.submit_s)),
            start_s=_since_epoch(start_s),
            nodes=() if is_waiting else self.names(job.nodes),
            planned_nodes=self.names(job.planned),
        )
        if not self._machine.settings.capacities:
            return view
        if spec.share is None:  # whole nodes, of which Slurm says one CPU each
            return dataclasses.replace(view, cpus=spec.n_nodes, cpus_per_node=1)
        return dataclasses.replace(
            view,
            cpus=spec.share.cpus * spec.n_nodes,
            cpus_per_node=spec.share.cpus,
            memory_mb=spec.share.memory_mb,
            gpus_per_node=spec.share.gpus,
            gpu_type=spec.share.gpu_type,
            can_share=not self._machine.is_whole(spec),
        )

    def _pilot(self, mine: Preemptable) -> Job:
        return Job(
            job_id=job_id_of(mine.name),
            user="bft",
            partitions=(PILOTS,),
            state=JobState.PENDING if mine.start_s is None else JobState.RUNNING,
            n_nodes=1,
            time_limit_s=mine.limit_s,
            start_s=_since_epoch(mine.start_s),
            nodes=self.names(mine.at),
            pilot_id=mine.name,
            required_nodes=self.names(mine.node),
            gpus_per_node=0 if mine.share is None else mine.share.gpus,
        )


def job_id_of(pilot_id: str) -> str:
    """Return the job of a pilot."""
    return f"{PILOT_JOBS}{pilot_id[1:]}"


def pilot_id_of(job_id: str) -> str:
    """Return the pilot of a job."""
    return f"p{job_id.removeprefix(PILOT_JOBS)}"


def node_number(name: str) -> int:
    """Return which node of the machine a name means, of it or of a part of it."""
    return int(node_of(name)[1:])


def _since_epoch(at_s: float | None) -> float | None:
    """Return a time of the run as seconds since the epoch; None: it is not known."""
    return None if at_s is None else EPOCH_S + at_s


def lent_gpus(capacity: NodeCapacity) -> tuple[LentGpus, ...]:
    """Return the GPUs of an idle node as it lends them, each with its proportion of the rest."""
    if not capacity.n_gpus or capacity.cpus < capacity.n_gpus:
        return ()
    return tuple(
        LentGpus(
            gpu_type=kind,
            n_gpus=number,
            n_free=number,
            cpus=capacity.cpus // capacity.n_gpus,
            memory_mb=capacity.memory_mb // capacity.n_gpus,
        )
        for kind, number in capacity.gpus
        if number
    )


def with_free(
    lends: Iterable[LentGpus], counts: Mapping[str, int], remainder: NodeLeft, memory_mb: int
) -> tuple[LentGpus, ...]:
    """Return GPUs with as many of them free as have their CPUs and memory free.

    Args:
        lends: of a node.
        counts: its free GPUs by type.
        remainder: what is free of it in all.
        memory_mb: of the node; 0: memory is not allocated to jobs.
    """
    lends_now: list[LentGpus] = []
    free_cpus, free_mb = remainder.cpus, remainder.memory_mb
    n_unused = sum(counts.values())
    for lent in lends:
        cpus = lent.cpus
        if n_unused:  # as the adapter divides what jobs have left
            smallest = max(1, math.ceil(SMALLEST_SHARE * cpus))
            cpus = max(smallest, min(cpus, remainder.cpus // n_unused))
        n_free = min(counts[lent.gpu_type], free_cpus // cpus)
        if memory_mb and lent.memory_mb:
            n_free = min(n_free, free_mb // lent.memory_mb)
        n_free = max(0, n_free)
        free_cpus -= n_free * cpus
        free_mb -= n_free * lent.memory_mb
        lends_now.append(dataclasses.replace(lent, n_free=n_free, cpus=cpus))
    return tuple(lends_now)
