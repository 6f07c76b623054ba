"""Converts ``LocalCluster`` to plain data: snapshots, pilot states, history.

Called by ``requests``; the adapter converts the same fields to dataclasses.
"""

from __future__ import annotations

import os
from typing import Any

from bftrainer.batch.local.cluster import LocalCluster
from bftrainer.batch.local.jobs import EndReason, LocalJob, Phase
from bftrainer.model.cluster import JobState, NodeState

ORDINARY_PARTITION = "batch"
PILOT_PARTITION = "bf"
_STATES = {
    Phase.PENDING: JobState.PENDING,
    Phase.RUNNING: JobState.RUNNING,
    Phase.ENDING: JobState.COMPLETING,
    Phase.ENDED: JobState.OTHER,
}


def nodes_view(cluster: LocalCluster, *, gpus: int) -> list[dict[str, Any]]:
    """Every node as the fields of ``Node``."""
    users = {n: j for j in cluster.jobs.values() if j.is_on_nodes for n in j.nodes}
    planned = {n for j in cluster.jobs.values() for n in j.claim}
    planned.update(cluster.plan.nodes if cluster.plan else ())
    cpus = max(1, (os.cpu_count() or 1) // len(cluster.nodes))
    return [
        {
            "name": node,
            "state": _node_state(node, users.get(node), cluster, planned).value,
            "reason": cluster.down.get(node, ""),
            "node_type": "gpu" if gpus else "cpu",
            "gpus": gpus,
            "cpus": cpus,
            "partitions": [ORDINARY_PARTITION, PILOT_PARTITION],
        }
        for node in cluster.nodes
    ]


def _node_state(
    node: str, user: LocalJob | None, cluster: LocalCluster, planned: set[str]
) -> NodeState:
    if node in cluster.down:
        return NodeState.DOWN
    if user is not None:
        ends = user.phase is Phase.ENDING
        return NodeState.COMPLETING if ends else NodeState.ALLOCATED
    return NodeState.PLANNED if node in planned else NodeState.IDLE


def jobs_view(cluster: LocalCluster, *, gpus: int) -> list[dict[str, Any]]:
    """The queue as the fields of ``Job``."""
    return [_job(job, cluster, gpus) for job in cluster.jobs.values()]


def _job(job: LocalJob, cluster: LocalCluster, gpus: int) -> dict[str, Any]:
    request = job.request
    plan = cluster.plan if cluster.plan and cluster.plan.job_id == job.job_id else None
    start_s = job.start_s
    if job.phase is Phase.PENDING and plan is not None:
        start_s = plan.start_s
    return {
        "job_id": job.job_id,
        "user": request.user,
        "partitions": [PILOT_PARTITION if job.is_pilot else ORDINARY_PARTITION],
        "state": _STATES[job.phase].value,
        "n_nodes": request.n_nodes,
        "time_limit_s": request.limit_s,
        "reason": _reason(job, is_head=plan is not None),
        "priority": 0.0 if job.is_pilot else 1.0,
        "submit_s": job.submit_s,
        "start_s": start_s,
        "nodes": list(job.nodes),
        "planned_nodes": list(plan.nodes if plan else job.claim),
        "required_nodes": [request.node] if request.node else [],
        "gpus_per_node": gpus,
        "pilot_id": request.pilot_id,
    }


def _reason(job: LocalJob, *, is_head: bool) -> str:
    if job.phase is Phase.PENDING:
        return "Resources" if is_head or job.claim else "Priority"
    return job.end_reason.value if job.end_reason else ""


def pilots_view(cluster: LocalCluster, job_ids: list[str]) -> dict[str, dict[str, Any]]:
    """What is known of each id, as the fields of ``PilotObservation`` (minus presence)."""
    wanted = set(job_ids)
    ended = {j.job_id: j for j in cluster.ended if j.job_id in wanted}
    seen: dict[str, dict[str, Any]] = {}
    for job_id in job_ids:
        job = cluster.jobs.get(job_id) or ended.get(job_id)
        if job is None or not job.is_pilot:
            nothing = {"phase": "", "node": None, "start_s": None, "reason": ""}
            seen[job_id] = {**nothing, "has_failed": False}
            continue
        seen[job_id] = {
            "phase": "" if job.phase is Phase.ENDED else job.phase.value,
            "node": job.nodes[0] if job.nodes else None,
            "start_s": job.start_s,
            "reason": _reason(job, is_head=False),
            "has_failed": job.end_reason is EndReason.FAILED,
        }
    return seen


def history_view(cluster: LocalCluster) -> list[dict[str, Any]]:
    """Every ordinary job in the order of submission, ended or not."""
    jobs = [*cluster.ended, *cluster.jobs.values()]
    return [
        {
            "job_id": job.job_id,
            "user": job.request.user,
            "n_nodes": job.request.n_nodes,
            "limit_s": job.request.limit_s,
            "submit_s": job.submit_s,
            "start_s": job.start_s,
            "end_s": job.end_s,
            "nodes": list(job.nodes),
            "reason": job.end_reason.value if job.end_reason else "",
        }
        for job in sorted(jobs, key=lambda j: int(j.job_id))
        if not job.is_pilot
    ]
