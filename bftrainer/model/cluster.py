"""The result of one poll of the batch system: plain data, made by the adapters.

Adapters, and readers of user input, convert text to ``Rule`` and ``Way``; ``meets`` checks a node
against them. Rules stay in written order and are evaluated from left to right, so the cost grows
with their length only, however they are nested.

Times are seconds since the epoch on the daemon's clock: adapters convert the batch system's times
if its clock differs. A part that could not be read is ``None``, or as last known (``unread``):
*unknown* never launches or kills anything, and never keeps a node from a known job.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

# Tokens: names, AND (&), OR (|) and balanced parentheses; () is met by every node.
Rule = tuple[str, ...]

LONGEST = 1024  # characters
MOST_NAMES = 64
DEEPEST = 32  # nested parentheses
_WORD = re.compile(r"[\w.:+=-]+|[&|()]")
BEFORE_ALL = float(1 << 32)
# The reason of a node that an adapter reports as down because it completes for longer than usual.
STILL_COMPLETING = "its last job does not finish completing"
# The reason of a node whose reboot an administrator has ordered.
REBOOTS = "it is to be rebooted"
PART_MARK = "/"
STAND_IN = "announced-"  # prefix of the ids of announced jobs
CLOCKS_AGREE_S = 1.0  # batch systems tell whole seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One alternative of a job's feature request."""

    everywhere: Rule = ()
    counted: tuple[tuple[Rule, int], ...] = ()  # in addition, that many nodes with these


def meets(features: Collection[str], wanted: Rule) -> bool:
    """Return whether a node with these features meets the rule.

    Slurm evaluates mixed AND and OR from left to right, people expect AND first. Here AND comes
    first: all nodes that meet the rule from left to right meet it too, so none is missed.
    """
    if not wanted:
        return True
    has = frozenset(features)
    # Per open parenthesis: whether a product before the last OR is met; the last product so far.
    stack = [(False, True)]
    for word in wanted:
        if word == "(":
            stack.append((False, True))
        elif word == "|":
            stack[-1] = (any(stack[-1]), True)
        elif word != "&":
            is_met = any(stack.pop()) if word == ")" else word in has
            earlier, last = stack[-1]
            stack[-1] = (earlier, last and is_met)
    return any(stack[0])


def rule_of(text: str) -> Rule | None:
    """Parse names joined by & and |, with parentheses; ``None``: malformed or too long."""
    text = "".join(text.split())
    if len(text) > LONGEST or len(re.split("[&|]", text)) > MOST_NAMES:
        return None
    words = _WORD.findall(text)
    if "".join(words) != text:
        return None
    depth, wants_name = 0, True
    for word in words:
        if word == "(" and wants_name and depth < DEEPEST:
            depth += 1
        elif word == ")" and depth and not wants_name:
            depth -= 1
        elif word in ("&", "|") and not wants_name:
            wants_name = True
        elif word not in ("&", "|", "(", ")") and wants_name:
            wants_name = False
        else:
            return None
    if depth or wants_name:
        return None
    return tuple(words)


class NodeState(enum.StrEnum):
    """The states we distinguish; adapters map all others to ``UNKNOWN``."""

    IDLE = "idle"
    PLANNED = "planned"  # idle, but named in the plan of a pending job
    ALLOCATED = "allocated"  # a job (ordinary or pilot) is on all or part of it
    COMPLETING = "completing"
    RESERVED = "reserved"  # reservation or maintenance
    DRAINED = "drained"  # draining or drained: do not take it, leave soon
    POWER_SAVING = "power-saving"  # off, about to be, or booting for a job: a pilot would boot it
    DOWN = "down"  # down, failed, not responding
    UNKNOWN = "unknown"


FREE = (NodeState.IDLE, NodeState.PLANNED)  # states of nodes without any job

"""Priority of a job that comes before all others, of any tier; batch systems' have 32 bits."""


class JobState(enum.StrEnum):
    """States of a job in the queue."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    OTHER = "other"


class Presence(enum.StrEnum):
    """An observation has three values; ``UNKNOWN`` allows no action."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft:
    """Part of a node: what is free of one in use, or what a job needs on each node."""

    cpus: int
    memory_mb: int = 0
    gpus: int = 0

    def covers(self, other: NodeLeft) -> bool:
        """Return whether this is at least as much as ``other``."""
        is_room = self.cpus >= other.cpus and self.memory_mb >= other.memory_mb
        return is_room and self.gpus >= other.gpus

    def without(self, other: NodeLeft) -> NodeLeft:
        """Return what remains after ``other`` is taken."""
        memory_mb = self.memory_mb - other.memory_mb
        return NodeLeft(
            cpus=self.cpus - other.cpus, memory_mb=memory_mb, gpus=self.gpus - other.gpus
        )


"""Divides the name of a part of a node into the node's and a number: n1/0, n1/1."""


@lru_cache(maxsize=1 << 15)  # asked for every part, many times in a decision
def node_of(part: str) -> str:
    """Return the node of a part by its name; a node is returned as it is."""
    return part.partition(PART_MARK)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class LentGpus:
    """GPUs of one type of a node that may be lent one by one.

    A GPU is not free while a job or a pilot has it, or a shard or MPS share of it.
    """

    gpu_type: str  # as the batch system names it: "a100", "1g.10gb"; "": it has no name
    n_gpus: int  # in all
    n_free: int  # as many could start a pilot with these CPUs and memory each
    cpus: int  # that each is lent with
    memory_mb: int  # likewise; 0: memory is not allocated to jobs


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
    switch: str = ""  # network switch it is connected to; "": unknown
    left: NodeLeft | None = None  # free part of a partly used node
    # Its GPUs by type, if pilots may have them one by one; (): it is lent as a whole or not at all.
    lends: tuple[LentGpus, ...] = ()
    is_shared: bool = False  # ordinary jobs may share it with other jobs
    why_whole: str = ""  # why its GPUs are not lent one by one, a sentence; "": they are
    ADDED: ClassVar = frozenset({"lends", "is_shared", "why_whole"})  # not written while unused

    @property
    def is_full(self) -> bool:
        """Return whether jobs have all of it, as far as is known."""
        is_free = self.left is not None or any(lent.n_free for lent in self.lends)
        return self.state is NodeState.ALLOCATED and not is_free


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A queue of the batch system and what it allows."""

    name: str
    can_start: bool = True  # False: it starts no jobs
    accepts: bool = True  # False: it takes no new jobs
    time_limit_s: float | None = None  # maximum; None: none
    n_nodes_max: int | None = None
    tier: int = 0  # jobs of a higher tier come first
    is_exclusive: bool = False  # its jobs do not share nodes
    ADDED: ClassVar = frozenset({"accepts"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job in the queue: ordinary, or one of our pilots (``pilot_id`` set)."""

    job_id: str
    user: str
    partitions: tuple[str, ...] = ()  # alternatives; none: the default one
    state: JobState
    n_nodes: int
    time_limit_s: float | None
    reason: str = ""  # why it is pending, in the batch system's words
    # It would start if its nodes were free.
    is_entitled: bool = True
    begin_s: float | None = None  # earliest start; None: any time
    family: str = ""  # of jobs submitted as one: an array, parts that start together
    together: str = ""  # pending jobs with the same value start together or not at all
    priority: float = 0.0
    submit_s: float | None = None
    start_s: float | None = None  # actual if running, planned if pending; None: unknown
    nodes: tuple[str, ...] = ()  # where it runs
    planned_nodes: tuple[str, ...] = ()  # where the scheduler plans it
    required_nodes: tuple[str, ...] = ()
    wants: tuple[Way, ...] = ()  # features of its nodes; alternatives
    prefers: tuple[Way, ...] = ()  # instead of ``wants`` if such nodes can be had; alternatives
    gpus_per_node: int = 0
    pilot_id: str | None = None
    # 0, "" and None: not reported by the batch system, or not requested.
    n_nodes_max: int | None = None  # it takes up to that many if they are free
    time_limit_min_s: float | None = None  # its limit may be cut to that for an earlier start
    cpus: int = 0  # in all
    cpus_per_node: int = 0  # at least, on each
    memory_mb: int = 0  # on each node
    memory_per_cpu_mb: int = 0
    gpus: int = 0  # in all
    excluded_nodes: tuple[str, ...] = ()
    n_more_tasks: int = 0  # further identical tasks of its array, not listed
    waits_for: str = ""  # unfulfilled dependencies, in the batch system's words
    reservations: tuple[str, ...] = ()  # it may start only in these
    can_share: bool = False  # nodes with other jobs; then its whole request is known
    unclear: str = ""  # further requests that were not understood, in words
    gpu_type: str = ""  # that its GPUs must have; "": any
    memory_per_gpu_mb: int = 0
    # The last three were Slurm's texts; adapters now convert them to data.
    ADDED: ClassVar = frozenset({"prefers", "gpu_type", "memory_per_gpu_mb"})
    REMOVED: ClassVar = frozenset({"was_tried", "partition", "features", "reservation"})

    @property
    def is_announced(self) -> bool:
        """Return whether the job was announced and no snapshot has shown it."""
        return self.job_id.startswith(STAND_IN)

    @property
    def is_ordinary(self) -> bool:
        """Return whether the job is not a pilot of ours."""
        return self.pilot_id is None

    @property
    def counts_as(self) -> str:
        """The key under which it is remembered: one per family."""
        return self.family or self.job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A period during which nodes are set aside (maintenance and the like)."""

    name: str
    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    is_maintenance: bool = False  # no job may use it; else its users' jobs may


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerCycle:
    """The scheduler's last complete pass over its queue (Slurm: backfill, sdiag)."""

    ended_s: float | None  # None: it has not run, e.g. with nothing pending
    began_s: float | None = None  # None: not reported
    depth: int = 0
    queue_length: int = 0


_Timed = TypeVar("_Timed", "Snapshot", Job, Reservation, SchedulerCycle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The result of one poll. ``None`` = that source failed (see ``failures``)."""

    taken_at_s: float
    nodes: tuple[Node, ...] | None
    jobs: tuple[Job, ...] | None
    reservations: tuple[Reservation, ...] | None = ()
    cycle: SchedulerCycle | None = None
    plan_window_s: float | None = None  # how far ahead starts are planned; None: not reported
    plan_resolution_s: float = 0.0  # length of the plan's time slots; 0: exact
    # The scheduler considers pilots after all ordinary jobs, so a pending pilot takes no node
    # from a job that waits for it.
    pilots_come_last: bool = False
    failures: tuple[str, ...] = ()  # one sentence per source that failed
    partitions: tuple[Partition, ...] = ()  # as reported by the batch system
    # Parts that could not be read: as last known, or None.
    unread: tuple[str, ...] = ()
    closed: str = ""  # why no pilot could be submitted or started, one sentence
    queue_model: str = "printed"  # how its scheduler treats pending jobs (decide.queue.models)
    shortest_limit_s: float = 0.0  # of a job, in the batch system's own steps; 0: any
    ADDED: ClassVar = frozenset({"closed", "shortest_limit_s"})

    @property
    def is_complete(self) -> bool:
        """Return whether every part that a decision needs was read."""
        return not self.unread and None not in (self.nodes, self.jobs, self.reservations)

    def taken_between(self, begin_s: float, end_s: float) -> Snapshot:
        """Return the snapshot with all times on the clock by which it was taken in that time.

        The batch system's host, or an adapter, may have another one.
        """
        by_s = begin_s - self.taken_at_s
        if begin_s - CLOCKS_AGREE_S <= self.taken_at_s <= end_s + CLOCKS_AGREE_S:
            return self

        def moved(record: _Timed, *names: str) -> _Timed:
            times_s: dict[str, Any] = {}
            for name in names:
                time_s = getattr(record, name)
                if time_s is not None:
                    times_s[name] = time_s + by_s
            return replace(record, **times_s)

        jobs, plans, cycle = self.jobs, self.reservations, self.cycle
        return replace(
            moved(self, "taken_at_s"),
            jobs=jobs and tuple([moved(j, "begin_s", "submit_s", "start_s") for j in jobs]),
            reservations=plans and tuple([moved(r, "start_s", "end_s") for r in plans]),
            cycle=cycle and moved(cycle, "ended_s", "began_s"),
        )

    def with_last_known(self, before: Snapshot | None) -> Snapshot:
        """Return the snapshot with unread parts as they were before.

        If neither nodes nor jobs were read, the batch system did not answer; nothing is filled in.
        """
        missing = [
            part for part in ("nodes", "jobs", "reservations") if getattr(self, part) is None
        ]
        if before is None or not missing or (self.nodes is None and self.jobs is None):
            return self
        jobs, reservations, nodes = self.jobs, self.reservations, self.nodes
        if jobs is None:
            jobs = before.jobs
        if reservations is None:
            reservations = before.reservations
        if nodes is None and before.nodes is not None:
            nodes = not_idle_where_jobs_run(before.nodes, jobs or ())
        return replace(
            self,
            nodes=nodes,
            jobs=jobs,
            reservations=reservations,
            unread=tuple(dict.fromkeys((*self.unread, *missing))),
        )


def not_idle_where_jobs_run(nodes: Iterable[Node], jobs: Iterable[Job]) -> tuple[Node, ...]:
    """Mark idle nodes as allocated where the jobs, read later, show one running.

    What it has left of them is not known: nothing, until they are read again.
    """
    with_jobs: set[str] = set()
    for job in jobs:
        if job.state is not JobState.PENDING:
            with_jobs.update(job.nodes)
    marked: list[Node] = []
    for node in nodes:
        if node.name in with_jobs and node.state in (NodeState.IDLE, NodeState.PLANNED):
            lends = tuple([replace(lent, n_free=0) for lent in node.lends])
            marked.append(replace(node, state=NodeState.ALLOCATED, lends=lends))
        else:
            marked.append(node)
    return tuple(marked)


class EndedBy(enum.StrEnum):
    """The cause of a pilot's end, as far as the batch system tells."""

    PREEMPTED = "preempted"  # the batch system, for another job
    CANCELLED = "cancelled"  # its user or an administrator; or we, by a signal
    TIME_LIMIT = "time-limit"
    NODE = "node"  # its node failed
    ITSELF = "itself"  # its agent exited
    UNKNOWN = "unknown"
