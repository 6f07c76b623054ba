"""What a pending job asks for, as sets of nodes of this cluster; or why it cannot start.

Called by ``printed`` for pending ordinary jobs. Only what does not depend on other jobs is
judged here. What nobody could read of a job (``Job.unclear``) is no condition: a node given
back in vain costs a short pause, one kept by mistake costs somebody's job a cycle.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from operator import attrgetter

from bftrainer.model.cluster import Job, Node, NodeLeft, Snapshot
from bftrainer.model.features import Rule, Way, meets
from bftrainer.queue.model import JobNeeds, NodeDemand
from bftrainer.queue.nodesets import NodeSet, NodeSets
from bftrainer.queue.waiting import pending_jobs, why_it_waits

# What a job asks for: two jobs of which this is the same are alike to every scheduler.
ASKS = attrgetter(
    *("partitions", "n_nodes", "n_nodes_max", "time_limit_s", "time_limit_min_s", "wants"),
    *("required_nodes", "excluded_nodes", "waits_for", "reservations", "can_share"),
    *("cpus", "cpus_per_node", "memory_mb", "memory_per_cpu_mb", "gpus_per_node", "gpus"),
    *("reason", "is_entitled", "begin_s", "together"),
)
MOST_WAYS = 64  # of one job: partitions, times the choices of its constraint
ANY = Way()


class Requests:
    """What the jobs of a look ask for; those that are alike, tasks of an array above all, once."""

    def __init__(self, snapshot: Snapshot, sets: NodeSets, now_s: float) -> None:
        """Judge them against this."""
        self._sets, self._now_s = sets, now_s
        self._partitions = {partition.name: partition for partition in snapshot.partitions}
        self._reservations = [
            (one.name, one.start_s, sets.named(one.nodes))
            for one in snapshot.reservations or ()
            if one.end_s > now_s
        ]
        self._together: dict[str, list[Job]] = {}
        for job in pending_jobs(snapshot):
            if job.together:
                self._together.setdefault(job.together, []).append(job)
        self._known: dict[object, JobNeeds] = {}

    def of(self, job: Job) -> JobNeeds:
        """Say what a job asks for; of several that start together the first for all."""
        parts = sorted(self._together.get(job.together, [job]), key=_by_id)
        if job.job_id != parts[0].job_id:
            return JobNeeds(why_not=f"It starts together with job {parts[0].job_id}.")
        alike = ASKS(job)
        if alike not in self._known:
            self._known[alike] = _joint([self._of(part) for part in parts])
        return self._known[alike]

    def _of(self, job: Job) -> JobNeeds:
        refused = [self._why_refused(job, name) for name in job.partitions]
        all_refused = refused[0] if all(refused) and refused else ""
        if why := why_it_waits(job, self._now_s) or all_refused:
            return JobNeeds(why_not=why)
        names = [name for name, why in zip(job.partitions, refused, strict=True) if not why]
        partitions = [self._partitions[name] for name in job.partitions if name in self._partitions]
        longest_s = [one.time_limit_s for one in partitions if one.time_limit_s is not None]
        are_known = partitions and len(longest_s) == len(job.partitions)
        said_s = job.time_limit_s if job.time_limit_min_s is None else job.time_limit_min_s
        limit_s = min(longest_s) if said_s is None and are_known else said_s
        allowed = self._allowed(job, limit_s)
        shares = job.can_share and not any(one.is_exclusive for one in partitions)
        choices = itertools.product(names or [""], job.wants or (ANY,))
        ways = [
            way
            for name, wanted in itertools.islice(choices, MOST_WAYS)
            for way in self._ways(job, allowed, name, wanted, shares=shares)
        ]
        if not ways:
            return JobNeeds(why_not="No node of this cluster is what it asks for.")
        return JobNeeds(ways=tuple(dict.fromkeys(ways)), limit_s=limit_s)

    def _why_refused(self, job: Job, name: str) -> str:
        """Say why a partition never starts the job; one that was put in line is not doubted."""
        partition = self._partitions.get(name)
        if partition is None:
            return f"There is no node in partition {name}." if self._partitions else ""
        if not partition.can_start:
            return f"Partition {name} starts no jobs."
        if job.reason:  # it was looked at, and entitled
            return ""
        shortest_s = job.time_limit_min_s or job.time_limit_s
        if partition.time_limit_s is not None and (shortest_s or 0.0) > partition.time_limit_s:
            return f"Its time limit is beyond that of partition {name}."
        if partition.n_nodes_max is not None and job.n_nodes > partition.n_nodes_max:
            return f"It asks for more nodes than partition {name} allows."
        return ""

    def _allowed(self, job: Job, limit_s: float | None) -> NodeSet:
        """Return the nodes that neither the job nor, if it has one, a reservation rules out.

        All others keep off reservations by the plan (``backfill``).
        """
        allowed = self._sets.where(lambda _: True) & ~self._sets.named(job.excluded_nodes)
        for name, start_s, nodes in self._reservations if job.reservations else ():
            if name in job.reservations:
                allowed &= nodes
            elif limit_s is not None and self._now_s + limit_s > start_s:
                allowed &= ~nodes
        return allowed

    def _ways(
        self, job: Job, allowed: NodeSet, partition: str, wanted: Way, *, shares: bool
    ) -> Iterator[tuple[NodeDemand, ...]]:
        """State one choice as demands, in each size; none: too few such nodes exist."""
        sets, required = self._sets, self._sets.named(job.required_nodes)
        if required.bit_count() < len(set(job.required_nodes)) or required & ~allowed:
            return
        counted = () if required else wanted.counted  # not both: it would start somewhere
        kinds = [
            (node, members & allowed)
            for node, members in sets.kinds
            if members & allowed and _is_one(node, partition, wanted)
        ]
        n_required, n_counted = required.bit_count(), sum(count for _, count in counted)
        for size in _sizes(job, [node for node, _ in kinds]):
            n_nodes = max(size, n_required, n_counted)
            share = _share(job, n_nodes)
            enough = [(node, members) for node, members in kinds if _has_room(node, share)]
            among = [(required, n_required)]
            among += [(_all(enough, rule) & ~required, count) for rule, count in counted]
            among += [(_all(enough, ()) & ~required, n_nodes - n_required - n_counted)]
            among = [(some, count) for some, count in among if count > 0]
            if all(some.bit_count() >= count for some, count in among):
                part, n_more = share if shares else None, max(0, (job.n_nodes_max or 0) - n_nodes)
                *others, last = among
                yield (
                    *(NodeDemand(*one, 0, part) for one in others),
                    NodeDemand(*last, n_more, part),
                )


def _joint(requests: list[JobNeeds]) -> JobNeeds:
    """Return what jobs ask for that start together: all of it, for the longest of them."""
    if len(requests) == 1:
        return requests[0]
    if refused := next((request for request in requests if request.why_not), None):
        return refused
    ways = itertools.islice(itertools.product(*(r.ways for r in requests)), MOST_WAYS)
    limits_s = [request.limit_s for request in requests if request.limit_s is not None]
    return JobNeeds(
        ways=tuple(tuple(itertools.chain(*way)) for way in ways),
        limit_s=max(limits_s) if len(limits_s) == len(requests) else None,
    )


def _by_id(job: Job) -> tuple[int, str]:
    return len(job.job_id), job.job_id


def _is_one(node: Node, partition: str, wanted: Way) -> bool:
    """Whether a node is of that partition and, as far as it says, has what is wanted."""
    if partition and node.partitions and partition not in node.partitions:
        return False
    return not node.features or meets(node.features, wanted.everywhere)


def _has_room(node: Node, share: NodeLeft) -> bool:
    has_memory = not node.memory_mb or share.memory_mb <= node.memory_mb
    return share.cpus <= node.cpus and share.gpus <= node.gpus and has_memory


def _all(kinds: Iterable[tuple[Node, NodeSet]], wanted: Rule) -> NodeSet:
    found = 0
    for node, members in kinds:
        if meets(node.features, wanted):
            found |= members
    return found


def _sizes(job: Job, kinds: Iterable[Node]) -> list[int]:
    """Return on how many nodes what it asks for in all may be, in even shares.

    As many as of each kind are enough: in between no further node is large enough.
    """
    if not (job.cpus or job.gpus):
        return [job.n_nodes]
    sizes = set[int]()
    for node in kinds:
        cpus = node.cpus
        if job.memory_per_cpu_mb and node.memory_mb:
            cpus = min(cpus, node.memory_mb // job.memory_per_cpu_mb)
        if not ((job.cpus and not cpus) or (job.gpus and not node.gpus)):
            n_gpus = math.ceil(job.gpus / max(1, node.gpus))
            sizes.add(max(job.n_nodes, math.ceil(job.cpus / max(1, cpus)), n_gpus))
    return sorted(sizes)


def _share(job: Job, n_nodes: int) -> NodeLeft:
    """Return what it asks for on each of so many nodes."""
    cpus = max(math.ceil(job.cpus / n_nodes), job.cpus_per_node)
    return NodeLeft(
        cpus=cpus,
        memory_mb=max(job.memory_mb, job.memory_per_cpu_mb * cpus),
        gpus=max(math.ceil(job.gpus / n_nodes), job.gpus_per_node),
    )
