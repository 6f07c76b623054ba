"""Pilots on Slurm: submitted with sbatch, released with scancel.

Called by the adapter. A pilot is always an ``sbatch`` job, so that backfill serves every ordinary
job first; salloc and srun would jump the queue.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bftrainer.batch import process
from bftrainer.batch.batch_system import PilotObservation, PilotRequest
from bftrainer.batch.pilot_job import fault_of, job_name, token_of, token_of_place
from bftrainer.model.cluster import Job, NodeLeft, Presence
from bftrainer.model.errors import BatchSystemError
from bftrainer.model.hostlist import ParseError
from bftrainer.model.preamble import under
from bftrainer.site.submit.client import SubmitHelper, no_helper
from bftrainer.site.submit.helper import GRACE, HERALD
from slurm_plugins import commands, parse, slots, states
from slurm_plugins.commands import SlurmCommands, is_unknown, why_failed

FORCE_AFTER_S = 2.0
"""If a pilot asked to leave this long ago is cancelled again, Slurm kills it."""

_ACCOUNT = "--account="
MOST_USERS = 10_000  # pilots whose users are remembered
_JOB_ID = re.compile(r"[0-9]{1,10}")
_SUBMITTED = re.compile(r"([0-9]{1,10})(?:;\S*)?")
_GONE = ("Invalid job id specified", "Job/step already completing or completed")
_NO_SUCH_JOB = "Invalid job id specified"


@dataclass(slots=True, kw_only=True)
class PilotLauncher:
    """Submits, cancels and observes pilots."""

    commands: SlurmCommands
    partition: str
    sbatch_options: tuple[str, ...] = ()  # the site's: account, QOS
    grace_s: float = 0.0  # GraceTime of the partition
    share: NodeLeft | None = None  # of a node, for a pilot; None: the whole node
    preamble: Path | None = None  # shell file under which agents run
    running: frozenset[str] = frozenset()  # job ids last seen running
    ahead_s: float = 0.0  # the controller's clock
    helper: SubmitHelper | None = None  # submits and cancels pilots of other users
    users: dict[str, str] = field(default_factory=dict)  # job id -> other user whose pilot it is
    token: str = ""  # of our pilots' names, once it is known where they are
    tokens: set[str] = field(default_factory=set)  # those in names that we gave
    _asked_s: dict[str, float] = field(default_factory=dict)

    def pilots_are_in(self, directory: Path) -> None:
        """Learn where the daemon keeps the folders of its pilots, before it launches any."""
        self.token = token_of_place(directory)
        self.tokens.add(self.token)

    def launch(self, request: PilotRequest, *, cycle_s: float) -> str:
        """Submit a pilot and return its job id.

        Raises:
            BatchSystemError: BFT-1222, Slurm refused it; BFT-1223, it is not known whether it
                was submitted; BFT-1224, a limit under one minute; BFT-1226, sbatch cannot take
                the request verbatim.
        """
        if problem := problem_of(request):
            raise BatchSystemError(
                "BFT-1226",
                f"Pilot {request.pilot_id!r} cannot be submitted: {problem}.",
                "Change it; nothing was submitted.",
            )
        argv = self._sbatch_argv(request, cycle_s)
        self.tokens.add(self.token or token_of(request))
        done = self._submit(request, argv)
        found = _SUBMITTED.fullmatch(done.stdout.strip())
        if done.is_ok and found:
            if request.user:
                self.users.setdefault(found[1], request.user)  # as the user says; the queue knows
            return found[1]
        if done.is_ok or is_unknown(done):
            raise BatchSystemError(
                "BFT-1223",
                f"It is not known whether pilot {request.pilot_id} was submitted: "
                f"{why_failed(done) if not done.is_ok else 'sbatch printed no job id.'}",
                "The next snapshot will show it; see squeue if this persists.",
            )
        raise BatchSystemError(
            "BFT-1222",
            f"Slurm refused pilot {request.pilot_id} for node {request.node}: {why_failed(done)}",
            f"Check that partition {self.partition} exists and that {request.user or 'you'} may "
            "submit to it.",
        )

    def _submit(self, request: PilotRequest, argv: tuple[str, ...]) -> process.Completed:
        if request.user:
            if self.helper is None:
                raise no_helper()
            self.commands.count(argv)
            # The user's job gets the limits of its node, not those of the helper.
            options, site = (*argv[1:], "--propagate=NONE"), self.token or token_of(request)
            return self.helper.submit(request, options, site=site, grace_s=self.grace_s)
        environment = {**self.commands.base_environment(), **request.environment}
        has_grace = self.grace_s > 0
        if has_grace:
            environment[GRACE] = f"{self.grace_s:g}"
        argv_there = agent_under(self.preamble, request.agent_argv)
        script = batch_script(argv_there, has_grace=has_grace)
        log_pattern = str(request.log_path).replace("%", "%%")
        return self.commands.run((*argv, f"--output={log_pattern}"), environment, stdin=script)

    def _sbatch_argv(self, request: PilotRequest, cycle_s: float) -> tuple[str, ...]:
        minutes = int(request.time_limit_s // 60)
        if minutes < 1:
            raise BatchSystemError(
                "BFT-1224",
                f"Pilot {request.pilot_id} may stay {request.time_limit_s:.0f} s, and Slurm's "
                "shortest limit is a minute.",
                "Leave this node alone; the gap is too short.",
            )
        # The deadline is the latest *end*; it removes a pilot that is never cancelled. The pilot
        # may wait for two cycles, each of which may take as long as the pause between two.
        # The controller compares it with its own clock, sbatch adds to this host's.
        deadline_s = minutes * 60 + int(4 * cycle_s) + 60 + round(self.ahead_s)
        return (
            *("sbatch", "--parsable", f"--job-name={job_name(request, self.token)}"),
            *(f"--partition={self.partition}", "--nodes=1"),
            *(f"--nodelist={slots.node_of(request.node)}", *size_options(self.share)),
            *((f"--comment={request.node}",) if self.share else ()),  # its slot
            *(f"--time={minutes}", f"--deadline=now+{deadline_s}"),
            *("--no-requeue", "--export=ALL", "--chdir=/", "--input=/dev/null"),
            "--open-mode=append",
            *((f"--gres=gpu:{request.gpus}",) if request.gpus > 0 else ()),
            *((f"--account={request.account}",) if request.account else ()),
            *(o for o in self.sbatch_options if not (request.account and o.startswith(_ACCOUNT))),
        )

    def learn_users(self, jobs: Iterable[Job]) -> None:
        """Remember whose pilots there are: only their users can cancel them."""
        self.users.update({job.job_id: job.user for job in jobs if job.pilot_id is not None})
        for job_id in list(self.users)[:-MOST_USERS]:  # long gone
            del self.users[job_id]

    def cancel(self, job_ids: Sequence[str], *, force: bool) -> None:
        """Ask pilots to leave; ids that are gone or were never ours are not an error.

        Only pilots last seen running get a plain signal: for a pending job scancel would retry for
        a minute and a half.

        Raises:
            BatchSystemError: BFT-1225, Slurm did not accept the cancellation.
        """
        now = time.monotonic()
        ids = [job_id for job_id in dict.fromkeys(job_ids) if _JOB_ID.fullmatch(job_id)]
        late = {i for i in ids if force or now - self._asked_s.get(i, now) >= FORCE_AFTER_S}
        orderly = [i for i in ids if i in self.running and i not in late]
        whole = [i for i in ids if i not in self.running and i not in late]
        self._asked_s = {
            **{i: at for i, at in self._asked_s.items() if now - at < 600},
            **{i: self._asked_s.get(i, now) for i in ids},
        }
        problems: list[str] = []
        for how, chosen in (
            ("ask", orderly),
            ("end", whole),
            ("force", [i for i in ids if i in late]),
        ):
            for user in sorted({self.users.get(i, "") for i in chosen}):
                problems += self._scancel(
                    user, how, [i for i in chosen if self.users.get(i, "") == user]
                )
        if problems:
            raise BatchSystemError(
                "BFT-1225",
                f"Slurm did not cancel every pilot: {' '.join(problems)}",
                "It is retried; a pilot also ends when Slurm preempts it or at its time limit.",
            )

    def _scancel(self, user: str, how: str, job_ids: Sequence[str]) -> list[str]:
        if user and self.helper is not None:
            self.commands.count(("scancel",))
            try:
                done = self.helper.cancel(user, job_ids, how)
            except BatchSystemError as problem:
                return [problem.cause]
        else:
            # The batch script is the agent: -b signals it alone, and its job ends COMPLETED.
            options = {"ask": ("-b", "-s", "TERM"), "force": ("-f",)}.get(how, ())
            done = self.commands.query(("scancel", *options, *job_ids))
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        if done.is_ok or (
            not done.timed_out and lines and all(line.endswith(_GONE) for line in lines)
        ):
            return []
        return [why_failed(done)]

    def observe(self, job_ids: Sequence[str]) -> dict[str, PilotObservation]:
        """Observe each id; all are ``UNKNOWN`` when the controller does not answer."""
        absent = PilotObservation(presence=Presence.ABSENT, reason="not in the queue")
        ids = [job_id for job_id in dict.fromkeys(job_ids) if _JOB_ID.fullmatch(job_id)]
        seen = self._observe_known(ids) if ids else {}
        if isinstance(seen, str):
            unknown = PilotObservation(presence=Presence.UNKNOWN, reason=seen)
            return {i: unknown if i in ids else absent for i in job_ids}
        runs = frozenset(i for i, state in seen.items() if state.phase == "running")
        self.running = (self.running - frozenset(ids)) | runs
        return {job_id: seen.get(job_id, absent) for job_id in job_ids}

    def _observe_known(self, ids: Sequence[str]) -> dict[str, PilotObservation] | str:
        done = self.commands.query(commands.pilots_argv(ids))
        if not done.is_ok:
            # squeue reports an unknown id only if it is the only one queried.
            is_alone = len(ids) == 1 and not done.timed_out and _NO_SUCH_JOB in done.stderr
            return {} if is_alone else why_failed(done)
        try:
            return {
                job_id: states.observation(
                    state,
                    node=nodes or None,
                    start_s=parse.time_s(start),
                    reason="" if reason == "None" else reason,
                    end_s=parse.time_s(end),
                )
                for job_id, state, reason, start, nodes, end in parse.records(done.stdout, 6)
            }
        except ParseError as problem:
            return f"squeue printed something unexpected: {problem}."


def size_options(share: NodeLeft | None) -> tuple[str, ...]:
    """Return sbatch's options for a whole node, or for a share of one without its GPUs."""
    if share is None:
        return ("--exclusive", "--mem=0")
    cpus = (f"--cpus-per-task={share.cpus}",) if share.cpus else ()
    return ("--ntasks=1", *cpus, *((f"--mem={share.memory_mb}M",) if share.memory_mb else ()))


def agent_under(preamble: Path | None, agent_argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of an agent under the user's shell file, if there is one."""
    return under(str(preamble), agent_argv) if preamble else tuple(agent_argv)


def batch_script(agent_argv: Sequence[str], *, has_grace: bool = False) -> str:
    """Return the script that becomes the agent, with the process id Slurm signals."""
    return f"#!/bin/sh\n{HERALD if has_grace else ''}exec {shlex.join(agent_argv)}\n"


def problem_of(request: PilotRequest) -> str:
    """Say which part of a request sbatch could not take verbatim; "": all is well."""
    if fault := fault_of(request, has_lines=False):
        return fault
    if "\\" in str(request.log_path):
        return "the path of its log contains a backslash"
    names = [key for key in request.environment if key.startswith(("SBATCH_", "SLURM_"))]
    owned = [key for key in names if key != "SLURM_CONF"]
    return f"{owned[0]} would override an option of sbatch" if owned else ""
