"""Parses lines of the hook's file into announcements.

Called by ``watch`` with whole lines. Foreign or truncated lines give None. User-written fields that
cannot be read are left out and noted (``slurm_plugins.fields``): Slurm may refuse such a job,
but only after the notification.
"""

from __future__ import annotations

import math
import re

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.tail import name_of
from bftrainer.model.cluster import STAND_IN, Job, JobState
from bftrainer.model.hostlist import ParseError, expand
from slurm_plugins.fields import Doubts, NodeLists, ways_of
from slurm_plugins.gres import gpus_needed, type_of

LONGEST_LINE = 1 << 18  # characters; 165,000 for GPUs alone were seen (22.05)
N_SUBMIT, N_CHANGE = 16, 5  # fields
_COUNT = re.compile(r"[0-9]{1,10}")  # 32 bits
_TIME = re.compile(r"-?[0-9]{1,20}")  # 64 bits; --begin may lie in the past
CHANGES = ("end", "modify")  # a job ended or was modified


def announcement(line: str, number: int, cpus_per_node: int = 0) -> Announcement | None:
    """Parse one line.

    Args:
        line: without its end; an earlier version of the script may add one field.
        number: becomes part of the job's stand-in id.
        cpus_per_node: converts requested processors to nodes; 0: unknown.
    """
    if len(line) > LONGEST_LINE:
        return None
    fields = line.split("\t", N_SUBMIT + 1)
    try:
        if fields[0] == "submit" and len(fields) in (N_SUBMIT, N_SUBMIT + 1):
            job = _job(fields[:N_SUBMIT], number, cpus_per_node)
            partition = job.partitions[0] if len(job.partitions) == 1 else ""
            return Announcement(at_s=float(_count(fields[1])), partition=partition, job=job)
        if fields[0] in CHANGES and len(fields) == N_CHANGE:
            at_s, nodes = float(_count(fields[1])), expand(fields[4])
            return Announcement(at_s=at_s, partition=fields[3], nodes=nodes)
    except ParseError:
        return None
    return None


def _count(text: str) -> int:
    if _COUNT.fullmatch(text) is None:
        raise ParseError(f"not a count: {text[:40]!r}")
    return int(text)


def _job(fields: list[str], number: int, cpus_per_node: int) -> Job:
    (at_s, uid, partition, nodes, tasks, cpus_per_task, cpus, minutes) = fields[1:9]
    (features, required, gres, _immediate, begin_s, dependency, priority) = fields[9:]
    doubts, why_later = Doubts(), _why_later(begin_s, at_s, dependency, priority)
    gpu_type, several = type_of(gres)
    return Job(
        job_id=f"{STAND_IN}{number}",
        user=name_of(_count(uid), uid),
        partitions=doubts.partitions(partition),  # none: the default one
        state=JobState.PENDING,
        n_nodes=_n_nodes(nodes, tasks, cpus_per_task, cpus, cpus_per_node),
        time_limit_s=60.0 * _count(minutes) if minutes else None,
        reason=why_later,
        is_entitled=not why_later,
        submit_s=float(_count(at_s)),
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
        return max(1, _count(nodes))
    if not cpus_per_node:
        return 1
    wanted = max(_count(tasks or "1") * _count(cpus_per_task or "1"), _count(cpus or "1"))
    return max(1, math.ceil(wanted / cpus_per_node))


def _why_later(begin_s: str, now_s: str, dependency: str, priority: str) -> str:
    """The reason why it cannot start yet, in Slurm's words."""
    if priority == "0":
        return "JobHeldUser"
    if dependency:
        return "Dependency"
    if begin_s and _TIME.fullmatch(begin_s) is None:
        raise ParseError(f"not a time: {begin_s[:40]!r}")
    if begin_s and int(begin_s) > _count(now_s):
        return "BeginTime"
    return ""
