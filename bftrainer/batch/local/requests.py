"""The operations of the local batch system: JSON requests, and answers as plain data.

``client`` sends the lines, ``server`` passes each received line to this module, and the adapter
converts the fields of the answers to dataclasses.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bftrainer.batch.local.cluster import EndReason, JobRequest, LocalCluster, LocalJob, Phase
from bftrainer.batch.local.processes import JOB_VARIABLE, NODE_VARIABLE
from bftrainer.batch.local.workload import WorkloadProgress, workload_from_json
from bftrainer.model.cluster import JobState, NodeState
from bftrainer.model.errors import BatchSystemError, BftError

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
    """Return the known state of each id, as the fields of ``PilotObservation`` (minus presence)."""
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


Fields = Mapping[str, Any]


class Operations:
    """The requests that the server answers; keeps the two switches that requests may set."""

    def __init__(self, cluster: LocalCluster, background: WorkloadProgress, *, gpus: int) -> None:
        self.is_paused = False
        self.is_shutting_down = False
        self._cluster = cluster
        self._background = background
        self._gpus = gpus
        self._table: dict[str, Callable[[Fields, float], Fields]] = {
            "info": self._info,
            "submit": self._submit,
            "launch": self._launch,
            "cancel": self._cancel,
            "snapshot": self._snapshot,
            "pilots": self._pilots,
            "history": self._history,
            "start_workload": self._start_workload,
            "set_node": self._set_node,
            "pause": self._pause,
            "resume": self._resume,
            "shutdown": self._shutdown,
        }

    def answer(self, line: bytes, now_s: float) -> bytes | None:
        """Carry out one request; None: stay silent (the controller is "down").

        A request that comes while the server is paused is dropped and never carried out: its
        sender has timed out.
        """
        try:
            request = json.loads(line)
            op = request["op"]
            if self.is_paused and op not in ("resume", "shutdown"):
                return None
            result = {"ok": True, **self._table[op](request, now_s)}
        except BftError as refusal:
            result = _refusal(refusal)
        except (KeyError, TypeError, ValueError, RecursionError) as problem:
            result = _refusal(_malformed(f"{type(problem).__name__}: {problem}"))
        return json.dumps(result).encode() + b"\n"

    def _info(self, _: Fields, now_s: float) -> Fields:
        cluster = self._cluster
        return {
            "now_s": now_s,
            "pid": os.getpid(),
            "cycle_s": cluster.cycle_s,
            "kill_wait_s": cluster.kill_wait_s,
            "nodes": list(cluster.nodes),
            "gpus": self._gpus,
        }

    def _submit(self, request: Fields, now_s: float) -> Fields:
        wanted = JobRequest(
            user=_text(request, "user"),
            n_nodes=_count(request, "n_nodes"),
            limit_s=_positive(request, "limit_s"),
            argv=_argv(request),
        )
        return {"job_id": self._cluster.submit(wanted, now_s).job_id}

    def _launch(self, request: Fields, now_s: float) -> Fields:
        argv = _argv(request)
        if not os.access(argv[0], os.X_OK) or not Path(argv[0]).is_absolute():
            raise _malformed(f"{argv[0]!r} is not an absolute path of a program")
        wanted = JobRequest(
            user=_text(request, "user"),
            n_nodes=1,
            limit_s=_positive(request, "limit_s"),
            argv=argv,
            pilot_id=_text(request, "pilot_id"),
            node=_text(request, "node"),
            log_path=_log_path(request),
            environment=_environment(request),
        )
        return {"job_id": self._cluster.submit(wanted, now_s).job_id}

    def _cancel(self, request: Fields, now_s: float) -> Fields:
        is_force = request.get("force", False) is True
        for job_id in _texts(request, "job_ids"):
            job = self._cluster.jobs.get(job_id)
            if job is not None and (job.is_pilot or request.get("pilots_only") is not True):
                self._cluster.cancel(job, now_s, is_force=is_force)
        return {}

    def _snapshot(self, _: Fields, now_s: float) -> Fields:
        cluster = self._cluster
        return {
            "now_s": now_s,
            "cycle_s": cluster.cycle_s,
            "nodes": nodes_view(cluster, gpus=self._gpus),
            "jobs": jobs_view(cluster, gpus=self._gpus),
            "cycle": {
                "ended_s": cluster.cycle_ended_s,
                "depth": cluster.cycle_depth,
                "queue_length": cluster.cycle_depth,
            },
        }

    def _pilots(self, request: Fields, _: float) -> Fields:
        return {"pilots": pilots_view(self._cluster, _texts(request, "job_ids"))}

    def _history(self, _: Fields, __: float) -> Fields:
        return {"jobs": history_view(self._cluster), "workload": self._background.view()}

    def _start_workload(self, request: Fields, now_s: float) -> Fields:
        given = request.get("workload")
        self._background.start(None if given is None else workload_from_json(given), now_s)
        return {}

    def _set_node(self, request: Fields, now_s: float) -> Fields:
        node = _text(request, "node")
        if request["is_up"] is True:
            self._cluster.set_up(node)
        else:
            self._cluster.set_down(node, _text(request, "reason"), now_s)
        return {}

    def _pause(self, _: Fields, __: float) -> Fields:
        self.is_paused = True
        return {}

    def _resume(self, _: Fields, __: float) -> Fields:
        self.is_paused = False
        return {}

    def _shutdown(self, _: Fields, __: float) -> Fields:
        self.is_shutting_down = True
        return {}


def _refusal(problem: BftError) -> dict[str, Any]:
    return {
        "ok": False,
        "code": problem.code,
        "cause": problem.cause,
        "next_step": problem.next_step,
    }


def _malformed(what: str) -> BatchSystemError:
    return BatchSystemError(
        "BFT-1252",
        f"The local batch system cannot use this request ({what}).",
        "Correct the request.",
    )


def _text(request: Fields, name: str) -> str:
    value = request[name]
    if not isinstance(value, str) or "\0" in value:
        raise _malformed(f"{name} is not a text")
    return value


def _texts(request: Fields, name: str) -> list[str]:
    value = request[name]
    if not isinstance(value, list) or not all(isinstance(x, str) and "\0" not in x for x in value):
        raise _malformed(f"{name} is not a list of texts")
    return list(value)


def _argv(request: Fields) -> tuple[str, ...]:
    argv = tuple(_texts(request, "argv"))
    if not argv or not argv[0]:
        raise _malformed("argv is empty")
    return argv


def _count(request: Fields, name: str) -> int:
    value = request[name]
    if type(value) is not int or value < 1:
        raise _malformed(f"{name} is not a positive whole number")
    return value


def _positive(request: Fields, name: str) -> float:
    value = request[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise _malformed(f"{name} is not a positive number")
    return float(value)


def _log_path(request: Fields) -> Path:
    path = Path(_text(request, "log_path"))
    if not path.is_absolute() or not os.access(path.parent, os.W_OK):
        raise _malformed(f"log_path {str(path)!r} is not an absolute path in a writable folder")
    return path


def _environment(request: Fields) -> dict[str, str]:
    environment = request.get("environment", {})
    if not isinstance(environment, dict):
        raise _malformed("environment is not an object")
    names = list(environment)
    if any(not name or "=" in name or "\0" in name for name in names):
        raise _malformed("a name in environment is empty or holds '='")
    if {JOB_VARIABLE, NODE_VARIABLE} & set(names):
        raise _malformed(f"{JOB_VARIABLE} and {NODE_VARIABLE} are set by the batch system")
    return {name: _text(environment, name) for name in names}
