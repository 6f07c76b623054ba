"""The requests of a pending job as sets of nodes of this cluster. Pure.

``models`` uses ``Requests`` for pending ordinary jobs. It judges only what does not depend on other
jobs. Parts of a request that could not be read (``Job.unclear``) are ignored: an unnecessary
release costs a short pause, a missing one costs a job a cycle.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter

from bftrainer.model.census import NodeCensus, whole, why_it_waits
from bftrainer.model.cluster import Job, Node, NodeLeft, Rule, Way, meets
from bftrainer.model.lookups import by_name
from bftrainer.model.node_request import gpus_of_type
from bftrainer.model.node_sets import NodeSet
from bftrainer.model.queue import JobNeeds, NodeDemand

# Two jobs with equal values of these are alike to every scheduler.
ASKS = attrgetter(
    *("partitions", "n_nodes", "n_nodes_max", "time_limit_s", "time_limit_min_s", "wants"),
    *("prefers", "required_nodes", "excluded_nodes", "waits_for", "reservations", "can_share"),
    *("cpus", "cpus_per_node", "memory_mb", "memory_per_cpu_mb", "gpus_per_node", "gpus"),
    *("reason", "is_entitled", "begin_s", "together", "gpu_type", "memory_per_gpu_mb"),
)
MOST_WAYS = 64  # of one job: partitions times alternatives of its constraint
ANY = Way()


class Requests:
    """The requests of a snapshot's jobs, computed once for identical jobs such as array tasks."""

    def __init__(self, census: NodeCensus, now_s: float) -> None:
        """Index partitions, reservations and jobs that start together."""
        snapshot, sets = census.snapshot, census.sets
        self._sets, self._now_s = sets, now_s
        self._partitions = by_name(snapshot.partitions)
        self._reservations: list[tuple[str, float, NodeSet]] = []
        for reservation in snapshot.reservations or ():
            if reservation.end_s > now_s:
                nodes = sets.named(reservation.nodes)
                self._reservations.append((reservation.name, reservation.start_s, nodes))
        self._together: dict[str, list[Job]] = {}
        for job in census.pending_jobs:
            if job.together:
                self._together.setdefault(job.together, []).append(job)
        self._known: dict[object, JobNeeds] = {}

    def of(self, job: Job) -> JobNeeds:
        """Return what a job requests; for jobs that start together the first stands for all."""
        parts = sorted(self._together.get(job.together, [job]), key=_by_id)
        if job.job_id != parts[0].job_id:
            return JobNeeds(why_not=f"It starts together with job {parts[0].job_id}.")
        alike = ASKS(job)
        if alike not in self._known:
            self._known[alike] = _joint(list(map(self._of, parts)))
        return self._known[alike]

    def _of(self, job: Job) -> JobNeeds:
        refusals = [self._why_refused(job, name) for name in job.partitions]
        why = why_it_waits(job, self._now_s)
        if not why and refusals and all(refusals):
            why = refusals[0]
        if why:
            return JobNeeds(why_not=why)
        names = [name for name, why in zip(job.partitions, refusals, strict=True) if not why]
        longest_s: list[float] = []
        shares = job.can_share
        for name in job.partitions:
            partition = self._partitions.get(name)
            if partition is not None and partition.time_limit_s is not None:
                longest_s.append(partition.time_limit_s)
            if partition is not None and partition.is_exclusive:
                shares = False
        limit_s = job.time_limit_min_s
        if limit_s is None:
            limit_s = job.time_limit_s
        if limit_s is None and longest_s and len(longest_s) == len(job.partitions):
            limit_s = min(longest_s)
        allowed_nodes = self._allowed(job, limit_s)
        described = 0
        if job.prefers:
            described = self._sets.where(lambda node: bool(node.features))

        def ways_of(wants: Iterable[Way], among: NodeSet) -> list[tuple[NodeDemand, ...]]:
            ways: list[tuple[NodeDemand, ...]] = []
            choices = itertools.product(names or [""], wants)
            for name, want in itertools.islice(choices, MOST_WAYS):
                ways += self._ways(job, among, name, want, shares=shares)
            return ways

        preferred_ways = ways_of(job.prefers, allowed_nodes & described)
        other_ways = ways_of(job.wants or (ANY,), allowed_nodes)
        if not (preferred_ways or other_ways):
            return JobNeeds(why_not="No node of this cluster meets its request.")
        return JobNeeds(
            ways=tuple(dict.fromkeys((*preferred_ways, *other_ways))),
            n_preferred=len(dict.fromkeys(preferred_ways)),
            limit_s=limit_s,
        )

    def _why_refused(self, job: Job, name: str) -> str:
        """Say why a partition never starts the job; limits apply only before it was evaluated."""
        partition = self._partitions.get(name)
        if partition is None:
            return f"There is no node in partition {name}." if self._partitions else ""
        if not partition.can_start:
            return f"Partition {name} starts no jobs."
        if job.reason:  # the batch system has evaluated and accepted it
            return ""
        shortest_s = job.time_limit_min_s or job.time_limit_s
        if partition.time_limit_s is not None and (shortest_s or 0.0) > partition.time_limit_s:
            return f"Its time limit is beyond that of partition {name}."
        if partition.n_nodes_max is not None and job.n_nodes > partition.n_nodes_max:
            return f"It asks for more nodes than partition {name} allows."
        return ""

    def _allowed(self, job: Job, limit_s: float | None) -> NodeSet:
        """Return the nodes that neither the job nor, if it has one, a reservation excludes.

        Jobs without a reservation are kept off reservations by the plan (``backfill``).
        """
        nodes_allowed = self._sets.where(lambda _: True) & ~self._sets.named(job.excluded_nodes)
        if not job.reservations:
            return nodes_allowed
        for name, start_s, nodes in self._reservations:
            if name in job.reservations:
                nodes_allowed &= nodes
            elif limit_s is not None and self._now_s + limit_s > start_s:
                nodes_allowed &= ~nodes
        return nodes_allowed

    def _ways(
        self, job: Job, allowed: NodeSet, partition: str, wanted: Way, *, shares: bool
    ) -> Iterator[tuple[NodeDemand, ...]]:
        """State one alternative as demands, for each size; nothing: too few such nodes exist."""
        sets, required = self._sets, self._sets.named(job.required_nodes)
        if required.bit_count() < len(set(job.required_nodes)) or required & ~allowed:
            return
        # Not both, lest a startable job be refused.
        counted_rules = wanted.counted
        if required:
            counted_rules = ()
        kinds: list[tuple[Node, NodeSet]] = []
        for node, members in sets.kinds:
            if members & allowed and _is_one(node, partition, wanted):
                kinds.append((node, members & allowed))
        n_required, n_counted = required.bit_count(), 0
        for _, count in counted_rules:
            n_counted += count
        for size in _sizes(job, [node for node, _ in kinds]):
            n_nodes = max(size, n_required, n_counted)
            share = _share(job, n_nodes)
            enough = [(n, members) for n, members in kinds if _has_room(n, share, job.gpu_type)]
            among = [(required, n_required)]
            for rule, count in counted_rules:
                nodes = _all(enough, rule) & ~required
                among.append((nodes, count))
            among.append((_all(enough, ()) & ~required, n_nodes - n_required - n_counted))
            part: NodeLeft | None = None
            if shares:
                part = share
            demands: list[NodeDemand] = []
            is_met = True
            for nodes, count in among:
                if count > 0:
                    is_met = is_met and nodes.bit_count() >= count
                    demands.append(NodeDemand(nodes, count, 0, part, job.gpu_type))
            if is_met:
                n_more = max(0, (job.n_nodes_max or 0) - n_nodes)
                demands[-1] = replace(demands[-1], n_more=n_more)
                yield tuple(demands)


def _joint(requests: list[JobNeeds]) -> JobNeeds:
    """Combine the requests of jobs that start together; the limit is the longest."""
    if len(requests) == 1:
        return requests[0]
    for request in requests:
        if request.why_not:
            return request
    limit_s: float | None = 0.0
    for request in requests:
        if request.limit_s is None or limit_s is None:
            limit_s = None
        else:
            limit_s = max(limit_s, request.limit_s)
    ways: list[tuple[NodeDemand, ...]] = []
    choices = itertools.product(*[request.ways for request in requests])
    for way in itertools.islice(choices, MOST_WAYS):
        demands = itertools.chain(*way)
        ways.append(tuple(demands))
    return JobNeeds(ways=tuple(ways), limit_s=limit_s)


def _by_id(job: Job) -> tuple[int, str]:
    return len(job.job_id), job.job_id


def _is_one(node: Node, partition: str, wanted: Way) -> bool:
    """Return whether a node is in the partition and has the wanted features, if any are known."""
    if partition and node.partitions and partition not in node.partitions:
        return False
    return not node.features or meets(node.features, wanted.everywhere)


def _has_room(node: Node, share: NodeLeft, gpu_type: str) -> bool:
    """Return whether a node has as much, with GPUs of that type ("": any)."""
    if gpu_type and gpus_of_type(node.node_type, gpu_type) < share.gpus:
        return False
    return whole(node).has_room_for(share)


def _all(kinds: Iterable[tuple[Node, NodeSet]], rule: Rule) -> NodeSet:
    nodes = 0
    for node, members in kinds:
        if meets(node.features, rule):
            nodes |= members
    return nodes


def _sizes(job: Job, kinds: Iterable[Node]) -> list[int]:
    """Return the node counts over which the totals of a job may be spread evenly.

    The count that suffices on each kind of node is enough: between two of them no further kind
    qualifies.
    """
    if not (job.cpus or job.gpus):
        return [job.n_nodes]
    sizes = set[int]()
    for node in kinds:
        cpus, gpus = node.cpus, node.gpus
        if job.memory_per_cpu_mb and node.memory_mb:
            cpus = min(cpus, node.memory_mb // job.memory_per_cpu_mb)
        if job.memory_per_gpu_mb and node.memory_mb:
            gpus = min(gpus, node.memory_mb // job.memory_per_gpu_mb)
        if not ((job.cpus and not cpus) or (job.gpus and not gpus)):
            n_gpus = math.ceil(job.gpus / max(1, gpus))
            sizes.add(max(job.n_nodes, math.ceil(job.cpus / max(1, cpus)), n_gpus))
    return sorted(sizes)


def _share(job: Job, n_nodes: int) -> NodeLeft:
    """Return what it requests on each of ``n_nodes`` nodes."""
    cpus = max(math.ceil(job.cpus / n_nodes), job.cpus_per_node)
    gpus = max(math.ceil(job.gpus / n_nodes), job.gpus_per_node)
    by_unit_mb = max(job.memory_per_cpu_mb * cpus, job.memory_per_gpu_mb * gpus)
    return NodeLeft(cpus=cpus, memory_mb=max(job.memory_mb, by_unit_mb), gpus=gpus)
