"""What one look at the batch system saw; plain data, made by the adapters.

Times are seconds since the epoch on the daemon's clock: an adapter converts what the batch
system says where that has another. A part that could not be read is ``None``, or as it was
last known (``unread``): *unknown* never launches and never kills anything, and it never keeps
a node from a job that is known.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from bftrainer.model.features import Way


class NodeState(enum.StrEnum):
    """States we distinguish; adapters map everything else to ``UNKNOWN``."""

    IDLE = "idle"
    PLANNED = "planned"  # idle, but named in the plan of a pending job
    ALLOCATED = "allocated"  # some job (ordinary or pilot) is on it, wholly or in part
    COMPLETING = "completing"
    RESERVED = "reserved"  # reservation or maintenance
    DRAINED = "drained"  # drain or drained: take nothing, leave soon
    DOWN = "down"  # down, failed, not responding, powering up or down
    UNKNOWN = "unknown"


class JobState(enum.StrEnum):
    """States of a job in the queue."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    OTHER = "other"


class Presence(enum.StrEnum):
    """Observation has three values; only the first two allow an action."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft:
    """A part of a node: what nobody has of one that is in use, or what a job needs of each."""

    cpus: int
    memory_mb: int = 0
    gpus: int = 0

    def covers(self, other: NodeLeft) -> bool:
        """Whether this is enough for that."""
        is_room = self.cpus >= other.cpus and self.memory_mb >= other.memory_mb
        return is_room and self.gpus >= other.gpus

    def without(self, other: NodeLeft) -> NodeLeft:
        """Return what is left of this without that."""
        memory_mb = self.memory_mb - other.memory_mb
        return NodeLeft(
            cpus=self.cpus - other.cpus, memory_mb=memory_mb, gpus=self.gpus - other.gpus
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host of the batch system."""

    name: str
    state: NodeState
    reason: str = ""
    node_type: str = "default"
    gpus: int = 0
    cpus: int = 1
    memory_mb: int = 0
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    switch: str = ""  # of the network, the one it is connected to; "": not known
    left: NodeLeft | None = None  # where it is in use in part


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A queue of the batch system and what it allows."""

    name: str
    can_start: bool = True  # False: its jobs wait whatever is free
    time_limit_s: float | None = None  # longest; None: there is none
    n_nodes_max: int | None = None
    tier: int = 0  # all jobs of a higher one come first
    is_exclusive: bool = False  # its jobs have their nodes for themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job in the queue: ordinary, or one of our pilots (``pilot_id`` set)."""

    job_id: str
    user: str
    partitions: tuple[str, ...] = ()  # any one of them will do; none: the default one
    state: JobState
    n_nodes: int
    time_limit_s: float | None
    reason: str = ""  # why it waits, in the batch system's words
    # The batch system would start it if its nodes were free.
    is_entitled: bool = True
    begin_s: float | None = None  # not before that; None: at once
    family: str = ""  # of jobs that were submitted as one: an array, parts that start together
    together: str = ""  # pending jobs of the same word start together, or not at all
    priority: float = 0.0
    submit_s: float | None = None
    start_s: float | None = None  # actual when running, planned when pending, None unknown
    nodes: tuple[str, ...] = ()  # where it runs
    planned_nodes: tuple[str, ...] = ()  # where the scheduler plans it
    required_nodes: tuple[str, ...] = ()
    wants: tuple[Way, ...] = ()  # features of its nodes; one of several ways is enough
    gpus_per_node: int = 0
    pilot_id: str | None = None
    # What 0, "" and None leave open, the batch system did not say or the user did not ask for.
    n_nodes_max: int | None = None  # it takes more than n_nodes where they are free
    time_limit_min_s: float | None = None  # it may be cut down to that to start earlier
    cpus: int = 0  # in all
    cpus_per_node: int = 0  # at least, on each
    memory_mb: int = 0  # on each node
    memory_per_cpu_mb: int = 0
    gpus: int = 0  # in all
    excluded_nodes: tuple[str, ...] = ()
    n_more_tasks: int = 0  # of its array, behind it and alike, that are not shown
    waits_for: str = ""  # dependencies that are not fulfilled, in the batch system's words
    reservations: tuple[str, ...] = ()  # it may only start in these
    can_share: bool = False  # a node with other jobs; all it asks for is known then
    unclear: str = ""  # what it asks for beyond this, in words
    # The last three as texts of Slurm's: adapters make data of them now.
    REMOVED: ClassVar = frozenset({"was_tried", "partition", "features", "reservation"})

    @property
    def is_ordinary(self) -> bool:
        """Whether the job belongs to somebody else."""
        return self.pilot_id is None

    @property
    def counts_as(self) -> str:
        """What is remembered of it goes by that: all of a family are one."""
        return self.family or self.job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A span during which nodes are set aside (maintenance and the like)."""

    name: str
    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    is_maintenance: bool = False  # for nobody; else for whom it was made


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerCycle:
    """The scheduler's last complete pass over its queue (Slurm: backfill, sdiag)."""

    ended_s: float | None  # None: it has not run, e.g. because nothing is pending
    began_s: float | None = None  # None: the batch system does not say
    depth: int = 0
    queue_length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One look at the cluster. ``None`` = that source failed (see ``failures``)."""

    taken_at_s: float
    nodes: tuple[Node, ...] | None
    jobs: tuple[Job, ...] | None
    reservations: tuple[Reservation, ...] | None = ()
    cycle: SchedulerCycle | None = None
    plan_window_s: float | None = None  # how far ahead starts are planned; None: not said
    plan_resolution_s: float = 0.0  # planned starts are kept in slots of so long; 0: exactly
    # A pilot is looked at after all ordinary jobs: asking for a node that one of them waits
    # for takes nothing from it.
    pilots_come_last: bool = False
    failures: tuple[str, ...] = ()  # one sentence per source that failed
    partitions: tuple[Partition, ...] = ()  # those the batch system told of
    # What this look could not read: it is as it was last known, or None.
    unread: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every part that a decision needs was read."""
        return not self.unread and None not in (self.nodes, self.jobs, self.reservations)

    def with_last_known(self, before: Snapshot | None) -> Snapshot:
        """Return this look with what it could not read as it was before.

        Without nodes and without jobs nobody has answered, and nothing is filled in.
        """
        missing = [
            part for part in ("nodes", "jobs", "reservations") if getattr(self, part) is None
        ]
        if before is None or not missing or (self.nodes is None and self.jobs is None):
            return self
        jobs = before.jobs if self.jobs is None else self.jobs
        nodes = self.nodes
        if nodes is None and before.nodes is not None:
            nodes = not_idle_where_jobs_run(before.nodes, jobs or ())
        return replace(
            self,
            nodes=nodes,
            jobs=jobs,
            reservations=before.reservations if self.reservations is None else self.reservations,
            unread=tuple(dict.fromkeys((*self.unread, *missing))),
        )


def not_idle_where_jobs_run(nodes: Iterable[Node], jobs: Iterable[Job]) -> tuple[Node, ...]:
    """Believe the later look, at the jobs: a node on which one runs is not idle any more."""
    taken = {name for job in jobs if job.state is not JobState.PENDING for name in job.nodes}
    return tuple(
        replace(node, state=NodeState.ALLOCATED)
        if node.name in taken and node.state in (NodeState.IDLE, NodeState.PLANNED)
        else node
        for node in nodes
    )
