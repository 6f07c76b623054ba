"""Pending jobs: requests that polls do not show, and whether Slurm would start the jobs. Pure.

``squeue`` shows excluded nodes only with ``-o``, and node counts, GPUs and memory in total only
with ``-O``, never both. So ``-O`` is used only when a poll shows a new pending job. Text comes in,
``Job``s go out with more of their fields; called by ``slurm_plugins.snapshot``. Source: squeue
manual page and output of release 22.05.

A job is entitled if its priority is above 0 and the reason that Slurm gives is none or a lack of
nodes; other reasons vary by release and are not enumerated. Jobs of one poll come in and go out;
called by ``slurm_plugins.snapshot``. Source: squeue manual page, "JOB REASON CODES", and
job_scheduler.c, node_scheduler.c of 22.05 to 26.05.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bftrainer.model.cluster import Job, JobState, Way
from bftrainer.model.generic_resources import LONGEST, by_kind, items_of
from bftrainer.model.hostlist import ParseError
from slurm_plugins.fields import NOTHING, UNREAD, Doubts, ways_of, whole
from slurm_plugins.gres import SEVERAL_TYPES, gpus_asked, gpus_needed, type_of
from slurm_plugins.lending import SharingLimits
from slurm_plugins.parse import ControllerConfig, Made, duration_s, long_records, memory_mb_of

FIELDS = (
    *("JobArrayID", "NumCPUs", "MinCpus", "NumTasks", "MinMemory", "MaxNodes", "MinTime"),
    *("OverSubscribe", "Reservation", "Contiguous", "ReqSwitch", "Reboot", "Prefer"),
    *("tres-per-job", "tres-per-socket", "tres-per-task", "tres-alloc"),
    *("cpus-per-tres", "mem-per-tres"),
)
_BY_USER = "gres"  # begins what sbatch writes of memory per GPU, and not the site's default
_EXCLUSIVE = {"NO": "OK", "NODE": "NO"}  # of 26.05, in the words of OverSubscribe until 25.11
NO_LIMITS = SharingLimits()  # nothing is known of the site's defaults
_NO_SUCH = frozenset({"0", *NOTHING})
_MEMORY = ("memory_mb", "memory_per_cpu_mb", "memory_per_gpu_mb")
_Key = tuple[str, float | None]


_CPUS_PER_GPU = "cpus_per_gpu"
# Fields of ``Job``, and CPUs for each of its GPUs; n_nodes None: not reported.
Request = Mapping[str, Any]
_NOT_READ: Request = {"unclear": f"resources{UNREAD}", "n_nodes": None, "n_nodes_max": 0}
# Only nodes are missing, or the job was not evaluated yet.
_LACKS_NODES = frozenset({"", "Priority", "Resources"})
_NO_ACCOUNT = "InvalidAccount"
# The same with the scheduler's details: nodes down, reserved or planned for others.
_LACKS_THESE = (
    *("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED"),
    # ESLURM_TOPO_* of 26.05, where 25.11 says Resources (slurm_errno.c).
    *("Required nodes lack available resources", "Required nodes do not fit topology"),
    *("No suitable topology unit found", "Insufficient resources in topology unit"),
    *("Weight-based selection could not satisfy", "No available nodes in topology"),
    "Exceeded maximum node limit during topology",
)
_AFTER_END = re.compile(r"after(?:any|ok|notok|corr|burstbuffer):([0-9]+)")


def fields_of(release: str) -> tuple[str, ...]:
    """Return what is asked for: in 26.05 OverSubscribe is NO of jobs that share nodes, too."""
    if release < "26.05":
        return FIELDS
    return tuple(name.replace("OverSubscribe", "Exclusive") for name in FIELDS)


def rows(text: str, release: str = "") -> dict[str, Request]:
    """Parse ``squeue -O`` in ``fields_of(release)``: job or array id -> request."""
    names = fields_of(release)
    requests = {}
    for fields in long_records(text, len(FIELDS)):
        job_id, _, _ = fields[0].partition("_")
        requests[job_id] = request_of(dict(zip(names, fields, strict=True)))
    return requests


def request_of(row: dict[str, str]) -> Request:
    """Parse the request of one job; an unparsable one becomes ``_NOT_READ``.

    ``row``: ``FIELDS`` of ``squeue -O``; the hook has them of a submitted job (``hook.lines``).
    """
    if not row["JobArrayID"]:
        raise ParseError("a job without an id")
    if exclusive := row.pop("Exclusive", ""):
        row["OverSubscribe"] = _EXCLUSIVE.get(exclusive, exclusive)
        if row["MaxNodes"] == row["NumTasks"]:
            # Set by nobody: such a job gets the fewest nodes (JOB_IMPLICIT_MAX_NODES, job_mgr.c).
            row["MaxNodes"] = "0"
    try:
        if max(len(row[name]) for name in FIELDS[1:]) <= LONGEST:
            return _asked(row)
    except ParseError:
        pass
    return _NOT_READ


def _asked(row: dict[str, str]) -> Request:
    in_all = {}  # amounts, by resource
    for part in row["tres-alloc"].split(","):
        resource, _, amount = part.partition("=")
        in_all[resource] = amount
    cpus, n_tasks = whole(row["NumCPUs"]), whole(row["NumTasks"])
    n_nodes: int | None = None
    if "node" in in_all:
        n_nodes = whole(in_all["node"])
    memory, per_cpu = _memory(row["MinMemory"], in_all.get("mem", "0"), cpus, n_nodes or 1)
    memory_per_gpu_mb = 0
    if not (memory or per_cpu) or row["mem-per-tres"].startswith(_BY_USER):
        memory_per_gpu_mb = _per_gpu(row["mem-per-tres"])
    per_task, part_of = gpus_asked(row["tres-per-task"])
    shortest_s, reserved, doubts = duration_s(row["MinTime"]), row["Reservation"], Doubts()
    reservations: tuple[str, ...] = ()
    if reserved not in NOTHING:
        reservations = tuple(reserved.split(","))
    none: tuple[Way, ...] = ()
    gpu_type, several = type_of(row["tres-per-job"], row["tres-per-socket"], row["tres-per-task"])
    prefers = doubts.read("a preference", row["Prefer"], ways_of, none)
    words = {
        "contiguous nodes": row["Contiguous"] not in _NO_SUCH,
        "few switches": row["ReqSwitch"] not in _NO_SUCH,
        "GPUs per socket": gpus_needed(row["tres-per-socket"]) > 0,
        "a reboot": row["Reboot"] not in _NO_SUCH,
        "a block of nodes to itself": row["OverSubscribe"] == "TOPO",  # --exclusive=topo, 24.05
        several: several != "",
    }
    return {
        "n_nodes": n_nodes,
        "n_nodes_max": whole(row["MaxNodes"]),
        "cpus": cpus,
        "cpus_per_node": whole(row["MinCpus"]),
        "memory_mb": memory,
        "memory_per_cpu_mb": per_cpu,
        "memory_per_gpu_mb": memory_per_gpu_mb,
        _CPUS_PER_GPU: _per_gpu(row["cpus-per-tres"]),
        "gpus": max(gpus_needed(row["tres-per-job"]), per_task * n_tasks + part_of),
        "time_limit_min_s": shortest_s or None,
        "reservations": reservations,
        "can_share": row["OverSubscribe"] == "OK",
        "prefers": prefers,
        "gpu_type": gpu_type,
        "unclear": " and ".join(filter(None, (*(w for w in words if words[w]), doubts.words()))),
    }


def _per_gpu(text: str) -> int:
    """Return a number for each GPU: gres:gpu:4."""
    return sum(by_kind(items_of(text)).values())


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

    request_of: dict[_Key, Request | None] = field(default_factory=dict)  # None: not shown
    _missed: set[_Key] = field(default_factory=set)  # not shown when first asked about
    _made: Made[Job] = field(default_factory=Made)

    def lacks(self, jobs: Iterable[Job]) -> bool:
        """Return whether a pending ordinary job's request is not known yet."""
        return any(_key(job) not in self.request_of for job in jobs if _counts(job))

    def learn(self, jobs: Iterable[Job], found: dict[str, Request]) -> None:
        """Store the answer for these jobs."""
        before, self.request_of, self._missed = self.request_of, {}, set()
        for job in jobs:
            if not _counts(job):
                continue
            key = _key(job)
            job_id, _ = key
            self.request_of[key] = found.get(job_id)
            if self.request_of[key] is None and key not in before:
                self._missed.add(key)

    def pop_departed(self, jobs: Iterable[Job]) -> bool:
        """Return whether a job is pending no more, which was not shown when first asked about.

        Forgets those jobs: the queue is read again for them once.
        """
        missed, self._missed = self._missed, set()
        return any(_key(job) in missed for job in jobs if _counts(job))

    def complete(
        self,
        jobs: tuple[Job, ...],
        config: ControllerConfig | None,
        limits: SharingLimits = NO_LIMITS,
    ) -> tuple[Job, ...]:
        """Return the jobs with everything known about them."""
        if not self.request_of:
            return jobs
        self._made.begin()
        return tuple([self._complete(job, config, limits) for job in jobs])

    def _complete(self, job: Job, config: ControllerConfig | None, limits: SharingLimits) -> Job:
        if not _counts(job):
            return job
        request = self.request_of.get(_key(job))
        if request is None:
            return job
        make = partial(completed, job, request, config, limits)
        return self._made.of(job.job_id, job, (request, config, limits), make)


def _can_share(asked: Request, config: ControllerConfig | None) -> bool:
    """Return whether others may use the rest of its nodes; not if it takes all of their memory."""
    if config is None or not config.are_nodes_shared or not asked.get("can_share"):
        return False
    return not config.is_memory_counted or any(map(asked.get, _MEMORY))


def _with_gpus(job: Job, asked: Request, n_nodes: int, limits: SharingLimits) -> Request:
    """Return the request with the CPUs and the memory that come with its GPUs."""
    its = dict(asked)
    cpus_per_gpu = its.pop(_CPUS_PER_GPU, 0)
    n_gpus = max(its.get("gpus", 0), job.gpus_per_node * n_nodes)
    if not n_gpus or "cpus" not in its:  # no GPUs, or the request was not read
        return its
    default = limits.default_per_gpu_in(job.partitions)
    if its["memory_per_gpu_mb"]:
        its |= {"memory_mb": 0, "memory_per_cpu_mb": 0}  # a default that does not count
    elif not any(its[name] for name in _MEMORY):
        its["memory_per_gpu_mb"] = default.memory_mb
    if not cpus_per_gpu and its["cpus_per_node"] <= 1:
        cpus_per_gpu = default.cpus  # not of a job that names CPUs per task
    its["cpus"] = max(its["cpus"], cpus_per_gpu * n_gpus)
    return its


def completed(
    job: Job,
    asked: Request,
    config: ControllerConfig | None,
    limits: SharingLimits = NO_LIMITS,
) -> Job:
    """Return a job with everything that is known of its request."""
    n_nodes_min, n_nodes_max = asked["n_nodes"], asked["n_nodes_max"]
    # Where tasks have several CPUs squeue may show one node more than the job can have.
    n_nodes = min(job.n_nodes, n_nodes_max or job.n_nodes)
    n_nodes_with_gpus = n_nodes
    if n_nodes_min is not None and n_nodes_min < n_nodes_max:
        # For "-N 1-8" squeue shows the node count of the scheduler's last attempt.
        n_nodes = n_nodes_min
        n_nodes_with_gpus = n_nodes_min or n_nodes_with_gpus
    else:
        n_nodes_max = None
    request = _with_gpus(job, asked, n_nodes_with_gpus, limits)
    gpu_type, mixed = "", ""
    types = {job.gpu_type, request.get("gpu_type", "")} - {""}
    if len(types) > 1:
        mixed = SEVERAL_TYPES
    else:
        gpu_type = next(iter(types), "")
    fields = {
        **request,
        "n_nodes": n_nodes,
        "n_nodes_max": n_nodes_max,
        "can_share": _can_share(request, config),
        "gpu_type": gpu_type,
        "unclear": " and ".join(filter(None, (request["unclear"], job.unclear, mixed))),
    }
    return dataclasses.replace(job, **fields)


def _counts(job: Job) -> bool:
    return job.is_ordinary and job.state is JobState.PENDING


def _key(job: Job) -> _Key:
    """The cache key; a job with a changed limit is read again."""
    array_or_job_id, _, _ = job.job_id.partition("_")
    return array_or_job_id, job.time_limit_s


# True when the scheduler evaluated the job; the same poll shows whether it still is.
_BEGIN, _DEPENDENCY = "BeginTime", "Dependency"


def judged(
    jobs: Sequence[Job], made: Made[Job] | None = None, *, enforces_accounts: bool = True
) -> tuple[Job, ...]:
    """Return the jobs of a poll; pending ones with whether, and from when, they may start.

    Args:
        jobs: of the poll.
        made: cache of the last poll.
        enforces_accounts: whether a job needs a valid one (AccountingStorageEnforce). Without
            accounting the main scheduler of 23.11 calls every account invalid; backfill starts
            the jobs all the same (measured on 23.11.11).
    """
    lacks_nothing = _LACKS_NODES
    if not enforces_accounts:
        lacks_nothing |= {_NO_ACCOUNT}
    cache = Made[Job]()
    if made is not None:
        cache = made
    cache.begin()
    in_queue = frozenset(
        job.counts_as
        for job in jobs
        if job.is_ordinary and job.state in (JobState.PENDING, JobState.RUNNING)
    )
    return tuple([_judged(job, in_queue, cache, lacks_nothing) for job in jobs])


def _judged(
    job: Job, in_queue: AbstractSet[str], made: Made[Job], lacks_nothing: AbstractSet[str]
) -> Job:
    if not _counts(job):
        return job
    if job.reason == _BEGIN:
        may_start, begin_s = job.start_s is not None, job.start_s
    else:
        lacks_nodes = job.reason in lacks_nothing or lacks_nodes_only(job.reason)
        may_start, begin_s = lacks_nodes or job.reason == _DEPENDENCY, None
    if may_start and job.priority > 0.0 and not _waits_for_jobs(job, in_queue):
        if begin_s is None:
            return job
        return dataclasses.replace(job, begin_s=begin_s)
    make = partial(dataclasses.replace, job, is_entitled=False)
    return made.of(job.job_id, job, None, make)


def lacks_nodes_only(reason: str) -> bool:
    """Return whether by this reason a job lacks only nodes, or nothing."""
    return reason in _LACKS_NODES or reason.startswith(_LACKS_THESE)


def _waits_for_jobs(job: Job, in_queue: AbstractSet[str]) -> bool:
    """Return whether one of its dependencies is not fulfilled.

    The scheduler notices fulfilled ones only at its next pass, so a job that has left the queue
    counts as ended at once. For other conditions (``singleton``) the reason that the scheduler
    gave at its last evaluation counts.
    """
    is_said = job.reason == _DEPENDENCY
    if not job.waits_for:
        return is_said
    waits = []
    for part in re.split(r"[,?]", job.waits_for):
        parent = _AFTER_END.match(part)
        if parent is None:
            waits.append(is_said)
        else:
            waits.append(parent[1] in in_queue)
    if "?" in job.waits_for:  # one fulfilled is enough
        return all(waits)
    return any(waits)
