"""What a pending job asks for, as sets of nodes of this cluster; or why it cannot start.

Takes a job and a ``Site``, returns a ``Request``; called by ``feasible`` for every pending
ordinary job. Only what does not depend on other jobs is judged here. Where it is not
clear what a job asks for, the request says so and leaves that condition out: a node given
back in vain costs a short pause, one kept by mistake costs somebody's job a cycle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from bftrainer.decide.features import Rule, Way, meets, ways_of
from bftrainer.decide.matching import Demand
from bftrainer.decide.nodesets import NodeSet, NodeSets
from bftrainer.poll.snapshot import Job, JobState, Node, Partition, Reservation, Snapshot

# Reasons with which a pending job cannot start whatever is free (squeue manual page,
# release 22.05, "JOB REASON CODES"). Limits of accounts come as Assoc* and QOS*.
_HOPELESS = (
    "JobHeld", "JobHold", "DependencyNever", "Reservation", "JobArrayTaskLimit", "Assoc",
    "QOS", "Account", "Invalid", "Partition", "Licenses", "BadConstraints",
)  # fmt: skip
# The scheduler has considered the job and found nothing missing but nodes.
_IN_LINE = ("Resources", "Priority")
# What a job asks for: two jobs of which this is the same are alike to every scheduler.
ASKS = attrgetter(
    *("partition", "n_nodes", "n_nodes_max", "time_limit_s", "time_limit_min_s", "features"),
    *("required_nodes", "excluded_nodes", "waits_for", "reservation", "can_share", "unclear"),
    *("cpus", "cpus_per_node", "memory_mb", "memory_per_cpu_mb", "gpus_per_node", "gpus"),
)
MOST_WAYS = 64  # of one job: partitions, times the choices of its constraint
_AFTER_END = re.compile(r"after(?:any|ok|notok|corr|burstbuffer):([0-9]+)")


@dataclass(frozen=True, slots=True)
class Need:
    """What a job needs of each of its nodes, or what is left of one."""

    cpus: int
    memory_mb: int
    gpus: int

    def covers(self, other: Need) -> bool:
        """Whether this is enough for that."""
        return (
            self.cpus >= other.cpus
            and self.memory_mb >= other.memory_mb
            and self.gpus >= other.gpus
        )

    def less(self, other: Need) -> Need:
        """What is left of this without that."""
        return Need(
            self.cpus - other.cpus, self.memory_mb - other.memory_mb, self.gpus - other.gpus
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a job asks for."""

    cannot: str = ""  # why it cannot start now, whatever is free; a sentence
    doubt: str = ""  # what we do not understand of it; a sentence
    ways: tuple[tuple[Demand, ...], ...] = ()  # one of them is enough
    n_more: int = 0  # nodes it takes on top where they are free, of the last demand's
    limit_s: float | None = None  # the shortest time it may be run for; None: not known
    shared: Need | None = None  # it takes only that much of a node, others may have the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What requests are judged against: one look at the cluster."""

    sets: NodeSets
    usable: NodeSet  # free, on their way back, or ours
    partitions: Mapping[str, Partition]
    reservations: tuple[tuple[Reservation, NodeSet], ...]  # not over yet
    in_queue: frozenset[str]  # ids of the ordinary jobs that have not ended
    now_s: float
    slot_s: float = 0.0  # of backfill's plan; 0: it has none
    cycle_at_s: float = 0.0  # when backfill comes next; 0: not known

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        sets: NodeSets,
        usable: NodeSet,
        now_s: float,
        cycle_at_s: float = 0.0,
    ) -> Site:
        """Look at a complete snapshot."""
        return cls(
            sets=sets,
            usable=usable,
            partitions={partition.name: partition for partition in snapshot.partitions},
            reservations=tuple(
                (reservation, sets.named(reservation.nodes))
                for reservation in snapshot.reservations or ()
                if reservation.end_s > now_s
            ),
            in_queue=jobs_in_queue(snapshot),
            now_s=now_s,
            slot_s=snapshot.plan_resolution_s,
            cycle_at_s=cycle_at_s,
        )


def jobs_in_queue(snapshot: Snapshot) -> frozenset[str]:
    """Return the ids of the ordinary jobs that have not ended, arrays as a whole."""
    return frozenset(
        base_id(job.job_id)
        for job in snapshot.jobs or ()
        if job.is_ordinary and job.state in (JobState.PENDING, JobState.RUNNING)
    )


def base_id(job_id: str) -> str:
    """Return the id that the tasks of an array and the parts of a job share."""
    return job_id.partition("_")[0].partition("+")[0]


def why_it_waits(job: Job, now_s: float, in_queue: frozenset[str] = frozenset()) -> str:
    """Say why a job cannot start now whatever is free; "": nothing is known to be missing."""
    if job.reason.startswith(_HOPELESS):
        return f"The batch system says {job.reason}."
    if _waits_for_jobs(job, in_queue):
        return f"It waits for other jobs ({job.waits_for or job.reason})."
    if job.reason.startswith("BeginTime") and (job.start_s is None or job.start_s > now_s):
        return "Its begin time has not come."
    return ""


def request_of(job: Job, site: Site) -> Request:
    """Say what a job asks for on this cluster."""
    why = why_it_waits(job, site.now_s, site.in_queue)
    if why:
        return Request(cannot=why)
    names = [name for name in dict.fromkeys(job.partition.split(",")) if name]
    partitions = [site.partitions.get(name) for name in names]
    refused = [_why_refused(job, site, name) for name in names]
    if refused and all(refused):
        return Request(cannot=refused[0])
    accepted = [name for name, why in zip(names, refused, strict=True) if not why] or [""]
    doubts = [f"It asks for {job.unclear}."] if job.unclear else []
    features = ways_of(job.features)
    if features is None:
        doubts.append(f"Its constraint {job.features[:80]} is beyond us.")
        features = (Way(),)
    elif job.required_nodes and any(way.counted for way in features):
        doubts.append("It names nodes and counts features; the counts are left out.")
    if len(accepted) * len(features) > MOST_WAYS:
        doubts.append("It may start in more ways than we look at; they are left out.")
        accepted, features = [""], (Way(),)
    limit_s = _limit_s(job, partitions)
    allowed = _allowed(job, site, limit_s)
    ways = tuple(
        way
        for name in accepted
        for wanted in features
        if (way := _demands(job, site, allowed, name, wanted))
    )
    if not ways:
        return Request(cannot="No node of this cluster is what it asks for.")
    n_nodes = sum(demand.count for demand in ways[0])
    is_exclusive = any(partition is not None and partition.is_exclusive for partition in partitions)
    return Request(
        doubt=" ".join(doubts),
        ways=ways,
        n_more=max(0, (job.n_nodes_max or 0) - n_nodes),
        limit_s=limit_s,
        shared=_need(job, n_nodes) if job.can_share and not is_exclusive else None,
    )


class Requests:
    """What the jobs of a queue ask for; those that are alike, tasks of an array above all, once."""

    def __init__(self, site: Site) -> None:
        """Judge them against this."""
        self.site = site
        self._known: dict[tuple[object, ...], Request] = {}

    def of(self, job: Job) -> Request:
        """Say what a job asks for."""
        # With the begin time of those that wait for it.
        alike = (ASKS(job), job.reason, job.start_s if job.reason == "BeginTime" else None)
        if alike not in self._known:
            self._known[alike] = request_of(job, self.site)
        return self._known[alike]


def _waits_for_jobs(job: Job, in_queue: frozenset[str]) -> bool:
    """Whether one of its dependencies is not fulfilled.

    What was fulfilled a moment ago the scheduler only finds at its next pass, so that the
    end of a job counts as soon as the job has left the queue; of other conditions
    (``singleton``) we know what the scheduler says when it has looked at the job.
    """
    is_said = job.reason.startswith("Dependency")
    if not job.waits_for:
        return is_said
    waits = []
    for part in re.split(r"[,?]", job.waits_for):
        parent = _AFTER_END.match(part)
        waits.append(is_said if parent is None else parent[1] in in_queue)
    return all(waits) if "?" in job.waits_for else any(waits)


def _why_refused(job: Job, site: Site, name: str) -> str:
    """Say why a partition never starts the job; what Slurm put in line is not doubted."""
    partition = site.partitions.get(name)
    if partition is None:
        return f"There is no node in partition {name}." if site.partitions else ""
    if not partition.can_start:
        return f"Partition {partition.name} starts no jobs."
    if job.reason in _IN_LINE:
        return ""
    shortest_s = job.time_limit_min_s or job.time_limit_s
    if partition.time_limit_s is not None and (shortest_s or 0.0) > partition.time_limit_s:
        return f"Its time limit is beyond that of partition {partition.name}."
    if partition.n_nodes_max is not None and job.n_nodes > partition.n_nodes_max:
        return f"It asks for more nodes than partition {partition.name} allows."
    return ""


def _limit_s(job: Job, partitions: list[Partition | None]) -> float | None:
    """Return the shortest time it may be run for, as backfill counts."""
    if job.time_limit_min_s is not None:
        return job.time_limit_min_s
    if job.time_limit_s is not None:
        return job.time_limit_s
    longest = [partition.time_limit_s for partition in partitions if partition is not None]
    known = [limit for limit in longest if limit is not None]
    return min(known) if known and len(known) == len(partitions) else None


def _allowed(job: Job, site: Site, limit_s: float | None) -> NodeSet:
    """Return the nodes that neither the job nor a reservation rules out."""
    allowed = site.sets.where(lambda _: True) & ~site.sets.named(job.excluded_nodes)
    for reservation, nodes in site.reservations:
        if reservation.name in job.reservation.split(","):
            allowed &= nodes
        elif limit_s is not None and site.now_s + limit_s > reservation.start_s:
            allowed &= ~nodes
    return allowed


def _demands(
    job: Job, site: Site, allowed: NodeSet, partition: str, way: Way
) -> tuple[Demand, ...]:
    """State one way as demands; none: too few such nodes exist, free or not."""
    required = site.sets.named(job.required_nodes)
    if required.bit_count() < len(set(job.required_nodes)) or required & ~allowed:
        return ()
    fitting = allowed & site.sets.where(lambda node: _fits(job, node, partition, way))
    n_nodes, fitting = _sized(job, site, fitting)
    n_nodes = max(n_nodes, required.bit_count(), sum(count for _, count in way.counted))
    demands = [Demand(required, required.bit_count())] if required else []
    fitting &= ~required
    n_rest = n_nodes - required.bit_count()
    for wanted, count in way.counted if not required else ():
        demands.append(Demand(fitting & site.sets.where(_has_features(wanted)), count))
        n_rest -= count
    if n_rest > 0:
        demands.append(Demand(fitting, n_rest))
    if any(demand.among.bit_count() < demand.count for demand in demands):
        return ()
    return tuple(demands)


def _fits(job: Job, node: Node, partition: str, way: Way) -> bool:
    if partition and node.partitions and partition not in node.partitions:
        return False
    if job.gpus_per_node > node.gpus or job.cpus_per_node > node.cpus:
        return False
    if node.memory_mb and job.memory_mb > node.memory_mb:
        return False
    return not node.features or meets(node.features, way.everywhere)


def _sized(job: Job, site: Site, fitting: NodeSet) -> tuple[int, NodeSet]:
    """Return on how many nodes its processors and GPUs fit, and which are large enough.

    Each node is counted with an even share. The fewest nodes are taken of which there
    are enough that are free or ours; the fewest at all when there are not.
    """
    if not (job.cpus or job.gpus):
        return job.n_nodes, fitting
    kinds = [node for node, members in site.sets.kinds if members & fitting]
    most = Need(
        cpus=max([node.cpus for node in kinds], default=0),
        memory_mb=0,
        gpus=max([node.gpus for node in kinds], default=0),
    )
    if (job.cpus and not most.cpus) or (job.gpus and not most.gpus):
        return job.n_nodes, 0
    fewest = max(
        job.n_nodes,
        math.ceil(job.cpus / max(most.cpus, 1)),
        math.ceil(job.gpus / max(most.gpus, 1)),
    )
    found: tuple[int, NodeSet] | None = None
    for n_nodes in range(fewest, max(fewest, (fitting & site.usable).bit_count()) + 1):
        need = _need(job, n_nodes)
        enough = fitting & site.sets.where(_has_room(need))
        if enough.bit_count() >= n_nodes:
            found = found or (n_nodes, enough)
            if (enough & site.usable).bit_count() >= n_nodes:
                return n_nodes, enough
    return found or (fewest, 0)


def _has_features(wanted: Rule) -> Callable[[Node], bool]:
    return lambda node: meets(node.features, wanted)


def _has_room(need: Need) -> Callable[[Node], bool]:
    def has_room(node: Node) -> bool:
        has_memory = not node.memory_mb or need.memory_mb <= node.memory_mb
        return need.cpus <= node.cpus and need.gpus <= node.gpus and has_memory

    return has_room


def _need(job: Job, n_nodes: int) -> Need:
    """Share what it asks for in all evenly among so many nodes."""
    cpus = max(math.ceil(job.cpus / n_nodes), job.cpus_per_node)
    return Need(
        cpus=cpus,
        memory_mb=max(job.memory_mb, job.memory_per_cpu_mb * cpus),
        gpus=max(math.ceil(job.gpus / n_nodes), job.gpus_per_node),
    )
