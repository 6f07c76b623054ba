"""What one look at the batch system saw; plain data, made by the adapters.

Times are seconds since the epoch on the batch system's clock. A part that could
not be read is ``None``: *unknown* never launches and never kills anything.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


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
    """What nobody has of a node that is in use in part."""

    cpus: int
    memory_mb: int = 0
    gpus: int = 0


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
    partition: str
    state: JobState
    n_nodes: int
    time_limit_s: float | None
    reason: str = ""
    priority: float = 0.0
    submit_s: float | None = None
    start_s: float | None = None  # actual when running, planned when pending, None unknown
    nodes: tuple[str, ...] = ()  # where it runs
    planned_nodes: tuple[str, ...] = ()  # where the scheduler plans it
    required_nodes: tuple[str, ...] = ()
    features: str = ""  # constraint expression as the user wrote it
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
    waits_for: str = ""  # dependencies that are not fulfilled, in the batch system's words
    reservation: str = ""  # it may only start in that one
    can_share: bool = False  # a node with other jobs; all it asks for is known then
    unclear: str = ""  # what it asks for beyond this, in words
    # The scheduler tried to start it, preempting, while it was submitted: announced ones only.
    was_tried: bool = False

    @property
    def is_ordinary(self) -> bool:
        """Whether the job belongs to somebody else."""
        return self.pilot_id is None


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

    @property
    def is_complete(self) -> bool:
        """Whether every part that a decision needs was read."""
        return None not in (self.nodes, self.jobs, self.reservations)
