"""OpenPBS as a batch system of bftrainer (docs/howto/add-batch-system.md).

Tried with OpenPBS 23.06. Facts are from its manual pages, above all qsub(1B), qstat(1B), qdel(1B),
pbs_rstat(1B), pbsnodes(8B), pbs_job_attributes(7B) and pbs_node_attributes(7B).
"""  # noqa: INP001 - a package of its own

from __future__ import annotations

import json
import os
import pwd
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import pydantic

from bftrainer.batch.batch_system import PilotObservation, PilotRequest
from bftrainer.batch.commands import ByCommands, Commands
from bftrainer.batch.options import checked
from bftrainer.batch.pilot_job import fault_of, script_of
from bftrainer.model import cluster
from bftrainer.model.cluster import Job, JobState, Node, NodeState, Presence
from bftrainer.model.errors import BatchSystemError

T = TypeVar("T")
NODES, JOBS = ("pbsnodes", "-a", "-v", "-F", "json"), ("qstat", "-f", "-F", "json")
RESERVED = ("pbs_rstat", "-f")
PILOTS = ("qstat", "-x", "-f", "-w")  # -x: ended, too; JSON would have the first of several only
KINDS = {"pbsnodes": "nodes", "qstat": "jobs", "qsub": "submit", "qdel": "cancel"}
NODE_STATES = {"down": NodeState.DOWN, "stale": NodeState.DOWN, "offline": NodeState.DRAINED}
NODE_STATES |= {"resv-exclusive": NodeState.RESERVED, "job-exclusive": NodeState.ALLOCATED}
NODE_STATES |= {"job-busy": NodeState.ALLOCATED, "free": NodeState.IDLE}  # the first one counts
JOB_STATES = {"R": JobState.RUNNING, "E": JobState.COMPLETING}
JOB_STATES |= dict.fromkeys("QHWTB", JobState.PENDING)
PHASES = {"R": "running", "E": "ending", "F": "", "": ""}  # "": ended, or PBS does not know it
UNKNOWN_JOB = 153  # exit status: some ids are unknown, all others are printed
FAILED = "93"  # substate; 91: terminated. Negative exit statuses are PBS's, as for a time limit
GONE = re.compile(r"(qdel: (Job has finished|Unknown Job Id|Request invalid for state) .*\n)+")


class PbsOptions(pydantic.BaseModel, extra="forbid", frozen=True):
    """Options of the policy file, under ``batch_options``."""

    pilot_queue: str = "bf"
    scheduler_iteration_s: float = pydantic.Field(default=600.0, gt=0)  # as in qstat -B -f
    command_timeout_s: float = pydantic.Field(default=15.0, gt=0)
    environment: dict[str, str] = {}  # of the commands, e.g. PATH and PBS_CONF_FILE


class PbsBatchSystem(ByCommands):
    """One OpenPBS, used through its commands."""

    name = "pbs"
    idle_confirmations = 1  # the end of a job starts a pass, which serves pilots last

    def __init__(self, options: PbsOptions) -> None:
        commands = Commands(
            kind_of=lambda argv: KINDS.get(argv[0], "reservations"),
            timeout_s=options.command_timeout_s,
            added={**options.environment, "LC_ALL": "C", "TZ": "UTC0"},  # its times have no zone
        )
        super().__init__(commands)
        self.cycle_s = options.scheduler_iteration_s
        self._ours = options.pilot_queue, pwd.getpwuid(os.geteuid()).pw_name  # queue and user
        self._nodes: dict[str, Node] = {}  # as last seen

    def snapshot(self, *, wants_cycle: bool = True) -> cluster.Snapshot:
        """Poll once. Nodes are read before jobs, so that no new job is on an "idle" node."""
        del wants_cycle  # PBS does not tell when its scheduler passes over the queue
        taken_at_s, reading = time.time(), self.reading()
        nodes, jobs = reading.of(NODES, _nodes), reading.of(JOBS, self._jobs)
        reserved = reading.of(RESERVED, lambda text: _each(_reservation, text))
        if nodes is not None and jobs is not None:
            nodes = cluster.not_idle_where_jobs_run(nodes, jobs)
            self._nodes = {node.name: node for node in nodes}
        return cluster.Snapshot(
            taken_at_s=taken_at_s,
            nodes=nodes,
            jobs=jobs,
            reservations=None if reserved is None else tuple(reserved.values()),
            failures=tuple(reading.failures),
        )

    def _jobs(self, printed: str) -> tuple[Job, ...]:
        rows = json.loads(printed).get("Jobs", {})
        return tuple(self._job(job_id, row) for job_id, row in rows.items())

    def _job(self, job_id: str, row: Mapping[str, Any]) -> Job:
        wanted, user = row["Resource_List"], row["Job_Owner"].partition("@")[0]
        parts = reversed(wanted.get("walltime", "0").split(":"))
        state, select = JOB_STATES.get(row["job_state"], JobState.OTHER), str(wanted["select"])
        if "Queued:0" in row.get("array_state_count", ""):
            state = JobState.OTHER  # an array of which nothing waits any more
        is_pending, plan = state is JobState.PENDING, row.get("estimated", {})
        nodes = _vnodes((plan if is_pending else row).get("exec_vnode", ""))
        return Job(
            job_id=job_id,
            user=user,
            partitions=(row["queue"],),
            state=state,
            n_nodes=len(nodes) or wanted["nodect"],  # of chunks: at most so many nodes
            time_limit_s=sum(int(part) * 60.0**i for i, part in enumerate(parts)) or None,
            reason=row.get("comment", ""),
            is_entitled=row["job_state"] != "H",  # held, or waits for other jobs
            begin_s=_time_s(row.get("Execution_Time")),
            submit_s=_time_s(row["ctime"]),
            start_s=_time_s(plan.get("start_time") if is_pending else row.get("stime")),
            nodes=() if is_pending else nodes,
            planned_nodes=nodes if is_pending else (),
            required_nodes=tuple(re.findall(r"(?:vnode|host)=([^:+]+)", select)),
            gpus=wanted.get("ngpus", 0),
            pilot_id=row["Job_Name"] if (row["queue"], user) == self._ours else None,
        )

    def launch_pilot(self, request: PilotRequest) -> str:
        """Submit a pilot; PBS starts it without a login shell, which would get SIGTERM first."""
        node = self._nodes.get(request.node)  # PBS would accept one that does not exist
        fault = fault_of(request) if node else f"there is no node {request.node!r}"
        if node is None or fault:
            raise BatchSystemError("BFT-1370", f"No pilot was submitted: {fault}.", "Change it.")
        limit_s, gpus = int(request.time_limit_s), f":ngpus={request.gpus}" * bool(request.gpus)
        where = f"select=1:vnode={node.name}:ncpus={node.cpus}{gpus}"
        options = f"-f -q {self._ours[0]} -N {request.pilot_id} -r n -l {where} -l place=excl"
        options += f" -l walltime={limit_s} -o /dev/null -e /dev/null --"
        argv = ("qsub", *options.split(), "/bin/sh", "-c", script_of(request))
        return self.order(argv, code="BFT-1371")

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        """SIGTERM, then SIGKILL after the queue's kill_delay; by force although a node is away."""
        argv = ("qdel", *(("-W", "force") if force else ()), *job_ids)
        if job_ids:
            self.order(argv, code="BFT-1372", harmless=GONE)

    def pilot_states(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        """Observe each id; how one ended is known with job_history_enable."""
        reading = self.reading(answers=(0, UNKNOWN_JOB))
        argv = (*PILOTS, *job_ids)
        seen = reading.of(argv, lambda text: _each(_observation, text)) if job_ids else {}
        if seen is None:
            return dict.fromkeys(job_ids, PilotObservation(presence=Presence.UNKNOWN))
        return {job_id: seen.get(job_id, _observation({})) for job_id in job_ids}


def _nodes(printed: str) -> tuple[Node, ...]:
    found = [_node(name, row) for name, row in json.loads(printed)["nodes"].items()]
    return tuple(node for node in found if node.cpus)


def _node(name: str, row: Mapping[str, Any]) -> Node:
    words, has = row["state"].split(","), row.get("resources_available", {})
    state = next((NODE_STATES[word] for word in NODE_STATES if word in words), NodeState.UNKNOWN)
    if state is NodeState.IDLE and "jobs" in row:
        state = NodeState.ALLOCATED  # "free" only means that another job would fit
    return Node(name=name, state=state, cpus=has.get("ncpus", 0), gpus=has.get("ngpus", 0))


def _each(made_of: Callable[[Mapping[str, str]], T], printed: str) -> dict[str, T]:
    """Return what is made of the attributes of each object of a long listing, by id."""
    found = re.findall(r"^(?:Job Id|Resv ID): (.*)$((?:\n.*=.*)*)", printed, re.MULTILINE)
    rows = {name: re.findall(r"^ *(\S+) = (.*)", rest, re.MULTILINE) for name, rest in found}
    return {name: made_of(dict(row)) for name, row in rows.items()}


def _observation(row: Mapping[str, str]) -> PilotObservation:
    phase = PHASES.get(row.get("job_state", ""), "pending")
    return PilotObservation(
        presence=Presence.PRESENT if phase else Presence.ABSENT,
        phase=phase,
        node=next(iter(_vnodes(row.get("exec_vnode", ""))), None),
        start_s=_time_s(row.get("stime")),
        reason=row.get("comment", ""),
        has_failed=row.get("substate") == FAILED and int(row.get("Exit_status", 0)) > 0,
    )


def _reservation(row: Mapping[str, str]) -> cluster.Reservation:
    start_s, end_s = (_time_s(row[key]) or 0.0 for key in ("reserve_start", "reserve_end"))
    nodes = _vnodes(row.get("resv_nodes", ""))
    return cluster.Reservation(name=row["queue"], start_s=start_s, end_s=end_s, nodes=nodes)


def _vnodes(text: str) -> tuple[str, ...]:
    """Return the nodes of "(a:ncpus=4)+(b:ncpus=2+c:ncpus=2)", each once."""
    return tuple(dict.fromkeys(re.findall(r"[(+]\(?([^():+]+)", text)))


def _time_s(text: str | None) -> float | None:
    """Return the epoch of "Tue Nov 24 06:04:34 2026", in UTC."""
    parsed = datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC) if text else None
    return parsed.timestamp() if parsed else None


def create(options: Mapping[str, Any]) -> PbsBatchSystem:
    """Create the adapter from the policy's options; the entry point names this function."""
    return PbsBatchSystem(checked(PbsOptions, options, code="BFT-1373", name="PBS"))
