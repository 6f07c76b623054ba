"""What pending jobs request beyond what every poll shows: read once per job.

``squeue`` shows excluded nodes only with ``-o``, and node counts, GPUs and memory in total only
with ``-O``, never both. So ``-O`` is used only when a poll shows a new pending job. Text comes in,
``Job``s go out with more of their fields; called by ``slurm_plugins.snapshot``. Source: squeue
manual page and output of release 22.05.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from bftrainer.model.cluster import Job, JobState, Way
from bftrainer.model.hostlist import ParseError
from slurm_plugins.fields import LONGEST, NOTHING, UNREAD, Doubts, gpus_of, ways_of, whole
from slurm_plugins.parse import ControllerConfig, Made, duration_s, long_records, memory_mb_of

FIELDS = (
    *("JobArrayID", "NumCPUs", "MinCpus", "NumTasks", "MinMemory", "MaxNodes", "MinTime"),
    *("OverSubscribe", "Reservation", "Contiguous", "ReqSwitch", "Reboot", "Prefer"),
    *("tres-per-job", "tres-per-socket", "tres-per-task", "tres-alloc"),
)
_NO_SUCH = frozenset({"0", *NOTHING})
_Key = tuple[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The request of one job."""

    n_nodes: int | None  # minimum; None: not reported
    n_nodes_max: int
    cpus: int
    cpus_per_node: int
    memory_mb: int
    memory_per_cpu_mb: int
    gpus: int
    time_limit_min_s: float | None
    reservations: tuple[str, ...]
    can_share: bool
    prefers: tuple[Way, ...]
    unclear: str


_NOT_READ = Asked(
    n_nodes=None,
    n_nodes_max=0,
    cpus=0,
    cpus_per_node=0,
    memory_mb=0,
    memory_per_cpu_mb=0,
    gpus=0,
    time_limit_min_s=None,
    reservations=(),
    can_share=False,
    prefers=(),
    unclear=f"resources{UNREAD}",
)


def rows(text: str) -> dict[str, Asked]:
    """Parse ``squeue -O`` in ``FIELDS``: job or array id -> request."""
    return {
        fields[0].partition("_")[0]: _read(dict(zip(FIELDS, fields, strict=True)))
        for fields in long_records(text, len(FIELDS))
    }


def _read(row: dict[str, str]) -> Asked:
    """Parse the request of one job; an unparsable one becomes ``_NOT_READ``."""
    if not row["JobArrayID"]:
        raise ParseError("a job without an id")
    try:
        if max(len(row[name]) for name in FIELDS[1:]) <= LONGEST:
            return _asked(row)
    except ParseError:
        pass
    return _NOT_READ


def _asked(row: dict[str, str]) -> Asked:
    in_all = dict(part.partition("=")[::2] for part in row["tres-alloc"].split(","))
    cpus, n_tasks = whole(row["NumCPUs"]), whole(row["NumTasks"])
    n_nodes = whole(in_all["node"]) if "node" in in_all else None
    memory, per_cpu = _memory(row["MinMemory"], in_all.get("mem", "0"), cpus, n_nodes or 1)
    per_task = gpus_of(row["tres-per-task"])[0]
    shortest_s, doubts = duration_s(row["MinTime"]), Doubts()
    none: tuple[Way, ...] = ()
    prefers = doubts.read("a preference", row["Prefer"], ways_of, none)
    words = {
        "contiguous nodes": row["Contiguous"] not in _NO_SUCH,
        "few switches": row["ReqSwitch"] not in _NO_SUCH,
        "GPUs per socket": gpus_of(row["tres-per-socket"])[0] > 0,
        "a reboot": row["Reboot"] not in _NO_SUCH,
        "a block of nodes to itself": row["OverSubscribe"] == "TOPO",  # --exclusive=topo, 24.05
    }
    return Asked(
        n_nodes=n_nodes,
        n_nodes_max=whole(row["MaxNodes"]),
        cpus=cpus,
        cpus_per_node=whole(row["MinCpus"]),
        memory_mb=memory,
        memory_per_cpu_mb=per_cpu,
        gpus=max(gpus_of(row["tres-per-job"])[0], per_task * n_tasks),
        time_limit_min_s=shortest_s or None,
        reservations=() if row["Reservation"] in NOTHING else tuple(row["Reservation"].split(",")),
        can_share=row["OverSubscribe"] == "OK",
        prefers=prefers,
        unclear=" and ".join(filter(None, (*(w for w in words if words[w]), doubts.words()))),
    )


def _memory(said: str, in_all: str, cpus: int, n_nodes: int) -> tuple[int, int]:
    """Return megabytes per node and per processor: squeue shows one number for both.

    The total tells which it is. 0 means all memory of a node.
    """
    memory_mb = memory_mb_of(said)
    if memory_mb and cpus > n_nodes and memory_mb_of(in_all) == memory_mb * cpus:
        return 0, memory_mb
    return memory_mb, 0


@dataclass(slots=True)
class AskedFor:
    """The requests of the jobs in the queue; jobs that leave it are dropped."""

    known: dict[_Key, Asked | None] = field(default_factory=dict)  # None: not shown
    _made: Made[Job] = field(default_factory=Made)

    def lacks(self, jobs: Iterable[Job]) -> bool:
        """Whether a pending ordinary job's request is not known yet."""
        return any(_key(job) not in self.known for job in jobs if _counts(job))

    def learn(self, jobs: Iterable[Job], found: dict[str, Asked]) -> None:
        """Store the answer for these jobs."""
        self.known = {key: found.get(key[0]) for job in jobs if _counts(job) for key in [_key(job)]}

    def complete(self, jobs: tuple[Job, ...], config: ControllerConfig | None) -> tuple[Job, ...]:
        """Return the jobs with everything known about them."""
        if not self.known:
            return jobs
        self._made.begin()
        return tuple([self._complete(job, config) if _counts(job) else job for job in jobs])

    def _complete(self, job: Job, config: ControllerConfig | None) -> Job:
        asked = self.known.get(_key(job))
        if asked is None:
            return job
        make = partial(_complete, job, asked, config)
        return self._made.of(job.job_id, job, (asked, config), make)


def _can_share(asked: Asked, config: ControllerConfig | None) -> bool:
    """Whether others may use the rest of its nodes; not if it takes all of their memory."""
    if config is None or not config.are_nodes_shared or not asked.can_share:
        return False
    return not config.is_memory_counted or bool(asked.memory_mb or asked.memory_per_cpu_mb)


def _complete(job: Job, asked: Asked, config: ControllerConfig | None) -> Job:
    # For "-N 1-8" squeue shows the node count of the scheduler's last attempt.
    is_range = asked.n_nodes is not None and asked.n_nodes < asked.n_nodes_max
    n_nodes = asked.n_nodes if is_range and asked.n_nodes is not None else job.n_nodes
    return dataclasses.replace(
        job,
        n_nodes=n_nodes,
        n_nodes_max=asked.n_nodes_max if is_range else None,
        cpus=asked.cpus,
        cpus_per_node=asked.cpus_per_node,
        memory_mb=asked.memory_mb,
        memory_per_cpu_mb=asked.memory_per_cpu_mb,
        gpus=asked.gpus,
        time_limit_min_s=asked.time_limit_min_s,
        reservations=asked.reservations,
        can_share=_can_share(asked, config),
        prefers=asked.prefers,
        unclear=" and ".join(filter(None, (asked.unclear, job.unclear))),
    )


def _counts(job: Job) -> bool:
    return job.is_ordinary and job.state is JobState.PENDING


def _key(job: Job) -> _Key:
    """The cache key; a job with a changed limit is read again."""
    return job.job_id.partition("_")[0], job.time_limit_s
