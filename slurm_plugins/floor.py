"""A floor of own nodes: those of the user's allocation, in which pilots are steps, not jobs.

Used by the adapter where the option ``floor_job`` names the allocation (``bftrainer up`` inside
``salloc`` or ``sbatch``). Its nodes are free to us until it ends, without preemption; the
allocation itself is not an ordinary job. A pilot there is ``srun --overlap`` in the background:
its step has the pilot's name, and ends with that srun.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bftrainer.batch import process
from bftrainer.batch.batch_system import PilotObservation, PilotRequest
from bftrainer.model.cluster import Job, JobState, Node, NodeState, Presence, Reservation
from bftrainer.model.errors import BatchSystemError, UnansweredError
from bftrainer.model.hostlist import expand
from bftrainer.model.preamble import under
from slurm_plugins import parse
from slurm_plugins.commands import SlurmCommands, why_failed

STEP_ID = re.compile(r"[0-9]{1,10}\.[0-9]{1,10}")
MOST_NODES = 10_000
APPEARS_LIMIT_S = 10.0  # until a new step is listed
FOREVER_S = 10 * 365 * 86_400.0
_JOB_FORMAT = parse.RECORD + parse.FIELD.join(("%i", "%T", "%N", "%e"))
_STEP_FORMAT = parse.RECORD + parse.FIELD.join(("%i", "%j", "%N", "%S"))


@dataclass(slots=True, kw_only=True)
class Floor:
    """The nodes of one allocation, as last seen."""

    commands: SlurmCommands
    job_id: str
    user: str
    preamble: Path | None = None  # shell file under which agents run
    nodes: tuple[str, ...] = ()  # none: the allocation has ended
    end_s: float | None = None
    steps: dict[str, tuple[str, str, float | None]] = field(default_factory=dict)

    def look(self) -> None:
        """Read nodes, end and steps of the allocation; what cannot be read stays."""
        job = self.commands.query(("squeue", "-h", "-j", self.job_id, "-o", _JOB_FORMAT))
        if not job.is_ok and "Invalid job id" not in job.stderr:
            return
        self.nodes, self.end_s = (), None
        if job.is_ok:
            for _, state, nodes, end in parse.records(job.stdout, 4):
                if state == "RUNNING":
                    self.nodes, self.end_s = expand(nodes, MOST_NODES), parse.time_s(end)
        steps = self.commands.query(("squeue", "-s", "-h", "-j", self.job_id, "-o", _STEP_FORMAT))
        if steps.is_ok:
            self.steps = {
                step_id: (name, node, parse.time_s(start))
                for step_id, name, node, start in parse.records(steps.stdout, 4)
                if STEP_ID.fullmatch(step_id)
            }

    def show(
        self,
        nodes: tuple[Node, ...],
        jobs: tuple[Job, ...] | None,
        reservations: tuple[Reservation, ...] | None,
    ) -> tuple[tuple[Node, ...], tuple[Job, ...] | None, tuple[Reservation, ...] | None]:
        """Show the nodes as free or with a pilot, the pilots as jobs, the end as a reservation."""
        pilot_nodes = {node for _, node, _ in self.steps.values()}
        own_nodes = tuple(self._as_own(node, pilot_nodes) for node in nodes)
        pilots = tuple(
            Job(
                job_id=step_id,
                user=self.user,
                state=JobState.RUNNING,
                n_nodes=1,
                time_limit_s=None,
                start_s=start_s,
                nodes=(node,),
                pilot_id=name,
            )
            for step_id, (name, node, start_s) in self.steps.items()
        )
        if jobs is not None:
            jobs = (*(job for job in jobs if job.job_id != self.job_id), *pilots)
        if reservations is not None and self.nodes and self.end_s is not None:
            end = Reservation(
                name=f"the end of allocation {self.job_id}",
                start_s=self.end_s,
                end_s=self.end_s + FOREVER_S,
                nodes=self.nodes,
            )
            reservations = (*reservations, end)
        return own_nodes, jobs, reservations

    def _as_own(self, node: Node, pilot_nodes: Collection[str]) -> Node:
        """Return a node as pilots of ours see it: without one of them, an own node is free."""
        if node.name not in self.nodes or node.state is not NodeState.ALLOCATED:
            return node
        state = NodeState.IDLE
        if node.name in pilot_nodes:
            state = NodeState.ALLOCATED
        return replace(node, state=state, left=None)

    def launch(self, request: PilotRequest) -> str:
        """Start a pilot and return the id of its step.

        Raises:
            BatchSystemError: BFT-1222, srun ended.
            UnansweredError: BFT-1223, no step has appeared.
        """
        minutes = max(1, int(request.time_limit_s // 60))
        agent: Sequence[str] = request.agent_argv
        if self.preamble is not None:
            agent = under(str(self.preamble), agent)
        log = request.log_path.open("ab")
        with log:
            child = process.spawn(
                (
                    *("srun", f"--jobid={self.job_id}", "--overlap", "--nodes=1", "--ntasks=1"),
                    *(f"--nodelist={request.node}", f"--job-name={request.pilot_id}", "--mem=0"),
                    *(f"--time={minutes}", "--export=ALL", "--chdir=/", "--input=none", "--quiet"),
                    *agent,
                ),
                env={**self.commands.base_environment(), **request.environment},
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + APPEARS_LIMIT_S
        while time.monotonic() < deadline and child.poll() is None:
            self.look()
            for step_id, (name, _, _) in self.steps.items():
                if name == request.pilot_id:
                    return step_id
            time.sleep(0.1)
        kind: type[BatchSystemError] = UnansweredError
        code, how = "BFT-1223", "no step of it has appeared"
        if child.poll() is not None:
            kind, code = BatchSystemError, "BFT-1222"
            how = f"srun ended with status {child.returncode}"
        raise kind(
            code,
            f"Pilot {request.pilot_id} on {request.node} of allocation {self.job_id}: {how}.",
            f"See {request.log_path}.",
        )

    def cancel(self, step_ids: Sequence[str]) -> None:
        """End steps; those that are gone are not an error."""
        answer = self.commands.query(("scancel", *step_ids))
        if answer.timed_out:
            raise BatchSystemError("BFT-1225", why_failed(answer), "It is retried.")

    def observe(self, step_id: str) -> PilotObservation:
        """Observe a step as of the last look."""
        if step_id not in self.steps:
            return PilotObservation(presence=Presence.ABSENT, reason="not among the steps")
        _, node, start_s = self.steps[step_id]
        return PilotObservation(
            presence=Presence.PRESENT, phase="running", node=node, start_s=start_s
        )
