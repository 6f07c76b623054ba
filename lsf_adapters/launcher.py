"""Pilots on LSF: submitted with bsub, released with bkill, observed with bjobs.

One ``bsub`` may make several jobs: while mbatchd does not answer, bsub repeats its request every
10 s, and mbatchd carries out all of them later (measured on volclava 2.2; LSF 10.1 is assumed to do
the same). So every job of a pilot takes a folder beside its log before it becomes the agent. Only
one can make it; all others end at once.

Called by the adapter. A pilot takes a host by all of its slots (``-n MXJ``), not by ``-x``: an
exclusive job leaves its host locked until the next exchange of lim, which cost the next job up to
29 s, by slots 2.3 s (measured on volclava 2.2, MBD_SLEEP_TIME=2).
"""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bftrainer.batch import commands, process
from bftrainer.batch.batch_system import PilotObservation, PilotRequest
from bftrainer.batch.clock import calendar_s
from bftrainer.batch.commands import UnreadError
from bftrainer.batch.pilot_job import fault_of, job_name
from bftrainer.model.cluster import EndedBy, Presence
from bftrainer.model.errors import BatchSystemError
from lsf_adapters.commands import Dialect, LsfCommands, has_waited, said
from lsf_adapters.jobs import JobReader
from lsf_adapters.requests import ENDED, LOST, WAITING, JobRow

_OWN_VARIABLES = ("LSB_", "LSF_", "BSUB_")  # of LSF; they would change what its commands do
_SUBMITTED = re.compile(r"^Job <([0-9]{1,10})> is submitted to ", re.MULTILINE)
# Ends that others ordered: INT and TERM of bkill, USR2 of the run limit, reasons that LSF names.
_ORDERED = re.compile(
    r"exit code (?:130|140|143)\b|signal (?:2|12|15)\b|TERM_|by (?:owner|user|LSF)"
)
# Reasons that LSF names; without one, volclava says the same of a bkill and a preemption.
_ENDED_BY = (
    (re.compile("TERM_PREEMPT"), EndedBy.PREEMPTED),
    (re.compile("TERM_(?:RUNLIMIT|DEADLINE)"), EndedBy.TIME_LIMIT),
    (re.compile("TERM_(?:OWNER|ADMIN|FORCE)"), EndedBy.CANCELLED),
)
_OWN_END = re.compile(r"exit code|signal")


def taken_by(log_path: Path) -> Path:
    """Return the folder that the one job of a pilot makes."""
    return log_path.with_name(f"{log_path.name}.started")


def batch_script(request: PilotRequest, agent_argv: Sequence[str]) -> str:
    """Return the script; LSF writes a job's output only at its end, so it does so itself."""
    log = shlex.quote(str(request.log_path))
    folder = shlex.quote(str(taken_by(request.log_path)))
    return f"""\
#!/bin/sh
exec </dev/null >>{log} 2>&1
if ! mkdir {folder} 2>/dev/null; then
  [ -d {folder} ] || {{ echo "bftrainer: {folder} cannot be made."; exit 1; }}
  exit 0
fi
cd /
exec {shlex.join(agent_argv)}
"""


class PilotLauncher(commands.PilotLauncher):
    """Submits, cancels and observes pilots."""

    system = "LSF"
    node_word, queue_word = "host", "queue"
    then = "If it was, its job ends by itself; see bjobs if this persists."
    odd_answer = "bsub's answer is not to be relied on."
    codes = ("BFT-1203", "BFT-1206", "BFT-1204", "BFT-1205", "BFT-1207")
    gone = re.compile("No matching job found|Job has already finished|Operation is in progress")
    forces_pending = False  # a signal alone does not end a pending job

    def __init__(
        self,
        *,
        commands: LsfCommands,
        jobs: JobReader,
        queue: str,
        slots_of: Callable[[str], int],
        bsub_options: Sequence[str] = (),
        preamble: Path | None = None,
    ) -> None:
        """Store the collaborators.

        Args:
            commands: to run.
            jobs: reads bjobs.
            queue: of pilots.
            slots_of: returns all slots (MXJ) of a host; 0: it is not known.
            bsub_options: the site's: project, user group.
            preamble: shell file under which agents run.
        """
        super().__init__(commands=commands, queue=queue, preamble=preamble)
        self._jobs, self._slots_of, self._bsub_options = jobs, slots_of, tuple(bsub_options)

    def _fault(self, request: PilotRequest) -> str:
        # A line that begins with #BSUB would be an option, even inside of quotes.
        fault = fault_of(request, has_lines=False)
        if fault:
            return fault
        for variable in request.environment:
            if variable.startswith(_OWN_VARIABLES):
                return f"{variable} is LSF's own"
        return ""

    def _argv(self, request: PilotRequest, minutes: int, cycle_s: float) -> tuple[str, ...]:
        try:
            dialect = self._jobs.known_dialect()
        except UnreadError as problem:
            raise BatchSystemError(
                "BFT-1208",
                f"Nothing is submitted while it is not known which LSF answers: {problem}",
                "It is tried again; see whether lsid answers.",
            ) from problem
        if dialect is Dialect.UNKNOWN:
            raise BatchSystemError(
                "BFT-1208",
                "This LSF is neither IBM Spectrum LSF 10.1 nor volclava 2, so it is only observed.",
                "See docs/howto/lsf-site.md for the releases that are supported.",
            )
        slots = self._slots_of(request.node)
        if slots < 1:
            raise BatchSystemError(
                "BFT-1204",
                f"Pilot {request.pilot_id} is not submitted: bhosts names no host {request.node}.",
                "It is tried again when it does; see whether bhosts answers.",
            )
        argv = ["bsub", "-q", self.queue, "-J", job_name(request, self.token)]
        argv += ["-m", request.node, "-n", str(slots), "-R", f"span[ptile={slots}]"]
        argv += ["-W", str(minutes)]
        # The latest end: it removes a pilot that is never cancelled (whole minutes).
        argv += ["-t", _minute(calendar_s() + minutes * 60 + 4 * cycle_s + 60)]
        argv += ["-o", "/dev/null"]
        if dialect is Dialect.IBM:
            argv.append("-rn")
            if request.gpus:
                argv += ["-gpu", f"num={request.gpus}"]
        return (*argv, *self._bsub_options)

    def _submit(self, request: PilotRequest, argv: tuple[str, ...]) -> process.Completed:
        environment = {**self.commands.base_environment(), **request.environment}
        script = batch_script(request, _in_zone(environment, self._agent(request)))
        return self.commands.run(argv, {**environment, "TZ": "UTC0"}, stdin=script)

    def _job_id(self, request: PilotRequest, done: process.Completed) -> str:
        """Return the one job that the request, repeated or unanswered, is to keep.

        Its duplicates are cancelled. A bsub that failed may have made a job, too: its connection
        may have ended after the request.
        """
        answer = _SUBMITTED.search(done.stdout)
        if done.is_ok and answer and not has_waited(done):
            return answer[1]
        name = job_name(request, self.token)
        rows = self._jobs.named(name)
        if not rows:
            try:
                taken_by(request.log_path).mkdir()  # what comes later ends at once
            except FileExistsError:  # it has just started
                rows = self._jobs.named(name)
            except OSError:
                rows = []  # nor can its job make the folder
        if not rows:
            return ""
        job_id, *duplicates = [row.job_id for row in sorted(rows, key=rank)]
        if duplicates:
            with suppress(BatchSystemError):  # the next poll finds those that are left
                self.cancel(duplicates, force=True)
        return job_id

    def _is_unknown(self, done: process.Completed) -> bool:
        return done.timed_out or done.truncated or has_waited(done)

    def _end(self, how: str, job_ids: Sequence[str]) -> list[str]:
        # A plain bkill sends INT first and TERM after JOB_TERMINATE_INTERVAL (10 s), or KILL at
        # once to parallel jobs of LSF 10.1. So running pilots get TERM alone.
        options = {"ask": ("-s", "TERM"), "force": ("-s", "KILL")}.get(how, ())
        answer = self.commands.query(("bkill", *options, *job_ids))
        return self._problems(answer, said(answer))

    def _seen(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        rows = self._jobs.by_id(job_ids)
        return {job_id: self._observation(row) for job_id, row in rows.items()}

    def _observation(self, row: JobRow) -> PilotObservation:
        if row.state in ENDED:
            how = row.ended
            was_ordered = row.job_id in self._asked_s or row.job_id in self._jobs.lost
            has_failed = not was_ordered and _is_fault(row.state, how)
            return PilotObservation(
                presence=Presence.ABSENT,
                reason=how or row.state,
                has_failed=has_failed,
                ended_by=_ended_by(how),
            )
        if row.state in LOST:  # its processes may still run
            why = f"{row.state}: its host does not answer"
            return PilotObservation(presence=Presence.UNKNOWN, reason=why)
        if row.state in WAITING:
            reasons: tuple[str, ...] = ()
            if row.asked:
                reasons = row.asked.reasons
            return PilotObservation(
                presence=Presence.PRESENT,
                phase="pending",
                start_s=row.start_s,
                reason="; ".join(reasons),
            )
        return PilotObservation(
            presence=Presence.PRESENT,
            phase="running",
            node=next(iter(row.hosts), None),
            start_s=row.start_s,
        )


def rank(row: JobRow) -> tuple[bool, int]:
    """Order the jobs of one pilot: the first that has started, then the oldest."""
    number, _, _ = row.job_id.partition("[")
    return row.state in WAITING, int(number)


def _is_fault(state: str, how: str) -> bool:
    """Return whether a pilot's own process failed, as far as LSF says how it ended."""
    # One that is removed while pending has "Exited;" (-t, volclava 2.2).
    return state == "EXIT" and bool(_OWN_END.search(how)) and not _ORDERED.search(how)


def _ended_by(how: str) -> EndedBy:
    for words, ended_by in _ENDED_BY:
        if words.search(how):
            return ended_by
    return EndedBy.UNKNOWN


def _minute(at_s: float) -> str:
    """Return the next whole minute as bsub's ``-t`` reads it: month:day:hour:minute.

    bsub reads it as local time, where a time is ambiguous when daylight saving ends, and takes the
    next such day (volclava 2.2). So bsub runs in UTC.
    """
    return time.strftime("%m:%d:%H:%M", time.gmtime(60 * math.ceil(at_s / 60)))


def _in_zone(environment: Mapping[str, str], agent_argv: Sequence[str]) -> tuple[str, ...]:
    """Return the agent's command with the time zone that bsub's environment must not have."""
    zone = environment.get("TZ")
    if zone is None:
        return ("/usr/bin/env", "-u", "TZ", *agent_argv)
    return ("/usr/bin/env", f"TZ={zone}", *agent_argv)
