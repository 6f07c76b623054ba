"""Parses lines of the hook's file into announcements.

Called by ``watch`` with whole lines. Foreign or truncated lines give None. User-written fields that
cannot be read are left out and noted (``slurm_plugins.fields``): Slurm may refuse such a job,
but only after the notification.
"""

from __future__ import annotations

import dataclasses
import math
import re

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.tail import name_of
from bftrainer.model.cluster import STAND_IN, Job, JobState
from bftrainer.model.hostlist import ParseError, expand
from slurm_plugins.fields import Doubts, NodeLists, ways_of
from slurm_plugins.gres import gpus_needed, type_of
from slurm_plugins.hook.scripts import N_ALL, N_FEW
from slurm_plugins.hook.squeue_row import (
    FIELD_NAMES,
    ClusterFacts,
    SubmittedFields,
    count,
    nodes_shown,
    row_of,
)
from slurm_plugins.job_requests import completed, request_of

LONGEST_LINE = 1 << 18  # characters; 165,000 for GPUs alone were seen (22.05)
N_CHANGE = 5  # fields
NOTHING_KNOWN = ClusterFacts()
_TIME = re.compile(r"-?[0-9]{1,20}")  # 64 bits; --begin may lie in the past
CHANGES = ("end", "modify")  # a job ended or was modified


def announcement(
    line: str, number: int, cluster: ClusterFacts = NOTHING_KNOWN
) -> Announcement | None:
    """Parse one line.

    Of a line with few fields, of an earlier release's script or too long with all of them, the job
    has no more than its size, its GPUs on each node and its constraints; its ``cpus`` are 0.

    Args:
        line: without its end; a later version of the script may add fields.
        number: becomes part of the job's stand-in id.
        cluster: what completes the request.
    """
    if len(line) > LONGEST_LINE:
        return None
    fields = line.split("\t", N_ALL)
    try:
        if fields[0] == "submit":
            job = _submitted(fields, number, cluster)
            if job is None:
                return None
            partition = ""
            if len(job.partitions) == 1:
                partition = job.partitions[0]
            return Announcement(at_s=float(count(fields[1])), partition=partition, job=job)
        if fields[0] in CHANGES and len(fields) == N_CHANGE:
            at_s, nodes = float(count(fields[1])), expand(fields[4])
            job_id = fields[2] if fields[0] == "end" else ""
            return Announcement(at_s=at_s, partition=fields[3], nodes=nodes, job_id=job_id)
    except ParseError:
        return None
    return None


def _submitted(fields: list[str], number: int, cluster: ClusterFacts) -> Job | None:
    if len(fields) >= N_ALL:
        return _whole_job(fields[:N_ALL], number, cluster)
    if len(fields) in (N_FEW, N_FEW + 1):  # an early version of the script added one
        return _job(fields[:N_FEW], number, cluster.cpus_per_node)
    return None


def _whole_job(fields: list[str], number: int, cluster: ClusterFacts) -> Job:
    """Return the job with its whole request, as the next poll will show it."""
    job, doubts = _job(fields[:N_FEW], number, cluster.cpus_per_node), Doubts()
    none: tuple[str, ...] = ()
    texts = (*fields[4:8], *fields[N_FEW:])
    submitted = SubmittedFields(**dict(zip(FIELD_NAMES, texts, strict=True)))
    n_required = len(job.required_nodes)
    excluded_nodes = doubts.read("nodes to avoid", submitted.excluded, NodeLists().names, none)
    job = dataclasses.replace(
        job,
        n_nodes=nodes_shown(submitted, n_required, cluster),
        excluded_nodes=excluded_nodes,
        unclear=" and ".join(filter(None, (job.unclear, doubts.words()))),
    )
    row = row_of(submitted, job, cluster.limits)
    return completed(job, request_of(row), cluster.config, cluster.limits)


def _job(fields: list[str], number: int, cpus_per_node: int) -> Job:
    (at_s, uid, partition, nodes, tasks, cpus_per_task, cpus, minutes) = fields[1:9]
    (features, required, gres, _immediate, begin_s, dependency, priority) = fields[9:]
    doubts, why_later = Doubts(), _why_later(begin_s, at_s, dependency, priority)
    gpu_type, several = type_of(gres)
    limit_s: float | None = None
    if minutes:
        limit_s = 60.0 * count(minutes)
    return Job(
        job_id=f"{STAND_IN}{number}",
        user=name_of(count(uid), uid),
        partitions=doubts.partitions(partition),  # none: the default one
        state=JobState.PENDING,
        n_nodes=_n_nodes(nodes, tasks, cpus_per_task, cpus, cpus_per_node),
        time_limit_s=limit_s,
        reason=why_later,
        is_entitled=not why_later,
        submit_s=float(count(at_s)),
        # Behind all known jobs; the next poll shows the true priority.
        priority=0.0,
        required_nodes=doubts.read("nodes", required, NodeLists().names, ()),
        wants=doubts.read("a constraint", features, ways_of, ()),
        gpus_per_node=doubts.read("GPUs", gres, gpus_needed, 0),
        gpu_type=gpu_type,
        unclear=" and ".join(filter(None, (doubts.words(), several))),
    )


def _n_nodes(nodes: str, tasks: str, cpus_per_task: str, cpus: str, cpus_per_node: int) -> int:
    """Nodes requested, or the number that the requested processors need."""
    if nodes:
        return max(1, count(nodes))
    if not cpus_per_node:
        return 1
    n_cpus = max(count(tasks or "1") * count(cpus_per_task or "1"), count(cpus or "1"))
    return max(1, math.ceil(n_cpus / cpus_per_node))


def _why_later(begin_s: str, now_s: str, dependency: str, priority: str) -> str:
    """The reason why it cannot start yet, in Slurm's words."""
    if priority == "0":
        return "JobHeldUser"
    if dependency:
        return "Dependency"
    if begin_s and _TIME.fullmatch(begin_s) is None:
        raise ParseError(f"not a time: {begin_s[:40]!r}")
    if begin_s and int(begin_s) > count(now_s):
        return "BeginTime"
    return ""
