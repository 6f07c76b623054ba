"""A simulated machine as the snapshots that the Slurm adapter would have made of it.

Nodes that jobs share show their GPUs as lent one by one, if that is asked for: each with its
proportion of the node's CPUs and memory, or with what the site's settings leave to each, as many as
have these free. Where jobs have more than their part of the CPUs, GPUs are shown with fewer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bftrainer.lab.site.machine import Machine, Preemptable, SchedulerSettings, SiteJob
from bftrainer.lab.site.sharing import NodeCapacity, NodeSet
from bftrainer.lab.site.timeline import positions
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
)
from slurm_plugins.lending import SMALLEST_SHARE

EPOCH_S = 1_700_000_040.0  # of the begin of a run: a whole minute
ORDINARY, PILOTS = "batch", "bf"
PARTITIONS = (ORDINARY, PILOTS)
ORDINARY_TIER = 10  # and above; the pilots' is 0
CPUS = 64
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
        nodes = [self._node(k) for k in range(machine.settings.n_nodes)]
        self._nodes = {
            state: [dataclasses.replace(node, state=state) for node in nodes] for state in STATES
        }
        self._partitions = _partitions_of(machine.settings)
        self._known: dict[int, tuple[Any, Any]] = {}
        self._reservations = tuple(
            Reservation(
                name=f"maint{k}",
                start_s=EPOCH_S + one.start_s,
                end_s=EPOCH_S + one.end_s,
                nodes=self.names(one.nodes),
                is_maintenance=True,
            )
            for k, one in enumerate(machine.maintenance)
        )

    def _node(self, k: int) -> Node:
        settings = self._machine.settings
        partitions: tuple[str, ...] = PARTITIONS
        if settings.partitions:
            own = (p.name for p in settings.partitions if p.nodes >> k & 1)
            partitions = tuple(sorted((*own, PILOTS)))
        name, state = self._names[k], NodeState.IDLE
        if not settings.capacities:
            return Node(name=name, state=state, partitions=partitions, cpus=CPUS)
        capacity = settings.capacities[k]
        kinds = [f"gpu:{kind}:{number}" for kind, number in capacity.gpus if number]
        whole = [p.is_whole for p in settings.partitions if p.nodes >> k & 1]
        is_shared = self._shows_gpus and not (whole and all(whole))
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

    def look(self, cycle: tuple[float, float] | None) -> Any:
        """Return what a look shows now."""
        machine, settings = self._machine, self._machine.settings
        shown = SchedulerCycle(ended_s=None)
        if cycle is not None:
            began_s, ended_s = (math.floor(EPOCH_S + at_s) for at_s in cycle)
            shown = SchedulerCycle(ended_s=float(ended_s), began_s=float(began_s))
        known, self._known = self._known, {}
        ordinary = [*machine.pending, *machine.running.values()]
        jobs = [self._known_job(job, known) for job in ordinary]
        jobs += [self._pilot(mine) for mine in machine.preemptable.values()]
        return Snapshot(
            taken_at_s=EPOCH_S + machine.now_s,
            nodes=self._node_states(),
            jobs=tuple(jobs),
            reservations=self._reservations,
            cycle=shown,
            plan_window_s=settings.bf_window_s,
            plan_resolution_s=settings.bf_resolution_s,
            pilots_come_last=True,
            partitions=self._partitions,
        )

    def _node_states(self) -> tuple[Any, ...]:
        machine = self._machine
        planned = 0
        for job in machine.pending:
            planned |= job.planned
        used = machine.busy | machine.held
        found = list(self._nodes[NodeState.ALLOCATED])
        for state, some in (
            (NodeState.IDLE, machine.every & ~used),
            (NodeState.PLANNED, planned & ~used),
            (NodeState.RESERVED, machine.closed & ~used),
            (NodeState.COMPLETING, machine.completing & ~used),
        ):
            alike = self._nodes[state]
            for k in positions(some):
                found[k] = alike[k]
        for k, left in machine.occupancy.left_on(used).items():
            if left.cpus > 0:
                free = NodeLeft(cpus=left.cpus, memory_mb=left.memory_mb, gpus=left.gpus)
                found[k] = dataclasses.replace(found[k], left=free)
        if self._shows_gpus:
            for k in positions(used):
                found[k] = self._with_free_gpus(k, found[k])
        return tuple(found)

    def _with_free_gpus(self, k: int, node: Node) -> Node:
        """Return a node in use with those of its GPUs that can be lent now."""
        if not node.lends:
            return node
        machine = self._machine
        counts = dict.fromkeys((lent.gpu_type for lent in node.lends), 0)
        if node.left is not None:
            counts |= machine.occupancy.gpus_left(k)
        lends = with_free(node.lends, counts, node.left or NodeLeft(cpus=0), node.memory_mb)
        shown = dataclasses.replace(node, lends=lends)
        before = self._parted.get(k)
        # The same object where nothing has changed: the decision keeps its parts by it.
        if before == shown:
            return before
        self._parted[k] = shown
        return shown

    def names(self, some: NodeSet) -> tuple[str, ...]:
        """Return the names of nodes."""
        return tuple([self._names[k] for k in positions(some)])

    def _known_job(self, job: SiteJob, known: Mapping[int, tuple[Any, Any]]) -> Any:
        key, number = (job.start_s, job.planned_s, job.planned, job.reason), job.spec.number
        entry = known.get(number)
        known_key, view = entry if entry is not None else (None, None)
        if known_key != key:
            array = job.spec.array
            job_id = f"{array}_{number - array}" if array else str(number)
            view = self.job(job, job_id, is_waiting=not job.nodes)
        self._known[number] = (key, view)
        return view

    def job(self, job: SiteJob, job_id: str, *, is_waiting: bool) -> Any:
        """Return an ordinary job."""
        spec, start_s = job.spec, job.planned_s if is_waiting else job.start_s
        array, is_task, _ = job_id.partition("_")
        shown = Job(
            job_id=job_id,
            user=spec.user,
            partitions=(spec.partition or ORDINARY,),
            family=array if is_task else "",
            state=JobState.PENDING if is_waiting else JobState.RUNNING,
            n_nodes=spec.n_nodes,
            time_limit_s=spec.limit_s,
            reason=(spec.held_by or job.reason) if is_waiting else "",
            priority=spec.priority,
            submit_s=float(math.floor(EPOCH_S + spec.submit_s)),
            start_s=None if start_s is None else EPOCH_S + start_s,
            nodes=() if is_waiting else self.names(job.nodes),
            planned_nodes=self.names(job.planned),
        )
        if not self._machine.settings.capacities:
            return shown
        if spec.share is None:  # whole nodes, of which Slurm says one CPU each
            return dataclasses.replace(shown, cpus=spec.n_nodes, cpus_per_node=1)
        return dataclasses.replace(
            shown,
            cpus=spec.share.cpus * spec.n_nodes,
            cpus_per_node=spec.share.cpus,
            memory_mb=spec.share.memory_mb,
            gpus_per_node=spec.share.gpus,
            gpu_type=spec.share.gpu_type,
            can_share=not self._machine.is_whole(spec),
        )

    def _pilot(self, mine: Preemptable) -> Any:
        is_waiting = mine.start_s is None
        return Job(
            job_id=f"9{mine.name[1:]}",
            user="bft",
            partitions=(PILOTS,),
            state=JobState.PENDING if is_waiting else JobState.RUNNING,
            n_nodes=1,
            time_limit_s=mine.limit_s,
            start_s=None if mine.start_s is None else EPOCH_S + mine.start_s,
            nodes=self.names(mine.at),
            pilot_id=mine.name,
            required_nodes=self.names(mine.node),
            gpus_per_node=0 if mine.share is None else mine.share.gpus,
        )


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
    lends: Iterable[LentGpus], counts: Mapping[str, int], left: NodeLeft, memory_mb: int
) -> tuple[LentGpus, ...]:
    """Return GPUs with as many of them free as have their CPUs and memory free.

    Args:
        lends: of a node.
        counts: its free GPUs by type.
        left: what is free of it in all.
        memory_mb: of the node; 0: memory is not allocated to jobs.
    """
    shown: list[LentGpus] = []
    free_cpus, free_mb = left.cpus, left.memory_mb
    n_unused = sum(counts.values())
    for lent in lends:
        cpus = lent.cpus
        if n_unused:  # as the adapter divides what jobs have left
            least = max(1, math.ceil(SMALLEST_SHARE * cpus))
            cpus = max(least, min(cpus, left.cpus // n_unused))
        n_free = min(counts[lent.gpu_type], free_cpus // cpus)
        if memory_mb and lent.memory_mb:
            n_free = min(n_free, free_mb // lent.memory_mb)
        n_free = max(0, n_free)
        free_cpus -= n_free * cpus
        free_mb -= n_free * lent.memory_mb
        shown.append(dataclasses.replace(lent, n_free=n_free, cpus=cpus))
    return tuple(shown)
