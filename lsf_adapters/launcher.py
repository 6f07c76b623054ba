"""Pilots on LSF: submitted with bsub, released with bkill, observed with bjobs.

Called by the adapter. A pilot takes a host by all of its slots (``-n MXJ``), not by ``-x``: an
exclusive job leaves its host locked until the next exchange of lim, which cost the next job up to
29 s, by slots 2.3 s (measured on volclava 2.2, MBD_SLEEP_TIME=2).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from bftrainer import process
from bftrainer.errors import BatchSystemError
from bftrainer.hostlist import ParseError
from bftrainer.model.cluster import Presence
from bftrainer.poll.batch_system import PilotObservation, PilotRequest
from bftrainer.poll.commands import why_failed
from bftrainer.preamble import under
from lsf_adapters.commands import LsfCommands, has_waited
from lsf_adapters.csm.placement import Csm
from lsf_adapters.dialect import Dialect
from lsf_adapters.jobs import JobReader
from lsf_adapters.requests import ENDED, JobRow
from lsf_adapters.script import batch_script, job_name, problem_of, taken_by

FORCE_AFTER_S = 2.0
"""If a pilot asked to leave this long ago is cancelled again, it is killed."""

_JOB_ID = re.compile(r"[0-9]{1,10}")
_SUBMITTED = re.compile(r"^Job <([0-9]{1,10})> is submitted to ", re.MULTILINE)
_GONE = ("No matching job found", "Job has already finished", "Operation is in progress")
_ABSENT = PilotObservation(presence=Presence.ABSENT, reason="not in the queue")


class PilotLauncher:
    """Submits, cancels and observes pilots."""

    def __init__(
        self,
        *,
        commands: LsfCommands,
        jobs: JobReader,
        queue: str,
        slots_of: Callable[[str], int],
        bsub_options: Sequence[str] = (),
        preamble: Path | None = None,
        csm: Csm | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the collaborators.

        Args:
            commands: to run.
            jobs: reads bjobs.
            queue: of pilots.
            slots_of: returns all slots (MXJ) of a host.
            bsub_options: the site's: project, user group.
            preamble: shell file under which agents run.
            csm: how they are started with jsrun; None: the job is the agent.
            steady: monotonic clock.
        """
        self._commands, self._jobs, self._queue = commands, jobs, queue
        self._slots_of, self._bsub_options = slots_of, tuple(bsub_options)
        self._preamble, self._steady, self._csm = preamble, steady, csm
        self._asked_s: dict[str, float] = {}  # job ids asked to leave

    def launch(self, request: PilotRequest, *, cycle_s: float) -> str:
        """Submit a pilot and return its job id.

        Raises:
            BatchSystemError: BFT-1203, bsub cannot take the request verbatim; BFT-1204, LSF refused
                it; BFT-1205, it is not known whether it was submitted; BFT-1206, a limit under one
                minute; BFT-1208, nothing is submitted to an unknown LSF.
        """
        if problem := problem_of(request):
            raise BatchSystemError(
                "BFT-1203",
                f"Pilot {request.pilot_id!r} cannot be submitted: {problem}.",
                "Change it; nothing was submitted.",
            )
        argv = self._bsub_argv(request, cycle_s)
        agent = request.agent_argv
        if self._preamble is not None:
            agent = under(str(self._preamble), agent)
        environment = {**self._commands.base_environment(), **request.environment}
        script = (self._csm.script if self._csm else batch_script)(request, agent)
        done = self._commands.run(argv, environment, stdin=script)
        found = _SUBMITTED.search(done.stdout)
        if done.is_ok and found and not has_waited(done):
            return found[1]
        if done.is_ok or done.timed_out or done.truncated:
            return self._one_of(request, done)
        raise BatchSystemError(
            "BFT-1204",
            f"LSF refused pilot {request.pilot_id} for host {request.node}: {why_failed(done)}",
            f"Check that queue {self._queue} exists and that you may submit to it.",
        )

    def _bsub_argv(self, request: PilotRequest, cycle_s: float) -> tuple[str, ...]:
        dialect = self._jobs.dialect()
        if dialect is Dialect.UNKNOWN:
            raise BatchSystemError(
                "BFT-1208",
                "This LSF is neither IBM Spectrum LSF 10.1 nor volclava 2, so it is only observed.",
                "See docs/howto/lsf-site.md for the releases that are supported.",
            )
        minutes = int(request.time_limit_s // 60)
        if minutes < 1:
            raise BatchSystemError(
                "BFT-1206",
                f"Pilot {request.pilot_id} may stay {request.time_limit_s:.0f} s, and LSF's "
                "shortest limit is a minute.",
                "Leave this node alone; the gap is too short.",
            )
        slots = self._slots_of(request.node)
        is_ibm = dialect is Dialect.IBM
        where: tuple[str, ...] = (
            "-m",
            request.node,
            "-n",
            str(slots),
            "-R",
            f"span[ptile={slots}]",
        )
        if self._csm is not None:
            self._csm.check(dialect)
            where = self._csm.words((request.node,), slots)
        return (
            *("bsub", "-q", self._queue, "-J", job_name(request), *where, "-W", str(minutes)),
            # The latest end: it removes a pilot that is never cancelled (whole minutes, local).
            *("-t", _local(time.time() + minutes * 60 + 4 * cycle_s + 60)),
            *("-o", "/dev/null"),
            *(("-rn",) if is_ibm else ()),
            *(("-gpu", f"num={request.gpus}") if is_ibm and request.gpus and not self._csm else ()),
            *self._bsub_options,
        )

    def _one_of(self, request: PilotRequest, done: process.Completed) -> str:
        """Return the one job that a repeated request is to keep; cancel its duplicates.

        Raises:
            BatchSystemError: BFT-1205, none is known.
        """
        rows = self._jobs.named(job_name(request))
        if rows:
            kept, *others = sorted(rows, key=rank)
            if others:
                with suppress(BatchSystemError):  # the next poll finds those that are left
                    self.cancel([row.job_id for row in others], force=True)
            return kept.job_id
        with suppress(OSError):  # what comes later ends at once
            taken_by(request.log_path).mkdir()
        said = why_failed(done) if not done.is_ok else "bsub had to repeat its request."
        raise BatchSystemError(
            "BFT-1205",
            f"It is not known whether pilot {request.pilot_id} was submitted: {said}",
            "If it was, its job ends by itself; see bjobs if this persists.",
        )

    def cancel(self, job_ids: Sequence[str], *, force: bool) -> None:
        """Ask pilots to leave; ids that are gone or were never ours are not an error.

        A plain bkill sends INT first and TERM after JOB_TERMINATE_INTERVAL (10 s), or KILL at once
        to parallel jobs of LSF 10.1. So running pilots get TERM alone.

        Raises:
            BatchSystemError: BFT-1207, LSF did not accept the cancellation.
        """
        now = self._steady()
        ids = [job_id for job_id in dict.fromkeys(job_ids) if _JOB_ID.fullmatch(job_id)]
        late = {i for i in ids if force or now - self._asked_s.get(i, now) >= FORCE_AFTER_S}
        self._asked_s = {
            **{i: at for i, at in self._asked_s.items() if now - at < 600},
            **{i: self._asked_s.get(i, now) for i in ids},
        }
        running = self._jobs.running
        problems: list[str] = []
        for options, chosen in (
            (("-s", "TERM"), [i for i in ids if i in running and i not in late]),
            ((), [i for i in ids if i not in running]),  # a signal alone does not end a pending job
            (("-s", "KILL"), [i for i in ids if i in running and i in late]),
        ):
            if chosen:
                problems += self._bkill(("bkill", *options, *chosen))
        if problems:
            raise BatchSystemError(
                "BFT-1207",
                f"LSF did not cancel every pilot: {' '.join(problems)}",
                "It is retried; a pilot also ends when LSF preempts it or at its time limit.",
            )

    def _bkill(self, argv: tuple[str, ...]) -> list[str]:
        done = self._commands.query(argv)
        lines = [line for line in done.stderr.split("\n") if line.strip()]
        is_gone = bool(lines) and all(any(words in line for words in _GONE) for line in lines)
        return [] if done.is_ok or (is_gone and not done.timed_out) else [why_failed(done)]

    def observe(self, job_ids: Sequence[str]) -> dict[str, PilotObservation]:
        """Observe each id; all are ``UNKNOWN`` when LSF does not answer."""
        ids = [job_id for job_id in dict.fromkeys(job_ids) if _JOB_ID.fullmatch(job_id)]
        try:
            seen = self._jobs.by_id(ids) if ids else {}
        except ParseError as problem:
            unknown = PilotObservation(presence=Presence.UNKNOWN, reason=str(problem))
            return {i: unknown if i in ids else _ABSENT for i in job_ids}
        return {i: self._observation(seen[i]) if i in seen else _ABSENT for i in job_ids}

    def _observation(self, row: JobRow) -> PilotObservation:
        if row.state in ENDED:
            how = row.ended
            has_failed = row.job_id not in self._asked_s and _is_fault(row.state, how)
            return PilotObservation(
                presence=Presence.ABSENT, reason=how or row.state, has_failed=has_failed
            )
        if row.state in {"UNKWN", "ZOMBI"}:  # its processes may still run
            why = f"{row.state}: its host does not answer"
            return PilotObservation(presence=Presence.UNKNOWN, reason=why)
        is_pending = row.state in {"PEND", "PSUSP", "WAIT"}
        reasons = row.asked.reasons if row.asked else ()
        return PilotObservation(
            presence=Presence.PRESENT,
            phase="pending" if is_pending else "running",
            node=row.hosts[-1] if row.hosts and not is_pending else None,  # a launch node is first
            start_s=row.start_s,
            reason="; ".join(reasons) if is_pending else "",
        )


def rank(row: JobRow) -> tuple[bool, int]:
    """Order the jobs of one pilot: the first that has started, then the oldest."""
    return row.state in {"PEND", "PSUSP", "WAIT"}, int(row.job_id.partition("[")[0])


# Ends that others ordered: INT and TERM of bkill, and what LSF names as a reason.
_ORDERED = re.compile(r"exit code (?:130|143)\b|signal (?:2|15)\b|TERM_|by (?:owner|user|LSF)")


def _is_fault(state: str, how: str) -> bool:
    """Whether a pilot's own process failed, as far as LSF says how it ended."""
    return state == "EXIT" and bool(how) and not _ORDERED.search(how)


def _local(at_s: float) -> str:
    """Return the next whole minute as bsub's ``-t`` reads it: month:day:hour:minute, local time."""
    return time.strftime("%m:%d:%H:%M", time.localtime(60 * math.ceil(at_s / 60)))
