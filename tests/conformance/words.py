"""Words the conformance tests are written in: a miniature pilot, waits, looks.

Used by ``batch_system`` here and by tests of one implementation.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from bftrainer.batch.batch_system import BatchSystem, PilotObservation, PilotRequest
from bftrainer.model.cluster import Job, NodeState, Presence, Snapshot
from bftrainer.model.errors import BatchSystemError
from tests.support.waiting import wait_for

_numbers = itertools.count(1)

# The agent in miniature: says that it lives, with what it was given, and leaves at once
# on SIGTERM or SIGINT, or earlier if its arguments say so. It writes to its standard output, which
# is the pilot's log.
PILOT_SOURCE = """\
import json, os, signal, sys
LEAVE = [signal.SIGTERM, signal.SIGINT]  # as the agent does
signal.pthread_sigmask(signal.SIG_BLOCK, LEAVE)
given = {"argv": sys.argv[1:], "value": os.environ.get("BFT_CONFORMANCE", "")}
print("started " + json.dumps(given), flush=True)
if "die" in sys.argv[1:]:
    os.kill(os.getpid(), signal.SIGKILL)
if "leave" not in sys.argv[1:]:
    signal.sigwait(LEAVE)
    print("asked to leave", flush=True)
os._exit(0)
"""


class ClusterDriver(Protocol):
    """What the tests do to a cluster behind the back of the BatchSystem under test."""

    directory: Path  # scratch, writable by pilots
    gpus_per_node: int
    preempts: bool  # an ordinary job ends a pilot by the batch system's own doing

    def node_names(self) -> tuple[str, ...]:
        """All nodes, at least four."""

    def submit_ordinary(self, *, n_nodes: int, limit_s: float, duration_s: float) -> str:
        """Submit somebody else's whole-node job and return its id."""

    def job_started_s(self, job_id: str) -> float | None:
        """When that ordinary job really began (epoch), None while it has not."""

    def cancel(self, job_id: str) -> None:
        """Cancel an ordinary job; one that is gone is no error."""

    def stop_controller(self) -> None:
        """Make the scheduler stop answering; what runs on nodes stays."""

    def start_controller(self) -> None:
        """Let it answer again; returns at once, harmless when it answers already."""


def pilot(
    cluster: ClusterDriver,
    node: str,
    *args: str,
    time_limit_s: float = 600,
    environment: Mapping[str, str] | None = None,
) -> PilotRequest:
    """A request with a fresh id, for the miniature agent."""
    number = next(_numbers)
    source = cluster.directory / "conformance_pilot.py"
    if not source.exists():
        source.write_text(PILOT_SOURCE)
        source.chmod(0o644)
    return PilotRequest(
        pilot_id=f"p{number:06d}",
        node=node,
        time_limit_s=time_limit_s,
        agent_argv=(sys.executable, "-I", str(source), *(args or ("live",))),
        log_path=cluster.directory / f"pilot-{number}.log",
        gpus=cluster.gpus_per_node,
        environment=dict(environment or {}),
    )


def hostile_request(cluster: ClusterDriver, node: str, field: str, hostile: str) -> PilotRequest:
    """A request with ``hostile`` in one of its fields."""
    plain = pilot(cluster, node, environment={"BFT_CONFORMANCE": "plain"})
    number = plain.pilot_id
    return PilotRequest(
        pilot_id=number + hostile if field == "pilot_id" else number,
        node=node,
        time_limit_s=plain.time_limit_s,
        agent_argv=(*plain.agent_argv, hostile) if field == "agent_argv" else plain.agent_argv,
        log_path=(
            cluster.directory / f"{number} {hostile}.log" if field == "log_path" else plain.log_path
        ),
        gpus=plain.gpus,
        environment={"BFT_CONFORMANCE": hostile if field == "environment" else "plain"},
    )


def log_lines(request: PilotRequest) -> list[str]:
    """What the miniature agent wrote so far."""
    if not request.log_path.exists():
        return []
    return request.log_path.read_text().splitlines()


def started_with(request: PilotRequest) -> dict[str, object]:
    """Wait for the miniature agent's first line: the argv and environment it was given."""

    def first_line() -> str | None:
        found = [line for line in log_lines(request) if line.startswith("started ")]
        return found[0] if found else None

    line = wait_for(first_line, what=f"'started' in {request.log_path}")
    given: dict[str, object] = json.loads(line.removeprefix("started "))
    return given


def observe(system: BatchSystem, job_id: str) -> PilotObservation:
    """The state of one pilot."""
    return system.pilot_states([job_id])[job_id]


def wait_running(system: BatchSystem, job_id: str) -> PilotObservation:
    """Wait until the pilot runs."""

    def running() -> PilotObservation | None:
        seen = observe(system, job_id)
        return seen if seen.phase == "running" else None

    return wait_for(running, what=f"pilot job {job_id} running")


def wait_absent(system: BatchSystem, job_id: str) -> None:
    """Wait until the pilot is gone for certain."""
    wait_for(
        lambda: observe(system, job_id).presence is Presence.ABSENT, what=f"job {job_id} absent"
    )


def launch_and_wait(system: BatchSystem, request: PilotRequest) -> str:
    """Launch a pilot and wait until its agent has spoken."""
    job_id = system.launch_pilot(request)
    wait_running(system, job_id)
    started_with(request)
    return job_id


def whole(system: BatchSystem) -> Snapshot:
    """Look until the controller has told everything; one that is busy may leave that out."""
    return wait_for(
        lambda: s if (s := system.snapshot()).is_complete else None, what="a complete snapshot"
    )


def job_in(seen: Snapshot, job_id: str) -> Job | None:
    """The job with that id, None when the queue does not have it."""
    assert seen.jobs is not None, seen.failures
    return next((j for j in seen.jobs if j.job_id == job_id), None)


def node_states(seen: Snapshot) -> dict[str, NodeState]:
    """State by node name."""
    assert seen.nodes is not None, seen.failures
    return {n.name: n.state for n in seen.nodes}


def wait_all_idle(system: BatchSystem) -> None:
    """Wait until every node is idle."""
    wait_for(
        lambda: set(node_states(whole(system)).values()) == {NodeState.IDLE},
        what="all nodes idle",
    )


def wait_for_whole_cycle(system: BatchSystem) -> None:
    """Wait until the scheduler looked at everything that is pending now, start to end."""
    asked_s = time.time()
    if whole(system).cycle is None:  # not reported: as ``decide.cycles`` does
        wait_for(
            lambda: whole(system).taken_at_s > asked_s + 3 * system.cycle_s,
            what="the time of two passes",
        )
        return
    seen_s: set[float] = set()

    def two_later_passes() -> bool:
        cycle = system.snapshot().cycle
        # The second end after now belongs to a pass that also began after now. Ends may
        # be whole seconds, so the first must be a full second later.
        if cycle is not None and cycle.ended_s is not None and cycle.ended_s >= asked_s + 1:
            seen_s.add(cycle.ended_s)
        return len(seen_s) >= 2

    wait_for(two_later_passes, what="two more scheduler passes")


def block_the_queue(system: BatchSystem, cluster: ClusterDriver) -> tuple[str, str]:
    """Leave one node that no ordinary job can use; return the running and the blocked job."""
    n_nodes = len(cluster.node_names())
    runs = cluster.submit_ordinary(n_nodes=n_nodes - 1, limit_s=600, duration_s=600)
    wait_for(lambda: cluster.job_started_s(runs), what="the start of the first job")
    blocked = cluster.submit_ordinary(n_nodes=n_nodes, limit_s=120, duration_s=1)

    def planned() -> bool:
        job = job_in(whole(system), blocked)
        return job is not None and job.start_s is not None and bool(job.planned_nodes)

    wait_for(planned, what="a planned start for the blocked job")
    return runs, blocked


def make_empty(system: BatchSystem, cluster: ClusterDriver) -> None:
    """Cancel everything and wait until all nodes are idle."""
    seen = whole(system)
    for job in seen.jobs or ():
        if job.is_ordinary:
            cluster.cancel(job.job_id)
    pilots = [j.job_id for j in seen.jobs or () if not j.is_ordinary]
    if pilots:
        system.cancel_pilots(pilots, force=True)
    wait_for(lambda: system.snapshot().jobs == (), what="an empty queue")
    wait_all_idle(system)


def assert_good_error(problem: BatchSystemError) -> None:
    """A stable code of our range, a cause and a next step."""
    assert re.fullmatch(r"BFT-\d{4}", problem.code)
    assert problem.cause.strip()
    assert problem.next_step.strip()
