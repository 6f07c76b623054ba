"""An administrator's site and log as the simulated Slurm takes them. Pure.

A ``DescribedSite`` and a ``JobLog`` come in, ``SchedulerSettings`` and ``JobSpec`` go out. Nothing
is rescaled, but that submissions are drawn closer where that is asked for. Jobs that ask for more
than the site has are counted and left out, each cause with its first job.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bftrainer.batch.traces.sacct_jobs import AccountedJob, JobLog
from bftrainer.lab.site.machine import JobSpec, SchedulerSettings
from bftrainer.lab.site.sharing import ANY_TYPE, NodeCapacity, NodeSet, Share, SitePartition
from bftrainer.model.cluster import Node, NodeState
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.generic_resources import by_kind, items_of
from bftrainer.model.hostlist import ParseError
from bftrainer.model.lookups import by_name
from slurm_plugins.described_gpus import as_lending
from slurm_plugins.described_site import DescribedNode, DescribedPartition, DescribedSite
from slurm_plugins.parse import memory_mb_of

HETEROGENEOUS = "Heterogeneous jobs: each component starts as soon as it fits."
PILOTS = "bf"  # the pilots' partition, if the files describe none of those that are left out
NO_LIMIT_S = 30 * 86_400.0  # stands for no limit: backfill plans no further


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """Nodes that the daemon takes for alike."""

    name: str  # gpu:a100:4, or cpu
    nodes: NodeSet
    gpus: int  # of each

    @property
    def n_nodes(self) -> int:
        """Return how many there are."""
        return self.nodes.bit_count()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedJob:
    """A job to be played, and when it really ran; seconds since the begin of the span."""

    spec: JobSpec
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplayedJobs:
    """Jobs of the log that are not played."""

    why: str  # a clause
    jobs: int  # so many
    example: str  # the id of the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A site and its jobs, as they are played."""

    slurm: SchedulerSettings
    node_types: tuple[NodeType, ...]
    gpus: tuple[int, ...]  # of each node
    jobs: tuple[PlayedJob, ...]  # by submission
    span_s: float
    left_out: tuple[UnplayedJobs, ...]
    notes: tuple[str, ...]
    not_modelled: tuple[str, ...]
    lending: tuple[Node, ...] = ()  # the nodes, in order, as they lend GPUs while they are idle

    @property
    def shared_lending(self) -> tuple[Node, ...]:
        """Return the nodes that ordinary jobs share and that would lend GPUs one by one."""
        return tuple(node for node in self.lending if node.lends and node.is_shared)


def replica(
    site: DescribedSite,
    log: JobLog,
    *,
    cycle_s: float,
    closer: float = 1.0,
    ignored: Iterable[str] = (),
) -> Replica:
    """Return the site with its jobs.

    Args:
        site: as its files describe it.
        log: of its accounting.
        cycle_s: how long a cycle of backfill takes.
        closer: submissions are drawn so many times closer together.
        ignored: partitions of pilots.

    Raises:
        UsageError: BFT-4144, no partition is left; BFT-4145, no job of the log can be played.
    """
    without = tuple(ignored)
    builder = _Builder(site, without)
    slurm = builder.slurm(cycle_s)
    jobs, left_out = builder.jobs(log, closer)
    has_components = any("+" in logged.job_id for logged in log.jobs)
    return Replica(
        slurm=slurm,
        node_types=builder.node_types(),
        gpus=tuple(node.n_gpus for node in builder.nodes),
        jobs=tuple(jobs),
        span_s=(log.end_s - log.begin_s) / closer,
        left_out=left_out,
        notes=(*site.notes, *builder.notes, *log.notes),
        not_modelled=(*site.not_modelled, *[HETEROGENEOUS] * has_components),
        lending=builder.lending(without),
    )


class _Builder:
    """Makes the parts of a replica."""

    def __init__(self, site: DescribedSite, ignored: Iterable[str]) -> None:
        self._site, self._scheduler = site, site.scheduler
        without = set(ignored)
        self._partitions = [p for p in site.partitions if p.name not in without and p.nodes]
        if not self._partitions:
            raise UsageError(
                "BFT-4144",
                "The files describe no partition with nodes, besides the pilots' one.",
                "Give a slurm.conf with its NodeName and PartitionName lines, or --scontrol FILE.",
                exit_code=ExitCode.VALIDATION_FAILED,
            )
        in_partitions = set[str]()
        for partition in self._partitions:
            in_partitions.update(partition.nodes)
        self.nodes = [node for node in site.nodes if node.name in in_partitions]
        self._bits = {node.name: 1 << number for number, node in enumerate(self.nodes)}
        self._of_name = by_name(self._partitions)
        n_unused = len(site.nodes) - len(self.nodes)
        self.notes = list[str]()
        if n_unused:
            self.notes.append(f"{n_unused} nodes are of no partition of ordinary jobs: left out.")

    def slurm(self, cycle_s: float) -> SchedulerSettings:
        """Return the settings of the simulated Slurm."""
        described = self._scheduler
        return SchedulerSettings(
            n_nodes=len(self.nodes),
            bf_interval_s=described.bf_interval_s,
            bf_duration_s=cycle_s,
            bf_window_s=described.bf_window_s,
            bf_resolution_s=described.bf_resolution_s,
            bf_max_job_test=described.bf_max_job_test,
            bf_max_job_array_resv=described.bf_max_job_array_resv,
            default_queue_depth=described.default_queue_depth,
            batch_sched_delay_s=described.batch_sched_delay_s,
            sched_min_interval_s=described.sched_min_interval_s,
            sched_interval_s=described.sched_interval_s,
            has_epilog=described.has_epilog,
            capacities=tuple(self._capacities()),
            partitions=tuple(map(self._partition, self._partitions)),
            is_least_loaded_first=described.is_least_loaded_first,
        )

    def _capacities(self) -> Iterator[NodeCapacity]:
        """Yield what nodes have; nothing of a site that gives whole, like nodes only."""
        kinds = {(node.node_type, node.weight) for node in self.nodes}
        if not self._scheduler.are_nodes_shared and len(kinds) == 1:
            return
        for node in self.nodes:
            memory_mb = node.memory_mb * self._scheduler.is_memory_counted
            yield NodeCapacity(
                cpus=node.cpus, memory_mb=memory_mb, gpus=node.gpus, weight=node.weight
            )

    def _partition(self, partition: DescribedPartition) -> SitePartition:
        return SitePartition(
            name=partition.name,
            nodes=sum(self._bits[name] for name in partition.nodes),
            tier=partition.tier,
            is_whole=partition.is_whole,
            max_cpus_per_node=partition.max_cpus_per_node,
        )

    def node_types(self) -> tuple[NodeType, ...]:
        """Return the types of nodes, in the order of their first node."""
        nodes, gpus = dict[str, NodeSet](), dict[str, int]()
        for node in self.nodes:
            nodes[node.node_type] = nodes.get(node.node_type, 0) | self._bits[node.name]
            gpus[node.node_type] = node.n_gpus
        return tuple(NodeType(name=name, nodes=nodes[name], gpus=gpus[name]) for name in nodes)

    def lending(self, pilot_partitions: Sequence[str]) -> tuple[Node, ...]:
        """Return the nodes as they lend GPUs while they are idle."""
        described = {partition.name for partition in self._site.partitions}
        pilots = next((name for name in pilot_partitions if name in described), PILOTS)
        partitions_of = defaultdict[str, list[str]](list)
        for partition in self._site.partitions:
            for name in partition.nodes:
                partitions_of[name].append(partition.name)
        nodes = []
        for node in self.nodes:
            whole = Node(
                name=node.name,
                state=NodeState.IDLE,
                node_type=node.node_type,
                gpus=node.n_gpus,
                cpus=node.cpus,
                memory_mb=node.memory_mb,
                partitions=tuple(partitions_of[node.name]),
            )
            lending = as_lending(
                whole, node.gpus, pilots, self._site.sharing, is_described=pilots in described
            )
            nodes.append(lending)
        return tuple(nodes)

    def jobs(self, log: JobLog, closer: float) -> tuple[list[PlayedJob], tuple[UnplayedJobs, ...]]:
        """Return the jobs that can be played, and those that cannot.

        Raises:
            UsageError: BFT-4145, there is none.
        """
        played, counts, examples = list[PlayedJob](), Counter[str](), dict[str, str]()
        fitting = _Fitting(self._site, self.nodes)
        first_of = dict[str, int]()
        for logged in log.jobs:
            if logged.end_s <= log.begin_s or logged.eligible_s >= log.end_s:
                continue  # beside the time that is played
            partition = self._of_name.get(logged.partition)
            if partition is None and len(self._partitions) == 1 and not logged.partition:
                partition = self._partitions[0]
            try:
                share = self._share(logged, partition)
            except ParseError:
                why = "its AllocTRES or ReqTRES cannot be read"
            else:
                why = fitting.obstacle(logged, partition, share)
            if why or partition is None:
                counts[why] += 1
                examples.setdefault(why, logged.job_id)
                continue
            number = len(played) + 1
            array = first_of.setdefault(logged.array, number) if logged.array else 0
            limit_s = logged.limit_s or partition.max_time_s or NO_LIMIT_S
            job = _played(logged, log.begin_s, closer, limit_s)
            spec = replace(
                job.spec, number=number, array=array, share=share, partition=partition.name
            )
            played.append(replace(job, spec=spec))
        left_out = tuple(
            UnplayedJobs(why=why, jobs=count, example=examples[why])
            for why, count in counts.items()
        )
        if not played:
            reason = ""
            if left_out:
                unplayed, *_ = left_out
                reason = f": {unplayed.why} ({unplayed.example})"
            raise UsageError(
                "BFT-4145",
                f"No job of the log can be played on the described site{reason}.",
                "Give the slurm.conf and the accounting of the same cluster.",
                exit_code=ExitCode.VALIDATION_FAILED,
            )
        return played, left_out

    def _share(self, logged: AccountedJob, partition: DescribedPartition | None) -> Share | None:
        """Return what a job takes of each node; None: whole nodes.

        Raises:
            ParseError: it cannot be read.
        """
        is_whole = partition is None or partition.is_whole
        if is_whole or not self._scheduler.are_nodes_shared or not logged.tres:
            return None
        return share_of(logged.tres, logged.n_nodes, has_memory=self._scheduler.is_memory_counted)


def share_of(tres: str, n_nodes: int, *, has_memory: bool) -> Share:
    """Return the share of each node that resources in all make, rounded up.

    Raises:
        ParseError: they cannot be read.
    """
    values: dict[str, str] = {}
    for item in tres.split(","):
        name, _, value = item.partition("=")
        values[name] = value
    cpus = values.get("cpu", "1")
    if not cpus.isdecimal():
        raise ParseError(f"not a number of CPUs: {cpus[:40]!r}")
    gpus = by_kind(items_of(tres))
    gpu_type = next(filter(None, gpus), ANY_TYPE)
    memory_mb = 0
    if has_memory:
        memory_mb = memory_mb_of(values.get("mem", "0"))
    return Share(
        cpus=max(1, math.ceil(int(cpus) / n_nodes)),
        memory_mb=math.ceil(memory_mb / n_nodes),
        gpus=math.ceil(sum(gpus.values()) / n_nodes),
        gpu_type=gpu_type,
    )


def _played(logged: AccountedJob, begin_s: float, closer: float, limit_s: float) -> PlayedJob:
    """Return a job with its times; what it has in the site is not in it yet."""
    submit_s = logged.eligible_s - begin_s
    waited_s = logged.start_s - logged.eligible_s
    if submit_s > 0.0:
        submit_s /= closer
    run_s = logged.end_s - logged.start_s
    if math.isinf(run_s):
        run_s = limit_s
    start_s = submit_s + waited_s
    spec = JobSpec(
        number=0,
        submit_s=submit_s,
        n_nodes=logged.n_nodes,
        limit_s=max(limit_s, run_s),  # Slurm lets it run on for a while (OverTimeLimit)
        run_s=run_s,
        priority=logged.priority or 0.0,
        user=logged.user or "u",
    )
    return PlayedJob(spec=spec, start_s=start_s, end_s=start_s + run_s)


class _Fitting:
    """The room that the empty site has for jobs."""

    def __init__(self, site: DescribedSite, nodes: Sequence[DescribedNode]) -> None:
        self._of_name: Mapping[str, DescribedNode] = by_name(nodes)
        self._has_memory = site.scheduler.is_memory_counted
        self._enough: dict[tuple[str, Share | None], int] = {}

    def obstacle(
        self, logged: AccountedJob, partition: DescribedPartition | None, share: Share | None
    ) -> str:
        """Return why a job could never start; "": it could."""
        if partition is None:
            return f"the files describe no partition {logged.partition or 'without a name'}"
        key = (partition.name, share)
        if key not in self._enough:
            self._enough[key] = sum(
                self._fits(self._of_name[name], partition, share) for name in partition.nodes
            )
        if logged.n_nodes > len(partition.nodes):
            return f"partition {partition.name} has only {len(partition.nodes)} nodes"
        if logged.n_nodes > self._enough[key]:
            return f"too few nodes of partition {partition.name} have what it asks of each"
        return ""

    def _fits(
        self, node: DescribedNode, partition: DescribedPartition, share: Share | None
    ) -> bool:
        if share is None:
            return True
        gpus = node.n_gpus
        if share.gpu_type:
            gpus = dict(node.gpus).get(share.gpu_type, 0)
        most_cpus = min(node.cpus, partition.max_cpus_per_node or node.cpus)
        has_memory = not self._has_memory or share.memory_mb <= node.memory_mb
        return share.cpus <= most_cpus and has_memory and share.gpus <= gpus
