"""The state of the local batch system: jobs, queues, starts and ends, and the jobs' processes.

``server`` calls ``tick`` whenever something may have happened, and submits, cancels and shows jobs.
Single-threaded, without locks. A job has one process group per node. The server is the subreaper of
all it starts, so no process can outlive its job, even if it left its process group.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import logging
import math
import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bftrainer.batch.local.scheduler import HeadReservation, LocalAllocation, PendingJob, run_pass
from bftrainer.batch.process import kill_group, own_python, spawn
from bftrainer.model.errors import BatchSystemError, UsageError

JOB_VARIABLE = "BFT_LOCAL_JOB_ID"
NODE_VARIABLE = "BFT_LOCAL_NODE"
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"  # of pilots that have GPUs of their node
SHARED_TEMPLATE_VARIABLE = "BFT_SHARED_TEMPLATE"
TEMPLATE_JOB = "template"  # as long as the longest id of a job, whose place it keeps
PASSED_ON = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
_PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.02  # while a job is ending
REMEMBERED = 10_000  # ended jobs kept for ``history``


class JobProcesses:
    """All processes of all jobs; one leader (and its group) per job and node."""

    def __init__(self, directory: Path) -> None:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise UsageError(
                "BFT-1254",
                "The program 'setpriv' is not in PATH.",
                "Install the package util-linux.",
            )
        # The kernel kills every leader when the server dies, however it dies.
        self._prefix = (setpriv, "--pdeathsig", "KILL", "--")
        self._directory = directory
        self._leaders: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._template: dict[str, str] = {}  # the variable with its socket
        _become_subreaper()

    def start_template(self, socket_path: Path, modules: Sequence[str]) -> None:
        """Start a process with torch and ``modules`` imported that agents fork workers from.

        Agents for which it is not there or not the right one start one each, as elsewhere.
        """
        socket_path.unlink(missing_ok=True)  # of a server that was killed
        self.start(
            TEMPLATE_JOB,
            ("host",),
            own_python("trainers.agent.share", str(socket_path), *modules, is_isolated=True),
            environment={},
            log_path=self._directory / "template.log",
        )
        self._template = {SHARED_TEMPLATE_VARIABLE: str(socket_path)}

    def start(
        self,
        job_id: str,
        nodes: Sequence[str],
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_path: Path | None,
    ) -> None:
        """Start the job's program once on each of its nodes.

        Raises:
            OSError: the log cannot be opened or a process cannot be made; what was
                started already is left to ``sweep``.
        """
        leaders = self._leaders.setdefault(job_id, [])
        base = {k: os.environ[k] for k in PASSED_ON if k in os.environ}
        with Path(log_path or os.devnull).open("ab") as log:
            for node in nodes:
                ours = {JOB_VARIABLE: job_id, NODE_VARIABLE: node, **self._template}
                leaders.append(
                    spawn(
                        (*self._prefix, *argv),
                        env={**base, **environment, **ours},
                        cwd=self._directory,
                        stdout=log,
                        stderr=log,
                    )
                )

    def send(self, job_id: str, sig: signal.Signals) -> None:
        """Signal every process group of the job."""
        for leader in self._leaders.get(job_id, []):
            if leader.poll() is None:
                kill_group(leader.pid, sig)

    def has_left(self, job_id: str) -> bool:
        """Return whether all leaders of the job have ended."""
        return all(leader.poll() is not None for leader in self._leaders.get(job_id, []))

    def has_failed(self, job_id: str) -> bool:
        """Return whether a leader of the job ended with another status than 0, or by a signal."""
        return any(leader.returncode for leader in self._leaders.get(job_id, []))

    def sweep(self, ending: frozenset[str]) -> frozenset[str]:
        """Kill the orphans of these jobs; return the jobs without any process left.

        Orphans of every depth become our children, so it suffices to check those.
        """
        left_behind: set[str] = set()
        for pid in self._orphans():
            job_id = self._job_of(pid)
            if job_id is not None and (job_id in ending or job_id not in self._leaders):
                left_behind.add(job_id)
                _kill(pid)
        ended = frozenset(filter(self.has_left, ending - left_behind))
        for job_id in ended:
            self._leaders.pop(job_id, None)
        return ended

    def kill_all(self) -> bool:
        """Kill every process there is; return whether none is left."""
        for job_id in list(self._leaders):
            self.send(job_id, signal.SIGKILL)
            if self.has_left(job_id):
                self._leaders.pop(job_id)
        orphans = self._orphans()
        for pid in orphans:
            _kill(pid)
        return not orphans and not self._leaders

    def _orphans(self) -> list[int]:
        """Return live children that are not leaders; reaps dead ones until there are none."""
        leaders = {leader.pid for leader in itertools.chain(*self._leaders.values())}
        while True:
            adopted = [pid for pid in _children() if pid not in leaders]
            reaped = [pid for pid in adopted if os.waitpid(pid, os.WNOHANG)[0] == pid]
            if not reaped:
                return adopted

    def _job_of(self, pid: int) -> str | None:
        """The job a process belongs to: by the environment it was given, or by its group."""
        mark = f"{JOB_VARIABLE}=".encode()
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            group = os.getpgid(pid)
        except OSError:
            return None  # ended meanwhile: the next sweep finds its children
        for entry in entries:
            if entry.startswith(mark):
                return entry[len(mark) :].decode(errors="replace")
        for job_id, leaders in self._leaders.items():
            if any(leader.pid == group for leader in leaders):
                return job_id
        return None


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _children() -> list[int]:
    """Our children, adopted ones included (the server has one thread)."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return list(map(int, path.read_text(encoding="ascii").split()))


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class Phase(enum.StrEnum):
    """Life of a job; it only moves forward."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"  # signalled, or its leaders have ended; nodes not free yet
    ENDED = "ended"


class EndReason(enum.StrEnum):
    """The reason for the end of a job, in the batch system's own word."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"  # by itself, with another status than 0
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A submission: an ordinary job, or a pilot (``pilot_id`` set)."""

    user: str
    n_nodes: int
    limit_s: float
    argv: tuple[str, ...]
    pilot_id: str | None = None
    node: str | None = None  # pilots name theirs
    gpus: int = 0  # of a pilot that needs no more of its node; 0: all of it
    log_path: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what no process can be started with.

        Raises:
            ValueError: with a sentence that says what is wrong.
        """
        if self.n_nodes < 1 or not 0 < self.limit_s < math.inf or self.gpus < 0:
            raise ValueError("n_nodes and limit_s must be positive")
        if not self.argv or not self.argv[0]:
            raise ValueError("argv is empty")
        if any(not name or "=" in name for name in self.environment):
            raise ValueError("a name in environment is empty or holds '='")
        texts = (*self.argv, *self.environment, *self.environment.values(), str(self.log_path))
        if "\0" in "".join(texts):
            raise ValueError("a text holds a null character")


@dataclass(slots=True, kw_only=True)
class LocalJob:
    """A job and its present state; only ``cluster`` changes it."""

    job_id: str
    request: JobRequest
    submit_s: float
    phase: Phase = Phase.PENDING
    nodes: tuple[str, ...] = ()
    claim: tuple[str, ...] = ()  # assigned nodes that pilots still have to leave
    start_s: float | None = None
    end_s: float | None = None
    end_reason: EndReason | None = None
    kill_at_s: float | None = None  # when SIGTERM is followed by SIGKILL
    devices: tuple[int, ...] = ()  # of a pilot that has GPUs of its node: their indices

    @property
    def is_pilot(self) -> bool:
        """Return whether it is a pilot of ours, of the lowest tier."""
        return self.request.pilot_id is not None

    @property
    def is_on_nodes(self) -> bool:
        """Return whether it occupies nodes."""
        return self.phase in (Phase.RUNNING, Phase.ENDING)

    @property
    def limit_at_s(self) -> float:
        """Time at which its limit is reached; only for jobs that started."""
        return (self.start_s or 0.0) + self.request.limit_s

    def as_held(self) -> LocalAllocation:
        """The job as the scheduler sees it while it is on nodes."""
        return LocalAllocation(
            job_id=self.job_id,
            nodes=self.nodes,
            start_s=self.start_s or 0.0,
            ends_by_s=self.limit_at_s,
            is_pilot=self.is_pilot,
            is_ending=self.phase is Phase.ENDING,
            gpus=self.request.gpus,
        )


log = logging.getLogger(__name__)


class LocalCluster:
    """Nodes, queue and jobs."""

    def __init__(
        self,
        *,
        nodes: tuple[str, ...],
        processes: JobProcesses,
        cycle_s: float,
        kill_wait_s: float,
        now_s: float,
        preempts_at_once: bool = True,
        gpus_lent: int = 0,
    ) -> None:
        self.nodes = nodes
        self.gpus_lent = gpus_lent  # of each node, to pilots one by one
        self.down: dict[str, str] = {}  # node → reason
        self.cycle_s = cycle_s
        self.jobs: dict[str, LocalJob] = {}  # in the order of submission; none that ended
        self.ended: deque[LocalJob] = deque(maxlen=REMEMBERED)
        self.plan: HeadReservation | None = None
        self.cycle_ended_s: float | None = None
        self.cycle_depth = 0
        self._processes = processes
        self.kill_wait_s = kill_wait_s
        self._preempts_at_once = preempts_at_once  # or in the second full pass that sees the job
        self._numbers = itertools.count(1)
        self._next_cycle_s = now_s
        self._is_queue_changed = False

    # -- requests ------------------------------------------------------------------

    def submit(self, request: JobRequest, now_s: float) -> LocalJob:
        """Queue a job.

        Raises:
            BatchSystemError: BFT-1253, it can never run here.
        """
        if request.gpus > self.gpus_lent:
            raise BatchSystemError(
                "BFT-1253",
                f"The pilot asks for {request.gpus} GPUs of a node, which lends {self.gpus_lent}.",
                "Start the server with as many --gpus, and with --lend-gpus.",
            )
        if request.n_nodes > len(self.nodes) or request.node not in (None, *self.nodes):
            raise BatchSystemError(
                "BFT-1253",
                f"The job asks for {request.node or f'{request.n_nodes} nodes'}, "
                f"the cluster has {self.nodes[0]} to {self.nodes[-1]}.",
                "Ask for nodes that exist.",
            )
        pilot_id = request.pilot_id
        if pilot_id is not None and any(j.request.pilot_id == pilot_id for j in self.jobs.values()):
            raise BatchSystemError(
                "BFT-1252",
                f"There is a pilot {pilot_id!r} already.",
                "Give every pilot a new id.",
            )
        job = LocalJob(job_id=str(next(self._numbers)), request=request, submit_s=now_s)
        self.jobs[job.job_id] = job
        self._is_queue_changed = True
        return job

    def cancel(self, job: LocalJob, now_s: float, *, is_force: bool) -> None:
        """End a job: SIGTERM, then SIGKILL after the kill wait, or at once by force."""
        self._end(job, EndReason.CANCELLED, now_s)
        if is_force and job.is_on_nodes:
            self._kill(job)

    def set_down(self, node: str, reason: str, now_s: float) -> None:
        """Set a node down and kill every job that uses it."""
        if node not in self.nodes:
            raise BatchSystemError(
                "BFT-1253", f"There is no node {node!r}.", f"Use one of: {', '.join(self.nodes)}."
            )
        self.down[node] = reason
        for job in list(self.jobs.values()):
            if node in job.claim:
                job.claim = ()
            if node in job.nodes:
                self._end(job, EndReason.NODE_FAIL, now_s)
                self._kill(job)
        self._is_queue_changed = True

    def set_up(self, node: str) -> None:
        """Set a node up again."""
        self.down.pop(node, None)
        self._is_queue_changed = True

    # -- time ----------------------------------------------------------------------

    def tick(self, now_s: float, *, is_scheduling: bool = True) -> float:
        """Collect ended jobs, enforce limits, run due passes; return when to call again."""
        self._collect(now_s)
        if not is_scheduling:
            return now_s + (POLL_S if self.is_something_ending() else 3600.0)
        if self._is_queue_changed:
            self._is_queue_changed = False
            self._schedule(now_s, is_full=False)
        if now_s >= self._next_cycle_s:
            self._schedule(now_s, is_full=True)
            self.cycle_ended_s = now_s
            missed = (now_s - self._next_cycle_s) // self.cycle_s
            self._next_cycle_s += (missed + 1) * self.cycle_s
        if self._is_queue_changed:
            return now_s  # a job ended as it began
        limits = [j.limit_at_s for j in self.jobs.values() if j.phase is Phase.RUNNING]
        due_s = min([self._next_cycle_s, *limits])
        if self.is_something_ending():
            return min(due_s, now_s + POLL_S)
        return due_s

    def terminate_all(self, now_s: float) -> None:
        """Send SIGTERM to every job; drop all pending ones."""
        for job in list(self.jobs.values()):
            self._end(job, EndReason.CANCELLED, now_s)

    def kill_all(self) -> bool:
        """Kill all processes; return whether all are gone (call again if not)."""
        return self._processes.kill_all()

    def devices_in_use(self, node: str) -> frozenset[int]:
        """Return the indices of a node's GPUs that pilots have one by one."""
        devices: set[int] = set()
        for job in self.jobs.values():
            if job.is_on_nodes and node in job.nodes:
                devices.update(job.devices)
        return frozenset(devices)

    def is_something_ending(self) -> bool:
        """Return whether a job is ending."""
        return any(j.phase is Phase.ENDING for j in self.jobs.values())

    def _collect(self, now_s: float) -> None:
        for job in self.jobs.values():
            if job.phase is Phase.RUNNING and self._processes.has_left(job.job_id):
                job.end_reason = EndReason.COMPLETED
                if self._processes.has_failed(job.job_id):
                    job.end_reason = EndReason.FAILED
                job.phase = Phase.ENDING
            elif job.phase is Phase.RUNNING and now_s >= job.limit_at_s:
                self._end(job, EndReason.TIMEOUT, now_s)
            elif job.kill_at_s is not None and now_s >= job.kill_at_s:
                self._kill(job)
        ending = frozenset(j.job_id for j in self.jobs.values() if j.phase is Phase.ENDING)
        for job_id in self._processes.sweep(ending):
            self._finish(self.jobs[job_id], now_s)

    def _end(self, job: LocalJob, reason: EndReason, now_s: float) -> None:
        if job.phase is Phase.PENDING:
            job.end_reason = reason
            self._finish(job, now_s)
        elif job.phase is Phase.RUNNING:
            job.phase, job.end_reason = Phase.ENDING, reason
            job.kill_at_s = now_s + self.kill_wait_s
            self._processes.send(job.job_id, signal.SIGTERM)

    def _kill(self, job: LocalJob) -> None:
        job.kill_at_s = None
        self._processes.send(job.job_id, signal.SIGKILL)

    def _finish(self, job: LocalJob, now_s: float) -> None:
        job.phase, job.end_s, job.claim = Phase.ENDED, now_s, ()
        del self.jobs[job.job_id]
        self.ended.append(job)
        self._is_queue_changed = True

    # -- scheduling ------------------------------------------------------------------

    def _schedule(self, now_s: float, *, is_full: bool) -> None:
        pending = [j for j in self.jobs.values() if j.phase is Phase.PENDING]
        cycle_s = self.cycle_ended_s if is_full else None  # of the last one
        waiting: list[PendingJob] = []
        pilots: list[PendingJob] = []
        for job in pending:
            queue = pilots if job.is_pilot else waiting
            queue.append(self._as_pending(job, cycle_s))
        decided = run_pass(
            now_s=now_s,
            nodes=[n for n in self.nodes if n not in self.down],
            held=[j.as_held() for j in self.jobs.values() if j.is_on_nodes],
            waiting=waiting,
            pilots=pilots,
            is_full=is_full,
            gpus_per_node=self.gpus_lent,
        )
        self.plan = decided.plan
        if is_full:
            self.cycle_depth = len(pending)
        for job_id in decided.preempted:
            self._end(self.jobs[job_id], EndReason.PREEMPTED, now_s)
        for job_id, nodes in decided.claims.items():
            self.jobs[job_id].claim = nodes
        for job_id, nodes in decided.starts.items():
            self._start(self.jobs[job_id], nodes, now_s)

    def _as_pending(self, job: LocalJob, cycle_s: float | None) -> PendingJob:
        """Return a pending job as the scheduler sees it; ``cycle_s``: end of the last full pass."""
        request, claim = job.request, job.claim
        if request.node:
            claim = (request.node,)
        has_waited = cycle_s is not None and job.submit_s <= cycle_s
        return PendingJob(
            job_id=job.job_id,
            n_nodes=request.n_nodes,
            limit_s=request.limit_s,
            claim=claim,
            may_preempt=self._preempts_at_once or has_waited,
            gpus=request.gpus,
        )

    def _start(self, job: LocalJob, nodes: tuple[str, ...], now_s: float) -> None:
        job.phase, job.nodes, job.claim, job.start_s = Phase.RUNNING, nodes, (), now_s
        environment = job.request.environment
        if job.request.gpus:
            in_use = self.devices_in_use(nodes[0])
            free = [number for number in range(self.gpus_lent) if number not in in_use]
            job.devices = tuple(free[: job.request.gpus])
            environment = {**environment, DEVICES_VARIABLE: ",".join(map(str, job.devices))}
        try:
            self._processes.start(
                job.job_id,
                nodes,
                job.request.argv,
                environment=environment,
                log_path=job.request.log_path,
            )
        except OSError as problem:
            log.warning("job %s could not be started on %s: %s", job.job_id, nodes, problem)
            self._end(job, EndReason.NODE_FAIL, now_s)
