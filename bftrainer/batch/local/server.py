"""The local batch system's process: ``python -m bftrainer.batch.local.server --dir DIR``.

It serves JSON requests on DIR/local.sock (``client`` sends them; nodes, jobs and pilots are
answered as records of the model) and runs jobs as processes on this machine. It ends on SIGTERM, on
a ``shutdown`` request or with the process that started it, and kills everything it started.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import logging
import math
import os
import signal
import socket
import sys
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.batch.clock import STEADY
from bftrainer.batch.local.cluster import (
    JOB_VARIABLE,
    NODE_VARIABLE,
    EndReason,
    JobProcesses,
    JobRequest,
    LocalCluster,
    LocalJob,
    Phase,
)
from bftrainer.batch.local.workload import (
    JobWorkload,
    WorkloadProgress,
    load_workload,
    workload_from_json,
)
from bftrainer.model.cluster import (
    EndedBy,
    Job,
    JobState,
    LentGpus,
    Node,
    NodeState,
    Presence,
    SchedulerCycle,
)
from bftrainer.model.errors import BatchSystemError, BftError, ExitCode, UsageError
from bftrainer.model.lookups import by_job
from milp.plain import Form, codec, encode_any, parse

ORDINARY_PARTITION = "batch"
PILOT_PARTITION = "bf"
_FORM = Form()
_STATES = {
    Phase.PENDING: JobState.PENDING,
    Phase.RUNNING: JobState.RUNNING,
    Phase.ENDING: JobState.COMPLETING,
}
_ENDED_BY = {
    EndReason.COMPLETED: EndedBy.ITSELF,
    EndReason.FAILED: EndedBy.ITSELF,
    EndReason.CANCELLED: EndedBy.CANCELLED,
    EndReason.PREEMPTED: EndedBy.PREEMPTED,
    EndReason.TIMEOUT: EndedBy.TIME_LIMIT,
    EndReason.NODE_FAIL: EndedBy.NODE,
}
Fields = Mapping[str, Any]
MAX_LINE_BYTES = 4 * 1024 * 1024
SOCKET_NAME = "local.sock"
TEMPLATE_SOCKET_NAME = "template.sock"  # there when the template is warm
PID_NAME = "local.pid"
MAX_SOCKET_PATH_BYTES = 107
MAX_WAIT_S = 60.0


def nodes_of(cluster: LocalCluster, gpus: int) -> list[Node]:
    """Return every node, with so many GPUs."""
    users: dict[str, list[LocalJob]] = {}
    for job in cluster.jobs.values():
        if job.is_on_nodes:
            for node in job.nodes:
                users.setdefault(node, []).append(job)
    planned_nodes: set[str] = set()
    for job in cluster.jobs.values():
        planned_nodes.update(job.claim)
    if cluster.plan:
        planned_nodes.update(cluster.plan.nodes)

    def state(node: str) -> NodeState:
        if node in cluster.down:
            return NodeState.DOWN
        if node in users:
            if all(job.phase is Phase.ENDING for job in users[node]):
                return NodeState.COMPLETING
            return NodeState.ALLOCATED
        if node in planned_nodes:
            return NodeState.PLANNED
        return NodeState.IDLE

    return [
        Node(
            name=node,
            state=state(node),
            reason=cluster.down.get(node, ""),
            node_type="gpu" if gpus else "cpu",
            gpus=gpus,
            cpus=max(1, (os.cpu_count() or 1) // len(cluster.nodes)),
            partitions=(ORDINARY_PARTITION, PILOT_PARTITION),
            lends=_lent(cluster, node, users.get(node, ())),
            is_shared=bool(cluster.gpus_lent),
        )
        for node in cluster.nodes
    ]


def _lent(cluster: LocalCluster, node: str, users: Sequence[LocalJob]) -> tuple[LentGpus, ...]:
    """Return the GPUs that a node lends one by one."""
    if not cluster.gpus_lent:
        return ()
    n_free = cluster.gpus_lent - len(cluster.devices_in_use(node))
    if node in cluster.down or not all(job.request.gpus for job in users):
        n_free = 0  # somebody has the whole node
    cpus = max(1, (os.cpu_count() or 1) // len(cluster.nodes) // cluster.gpus_lent)
    lent = LentGpus(gpu_type="", n_gpus=cluster.gpus_lent, n_free=n_free, cpus=cpus, memory_mb=0)
    return (lent,)


def job_of(job: LocalJob, cluster: LocalCluster, gpus: int) -> Job:
    """Return a job of the queue."""
    request = job.request
    partition, priority = ORDINARY_PARTITION, 1.0
    if job.is_pilot:
        partition, priority = PILOT_PARTITION, 0.0
    plan, start_s, planned_nodes = cluster.plan, job.start_s, job.claim
    is_head = plan is not None and plan.job_id == job.job_id
    if plan is not None and is_head:
        planned_nodes = plan.nodes
        if job.phase is Phase.PENDING:
            start_s = plan.start_s
    return Job(
        job_id=job.job_id,
        user=request.user,
        partitions=(partition,),
        state=_STATES[job.phase],
        n_nodes=request.n_nodes,
        time_limit_s=request.limit_s,
        reason=_reason(job, is_head=is_head),
        priority=priority,
        submit_s=job.submit_s,
        start_s=start_s,
        nodes=job.nodes,
        planned_nodes=planned_nodes,
        required_nodes=(request.node,) if request.node else (),
        gpus_per_node=request.gpus or gpus,
        pilot_id=request.pilot_id,
    )


def _reason(job: LocalJob, *, is_head: bool = False) -> str:
    if job.phase is Phase.PENDING:
        return "Resources" if is_head or job.claim else "Priority"
    return job.end_reason.value if job.end_reason else ""


def pilot_of(job: LocalJob | None) -> PilotObservation:
    """Return what is known of a pilot; of an ordinary job nothing."""
    if job is None or not job.is_pilot:
        return PilotObservation(presence=Presence.ABSENT)
    presence, phase = Presence.PRESENT, job.phase.value
    if job.phase is Phase.ENDED:
        presence, phase = Presence.ABSENT, ""
    return PilotObservation(
        presence=presence,
        phase=phase,
        node=job.nodes[0] if job.nodes else None,
        start_s=job.start_s,
        reason=_reason(job),
        has_failed=job.end_reason is EndReason.FAILED,
        ended_by=_ENDED_BY[job.end_reason] if job.end_reason else EndedBy.UNKNOWN,
    )


class Operations:
    """The requests that the server answers; keeps the two switches that requests may set.

    The arguments of ``_op_NAME`` are the fields of the request NAME.
    """

    def __init__(self, cluster: LocalCluster, background: WorkloadProgress, *, gpus: int) -> None:
        self.is_paused = False
        self.is_shutting_down = False
        self._cluster, self._background, self._gpus = cluster, background, gpus
        self._now_s = 0.0

    def answer(self, line: bytes, now_s: float) -> bytes | None:
        """Carry out one request; None: stay silent (the controller is "down").

        A request that comes while the server is paused is dropped and never carried out: its
        sender has timed out.
        """
        self._now_s = now_s
        try:
            request = parse(line)
            op = request.pop("op")
            if self.is_paused and op not in ("resume", "shutdown"):
                return None
            result: Fields = {"ok": True, **self._carry_out(op, request)}
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            result = _refusal(_malformed(f"{type(problem).__name__}: {problem}"))
        except BftError as refusal:
            result = _refusal(refusal)
        return json.dumps(result).encode() + b"\n"

    def _carry_out(self, op: str, request: Fields) -> Fields:
        operation = getattr(self, f"_op_{op}")
        hints = typing.get_type_hints(operation)
        any_of = hints.get("fields")  # **fields: they are read by the operation
        arguments: dict[str, Any] = {}
        for name, value in request.items():
            arguments[name] = codec(hints.get(name, any_of), _FORM).decode(value)
        result: Fields = encode_any(operation(**arguments) or {}, _FORM)
        return result

    def _op_info(self) -> Fields:
        cluster = self._cluster
        return {
            "now_s": self._now_s,
            "pid": os.getpid(),
            "cycle_s": cluster.cycle_s,
            "kill_wait_s": cluster.kill_wait_s,
            "nodes": cluster.nodes,
            "gpus": self._gpus,
        }

    def _op_submit(
        self, *, user: str, n_nodes: int, limit_s: float, argv: tuple[str, ...]
    ) -> Fields:
        job_request = JobRequest(user=user, n_nodes=n_nodes, limit_s=limit_s, argv=argv)
        return {"job_id": self._cluster.submit(job_request, self._now_s).job_id}

    def _op_launch(self, **fields: Any) -> Fields:
        job_request = codec(JobRequest, _FORM).decode({**fields, "n_nodes": 1})
        program, log_path = job_request.argv[0], job_request.log_path
        if None in (job_request.pilot_id, job_request.node, log_path):
            raise ValueError("pilot_id, node or log_path is missing")
        if not os.access(program, os.X_OK) or not Path(program).is_absolute():
            raise ValueError(f"{program!r} is not an absolute path of a program")
        if not log_path.is_absolute() or not os.access(log_path.parent, os.W_OK):
            raise ValueError(f"log_path '{log_path}' is not an absolute path in a writable folder")
        if {JOB_VARIABLE, NODE_VARIABLE} & job_request.environment.keys():
            raise ValueError(f"{JOB_VARIABLE} and {NODE_VARIABLE} are set by the batch system")
        return {"job_id": self._cluster.submit(job_request, self._now_s).job_id}

    def _op_cancel(
        self, *, job_ids: list[str], force: bool = False, pilots_only: bool = False
    ) -> None:
        for job_id in job_ids:
            job = self._cluster.jobs.get(job_id)
            if job is not None and (job.is_pilot or not pilots_only):
                self._cluster.cancel(job, self._now_s, is_force=force)

    def _op_snapshot(self) -> Fields:
        cluster, depth = self._cluster, self._cluster.cycle_depth
        return {
            "now_s": self._now_s,
            "cycle_s": cluster.cycle_s,
            "nodes": nodes_of(cluster, self._gpus),
            "jobs": [job_of(job, cluster, self._gpus) for job in cluster.jobs.values()],
            "cycle": SchedulerCycle(ended_s=cluster.cycle_ended_s, depth=depth, queue_length=depth),
        }

    def _op_pilots(self, *, job_ids: list[str]) -> Fields:
        ended = by_job(self._cluster.ended)
        return {"pilots": {i: pilot_of(self._cluster.jobs.get(i, ended.get(i))) for i in job_ids}}

    def _op_history(self) -> Fields:
        """Return every ordinary job in the order of submission, ended or not."""
        jobs = [*self._cluster.ended, *self._cluster.jobs.values()]
        ordinary = sorted((j for j in jobs if not j.is_pilot), key=lambda j: int(j.job_id))
        return {"jobs": list(map(_past, ordinary)), "workload": self._background.view()}

    def _op_start_workload(self, *, workload: Any = None) -> None:
        if workload is not None:
            workload = workload_from_json(workload)
        self._background.start(workload, self._now_s)

    def _op_set_node(self, *, node: str, is_up: bool, reason: str) -> None:
        if is_up:
            self._cluster.set_up(node)
        else:
            self._cluster.set_down(node, reason, self._now_s)

    def _op_pause(self) -> None:
        self.is_paused = True

    def _op_resume(self) -> None:
        self.is_paused = False

    def _op_shutdown(self) -> None:
        self.is_shutting_down = True


def _past(job: LocalJob) -> Fields:
    return {
        "job_id": job.job_id,
        "user": job.request.user,
        "n_nodes": job.request.n_nodes,
        "limit_s": job.request.limit_s,
        "submit_s": job.submit_s,
        "start_s": job.start_s,
        "end_s": job.end_s,
        "nodes": job.nodes,
        "reason": job.end_reason.value if job.end_reason else "",
    }


def _refusal(problem: BftError) -> Fields:
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


class Server:
    """Wiring: socket (mode 0600), signals, cluster, clock; no client can block it."""

    def __init__(self, options: argparse.Namespace) -> None:
        directory: Path = options.dir
        now_s = STEADY()
        workload = JobWorkload(jobs=())
        if options.workload:
            workload = load_workload(options.workload)
        processes = JobProcesses(directory)
        if options.warm is not None:
            processes.start_template(directory / TEMPLATE_SOCKET_NAME, options.warm)
        self._cluster = LocalCluster(
            nodes=tuple(f"n{i}" for i in range(1, options.nodes + 1)),
            processes=processes,
            cycle_s=options.cycle_s,
            kill_wait_s=options.kill_wait_s,
            now_s=now_s,
            preempts_at_once=not options.preempt_in_cycles,
            gpus_lent=options.gpus if options.lend_gpus else 0,
        )
        self._background = WorkloadProgress(self._cluster, workload)
        if not options.hold_workload:
            self._background.start(None, now_s)
        self._operations = Operations(self._cluster, self._background, gpus=options.gpus)
        self._path, self._lifeline_fd = directory / SOCKET_NAME, options.lifeline_fd
        self._is_news = asyncio.Event()
        self._is_stopping = False

    async def run(self) -> None:
        """Serve until stopped, then clean up everything."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._is_news.set)
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(sig, self._stop)
        if self._lifeline_fd is not None:
            loop.add_reader(self._lifeline_fd, self._stop)
        self._path.unlink(missing_ok=True)  # of a server that was killed; the lock is ours
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        self._path.chmod(0o600)
        await asyncio.start_unix_server(self._serve, sock=listener, limit=MAX_LINE_BYTES)
        try:
            while not (self._is_stopping or self._operations.is_shutting_down):
                wait_s = min(max(0.0, self._work() - STEADY()), MAX_WAIT_S)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._is_news.wait(), wait_s)
                self._is_news.clear()
        finally:
            await self._leave()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):  # ValueError: the line is too long
            while (line := await reader.readline()).endswith(b"\n"):
                writer.write(self._operations.answer(line, STEADY()) or b"")
                self._is_news.set()
                await writer.drain()
        writer.close()

    def _work(self) -> float:
        if self._operations.is_paused:
            return self._cluster.tick(STEADY(), is_scheduling=False)
        due_s = self._background.submit_due(STEADY())
        return min(due_s, self._cluster.tick(STEADY()))

    def _stop(self) -> None:
        if self._lifeline_fd is not None:  # it stays readable, and we have seen it
            asyncio.get_running_loop().remove_reader(self._lifeline_fd)
        self._is_stopping = True
        self._is_news.set()

    async def _leave(self) -> None:
        self._cluster.terminate_all(STEADY())
        deadline = time.monotonic() + min(self._cluster.kill_wait_s, 1.0)
        while time.monotonic() < deadline and self._cluster.is_something_ending():
            await asyncio.sleep(0.02)
            self._cluster.tick(STEADY(), is_scheduling=False)
        while not self._cluster.kill_all():  # noqa: ASYNC110 - nothing tells of processes
            await asyncio.sleep(0.01)
        self._path.unlink(missing_ok=True)


def _lock(directory: Path) -> IO[str]:
    """Lock the directory for this server, as long as the file is open."""
    pid_file = (directory / PID_NAME).open("a+", encoding="ascii")
    try:
        fcntl.flock(pid_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        pid_file.close()
        raise UsageError(
            "BFT-1255",
            f"A local batch system is already running in {directory}.",
            "Use it, stop it, or choose another directory.",
            exit_code=ExitCode.ALREADY_RUNNING,
        ) from problem
    pid_file.truncate(0)
    pid_file.write(f"{os.getpid()}\n")
    pid_file.flush()
    return pid_file


def _prepare(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    socket_path = directory / SOCKET_NAME
    if len(os.fsencode(socket_path)) > MAX_SOCKET_PATH_BYTES:
        raise UsageError(
            "BFT-1254",
            f"The path {socket_path} is too long for a socket "
            f"({MAX_SOCKET_PATH_BYTES} bytes at most).",
            "Choose a shorter directory.",
        )


def _at_least(kind: type[int | float], least: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return value

    return parse


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bftrainer.batch.local.server", description=__doc__)
    parser.add_argument("--dir", type=lambda p: Path(p).absolute(), required=True)
    parser.add_argument("--nodes", type=_at_least(int, 1), default=8)
    parser.add_argument("--gpus", type=_at_least(int, 0), default=0, help="per node")
    parser.add_argument(
        "--lend-gpus", action="store_true", help="pilots may have GPUs of a node one by one"
    )
    parser.add_argument("--workload", type=Path, help="JSON file of ordinary jobs")
    parser.add_argument(
        "--hold-workload", action="store_true", help="until a start_workload request"
    )
    parser.add_argument("--cycle-s", type=_at_least(float, 0.05), default=1.0)
    parser.add_argument(
        "--preempt-in-cycles",
        action="store_true",
        help="preempt pilots a cycle later, as Slurm's backfill does",
    )
    parser.add_argument("--kill-wait-s", type=_at_least(float, 0.0), default=10.0)
    parser.add_argument(
        "--warm",
        nargs="*",
        metavar="MODULE",
        help="import torch and these modules once for the workers of all nodes",
    )
    parser.add_argument("--lifeline-fd", type=int, help="end when this pipe is closed")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server in the foreground and return its exit code."""
    options = _options(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        _prepare(options.dir)
        with _lock(options.dir) as pid_file:
            try:
                asyncio.run(Server(options).run())
            finally:
                pid_file.truncate(0)  # the file stays: it is the lock
    except BftError as problem:
        sys.stderr.write(f"{problem}\n")
        return int(problem.exit_code)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
