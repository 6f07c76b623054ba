"""Pilots on Slurm: submitted with sbatch, released with scancel.

Called by the adapter. A pilot is always an ``sbatch`` job, so that backfill serves every ordinary
job first; salloc and srun would jump the queue.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bftrainer.batch import commands, process
from bftrainer.batch.batch_system import PilotObservation, PilotRequest
from bftrainer.batch.clock import STEADY
from bftrainer.batch.pilot_job import fault_of, job_name, token_of
from bftrainer.model.cluster import Job, node_of
from bftrainer.model.errors import BatchSystemError
from bftrainer.model.hostlist import ParseError
from bftrainer.model.parts import NodePart, gres_of
from bftrainer.site.submit.client import SubmitHelper, no_helper
from bftrainer.site.submit.helper import GRACE, HERALD
from slurm_plugins import parse, states
from slurm_plugins.commands import SlurmCommands, is_unknown, pilots_argv

_ACCOUNT = "--account="
FREE_OF_CORES = "--gres-flags=disable-binding"
MOST_USERS = 10_000  # pilots whose users are remembered
# The batch script is the agent: -b signals it alone, and its job ends COMPLETED.
ASK = ("-b", "-s", "TERM")
_SUBMITTED = re.compile(r"([0-9]{1,10})(?:;\S*)?\s*(?:\n|\Z)")  # the first line
_NO_SUCH_JOB = "Invalid job id specified"


class PilotLauncher(commands.PilotLauncher):
    """Submits, cancels and observes pilots."""

    system = "Slurm"
    then = "The next snapshot will show it; see squeue if this persists."
    odd_answer = "sbatch printed no job id."
    codes = ("BFT-1226", "BFT-1224", "BFT-1222", "BFT-1223", "BFT-1225")
    gone = re.compile(rf"(?:{_NO_SUCH_JOB}|Job/step already completing or completed)\Z")

    def __init__(
        self,
        *,
        commands: SlurmCommands,
        partition: str,
        sbatch_options: tuple[str, ...] = (),
        grace_s: float = 0.0,
        preamble: Path | None = None,
        helper: SubmitHelper | None = None,
    ) -> None:
        """Store the collaborators.

        Args:
            commands: to run.
            partition: of pilots.
            sbatch_options: the site's: account, QOS and others (``site_options``).
            grace_s: GraceTime of the partition.
            preamble: shell file under which agents run.
            helper: submits and cancels pilots of other users.
        """
        super().__init__(commands=commands, queue=partition, preamble=preamble)
        self._sbatch_options, self._grace_s = sbatch_options, grace_s
        self._helper = helper
        self.ahead_s = 0.0  # the controller's clock
        self.is_binding_enforced = False  # by default a GPU comes with the cores next to it alone
        self.users: dict[str, str] = {}  # job id -> other user whose pilot it is

    def _fault(self, request: PilotRequest) -> str:
        if fault := fault_of(request, has_lines=False):
            return fault
        if "\\" in str(request.log_path):
            return "the path of its log contains a backslash"
        for variable in request.environment:
            if variable.startswith(("SBATCH_", "SLURM_")) and variable != "SLURM_CONF":
                return f"{variable} would override an option of sbatch"
        return ""

    def _argv(self, request: PilotRequest, minutes: int, cycle_s: float) -> tuple[str, ...]:
        # The deadline is the latest *end*; it removes a pilot that is never cancelled. The pilot
        # may wait for two cycles, each of which may take as long as the pause between two.
        # The controller compares it with its own clock, sbatch adds to this host's.
        ahead_s = self.ahead_s - STEADY.wall_ahead_s()
        deadline_s = minutes * 60 + int(4 * cycle_s) + 60 + round(ahead_s)
        argv = ["sbatch", "--parsable", f"--job-name={job_name(request, self.token)}"]
        argv += [f"--partition={self.queue}", "--nodes=1"]
        argv += [f"--nodelist={node_of(request.node)}", *size_options(request.part)]
        argv += [f"--time={minutes}", f"--deadline=now+{deadline_s}"]
        argv += ["--no-requeue", "--export=ALL", "--chdir=/", "--input=/dev/null"]
        argv.append("--open-mode=append")
        if request.part and self.is_binding_enforced:
            argv.append(FREE_OF_CORES)
        if request.gpus > 0 and not request.part:
            argv.append(f"--gres=gpu:{request.gpus}")
        site_options = list(self._sbatch_options)
        if request.account:  # the pilot's user's, instead of the site's
            argv.append(f"--account={request.account}")
            site_options = [word for word in site_options if not word.startswith(_ACCOUNT)]
        return (*argv, *site_options)

    def _submit(self, request: PilotRequest, argv: tuple[str, ...]) -> process.Completed:
        if request.user:
            if self._helper is None:
                raise no_helper()
            self.commands.count(argv)
            # The user's job gets the limits of its node, not those of the helper.
            options, site = (*argv[1:], "--propagate=NONE"), self.token or token_of(request)
            return self._helper.submit(request, options, site=site, grace_s=self._grace_s)
        environment = {**self.commands.base_environment(), **request.environment}
        has_grace = self._grace_s > 0
        if has_grace:
            environment[GRACE] = f"{self._grace_s:g}"
        script = batch_script(self._agent(request), has_grace=has_grace)
        log_pattern = str(request.log_path).replace("%", "%%")
        return self.commands.run((*argv, f"--output={log_pattern}"), environment, stdin=script)

    def _job_id(self, request: PilotRequest, done: process.Completed) -> str:
        answer = _SUBMITTED.match(done.stdout.lstrip())
        if not done.is_ok or not answer:
            return ""
        job_id = answer[1]
        if request.user:
            self.users.setdefault(job_id, request.user)  # as the user says; the queue knows
        return job_id

    def _is_unknown(self, done: process.Completed) -> bool:
        return is_unknown(done)

    def forget(self, user: str, pilot_id: str) -> None:
        """Remove the files of a user's pilot that has no job; they stay if the helper cannot."""
        if self._helper is not None:
            with suppress(BatchSystemError):
                self._helper.forget(user, pilot_id, site=self.token)

    def learn_users(self, jobs: Iterable[Job]) -> None:
        """Remember whose pilots there are: only their users can cancel them."""
        for job in jobs:
            if job.pilot_id is not None:
                self.users[job.job_id] = job.user
        for job_id in list(self.users)[:-MOST_USERS]:  # long gone
            del self.users[job_id]

    def _end(self, how: str, job_ids: Sequence[str]) -> list[str]:
        # Only running pilots get a plain signal: for a pending job scancel would retry for a
        # minute and a half.
        problems: list[str] = []
        jobs_of: dict[str, list[str]] = {}  # by user; "": our own
        for job_id in job_ids:
            jobs_of.setdefault(self.users.get(job_id, ""), []).append(job_id)
        for user, user_jobs in sorted(jobs_of.items()):
            try:
                answer = self._scancel(user, how, user_jobs)
            except BatchSystemError as problem:
                problems.append(problem.cause)
            else:
                messages = list(filter(str.strip, answer.stderr.splitlines()))
                problems += self._problems(answer, messages)
        return problems

    def _scancel(self, user: str, how: str, job_ids: Sequence[str]) -> process.Completed:
        if user and self._helper is not None:
            self.commands.count(("scancel",))
            return self._helper.cancel(user, job_ids, how)
        options = {"ask": ASK, "force": ("-f",)}.get(how, ())
        return self.commands.query(("scancel", *options, *job_ids))

    def _seen(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        answer = self.commands.query(pilots_argv(job_ids))
        if not answer.is_ok:  # an unknown id is reported only if it is the only one queried
            if len(job_ids) == 1 and not answer.timed_out and _NO_SUCH_JOB in answer.stderr:
                return {}
            raise ParseError(self.commands.why_failed(answer))
        try:
            return {
                job_id: states.observation(
                    state,
                    node=nodes or None,
                    start_s=parse.time_s(start),
                    reason="" if reason == "None" else reason,
                    end_s=parse.time_s(end),
                )
                for job_id, state, reason, start, nodes, end in parse.records(answer.stdout, 6)
            }
        except ParseError as problem:
            raise ParseError(f"squeue printed something unexpected: {problem}.") from problem


def size_options(part: NodePart | None) -> tuple[str, ...]:
    """Return sbatch's options for a part of a node with its GPUs, or for a whole node without."""
    if part is None:
        return ("--exclusive", "--mem=0")
    words = ["--ntasks=1", f"--cpus-per-task={part.cores}"]
    if part.memory_mb:
        words.append(f"--mem={part.memory_mb}M")
    if part.gpus:
        words.append(f"--gres={gres_of(part)}")
    return tuple(words)


def batch_script(agent_argv: Sequence[str], *, has_grace: bool = False) -> str:
    """Return the script that becomes the agent, with the process id Slurm signals."""
    herald = HERALD if has_grace else ""
    return f"#!/bin/sh\n{herald}exec {shlex.join(agent_argv)}\n"
