"""Runs a batch system's commands, and is the base of adapters that do so.

``Commands`` is the base of ``SlurmCommands`` and ``LsfCommands``. Variables of the caller that
could change what is asked for or what is printed are not passed on (``environment_of_command``).
``PollCommands`` reads one poll, ``ByCommands`` is the base of adapters
(docs/howto/add-batch-system.md shows one), ``PilotLauncher`` owns what submitting, cancelling and
observing pilots have in common.
"""

from __future__ import annotations

import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, TypeVar

from bftrainer.batch import process
from bftrainer.batch.batch_system import BatchSystem, PilotObservation, PilotRequest
from bftrainer.batch.pilot_job import token_of, token_of_place
from bftrainer.model.cluster import Presence
from bftrainer.model.errors import BatchSystemError, ExitCode, UnansweredError
from bftrainer.model.hostlist import ParseError
from bftrainer.model.preamble import under
from bftrainer.model.site import NOTHING, Finding, Measured, SiteFile

# Where programs and libraries are, and who asks. All else stays behind: a batch system has hundreds
# of variables that change a command, and each release has more of them.
KEPT = ("PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME")
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
DEFAULT_TIMEOUT_S = 15.0  # per command
_MOST_WORDS = 300  # characters of a command's own message
_EMPTY: Mapping[str, str] = MappingProxyType({})
T = TypeVar("T")
_ODD = (ValueError, LookupError, TypeError, AttributeError)  # of a parser
_NONE = re.compile(r"(?!)")
SHORTEST_LIMIT_S = 60.0  # of a job: Slurm and LSF count whole minutes
FORCE_AFTER_S = 2.0  # if a pilot asked to leave this long ago is cancelled again, it is killed
_FORGOTTEN_S = 600.0  # pilots asked to leave
_JOB_ID = re.compile(r"[0-9]{1,10}")
_ABSENT = PilotObservation(presence=Presence.ABSENT, reason="not in the queue")
_REFUSALS = {
    "fault": (
        "Pilot {pilot_id!r} cannot be submitted: {why}.",
        "Change it; nothing was submitted.",
    ),
    "short": (
        "Pilot {pilot_id} may stay {limit_s:.0f} s, and {system}'s shortest limit is a minute.",
        "Leave this node alone; the gap is too short.",
    ),
    "refused": (
        "{system} refused pilot {pilot_id} for {where}: {why}",
        "Check that {queue} exists and that {user} may submit to it.",
    ),
    "unknown": (
        "It is not known whether pilot {pilot_id} was submitted: {why}",
        "{then}",
    ),
    "kept": (
        "{system} did not cancel every pilot: {why}",
        "It is retried; a pilot also ends when {system} preempts it or at its time limit.",
    ),
}


def why_failed(done: process.Completed) -> str:
    """Describe a failed command in one sentence, in the batch system's words."""
    name = done.argv[0].rpartition("/")[2]
    if done.timed_out:
        return f"{name} did not answer within {done.wall_s:.0f} s."
    if done.truncated:
        return f"{name} printed more than bftrainer reads."
    if done.returncode == 127:
        return f"{name} cannot be started: {done.stderr.strip()[:200]}."
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    words = "; ".join(" ".join(line.split()) for line in lines if line.strip())
    return f"{name} ended with status {done.returncode}: {words[:_MOST_WORDS] or 'no message'}."


def environment_of_command(
    environ: Mapping[str, str], kept: Collection[str] = ()
) -> dict[str, str]:
    """Return what of an environment the commands of a batch system get, and so the pilots.

    Users, their modules and the job around us set options of submissions (``SBATCH_EXCLUSIVE``,
    ``SBATCH_GPUS_PER_NODE``, ``LSB_DEFAULTQUEUE``), filters and forms of output
    (``SQUEUE_FORMAT``, ``SLURM_TIME_FORMAT``) and other clusters (``SLURM_CLUSTERS``). None of
    them is ours, so that only named variables remain, and a language is none of these.

    Args:
        environ: the environment around us.
        kept: variables by which the batch system's commands find and are known to their cluster.
    """
    remaining = {name: environ[name] for name in (*KEPT, *kept) if name in environ}
    return {"PATH": DEFAULT_PATH, **remaining}


class Commands:
    """Runs commands against one cluster and counts them."""

    def __init__(
        self,
        *,
        kind_of: Callable[[Sequence[str]], str],
        timeout_s: float,
        kept: Sequence[str] = (),
        added: Mapping[str, str] = _EMPTY,
        fixed: Mapping[str, str] = _EMPTY,
        why_failed: Callable[[process.Completed], str] = why_failed,
        is_away: Callable[[process.Completed], bool] = lambda done: done.timed_out,
    ) -> None:
        """Say how commands are run.

        Args:
            kind_of: the kind under which a command line is counted; "submit" and "cancel" are
                orders (``batch_system.ORDER_KINDS``).
            timeout_s: limit per command; its process group is killed then.
            kept: variables passed on beside the usual ones.
            added: variables set in addition.
            fixed: variables of commands whose output is parsed: language, time zone.
            why_failed: describes a failed command; a batch system's messages may mean more.
            is_away: whether a failure means that no command will be answered now.
        """
        self.why_failed, self.is_away = why_failed, is_away
        self.timeout_s = timeout_s
        self._kind_of, self._kept, self._added = kind_of, tuple(kept), dict(added)
        self._fixed, self._counts, self._lock = fixed, Counter[str](), threading.Lock()

    def request_counts(self) -> dict[str, int]:
        """Return a consistent copy of the numbers of requests so far, by kind."""
        with self._lock:
            return dict(self._counts)

    def count(self, argv: Sequence[str]) -> None:
        """Count a command that is run for us."""
        with self._lock:
            self._counts[self._kind_of(argv)] += 1

    def base_environment(self) -> dict[str, str]:
        """Return the environment of every command and pilot: paths, no settings."""
        return {**environment_of_command(os.environ, self._kept), **self._added}

    def query(self, argv: Sequence[str]) -> process.Completed:
        """Run a command whose output is parsed."""
        return self.run(argv, {**self.base_environment(), **self._fixed})

    def run(
        self, argv: Sequence[str], environment: Mapping[str, str], *, stdin: str = ""
    ) -> process.Completed:
        """Run one command with exactly this environment."""
        self.count(argv)
        return process.run(argv, timeout_s=self.timeout_s, env=environment, cwd=None, stdin=stdin)


class UnreadError(ParseError):
    """A command failed, or its output could not be read; the text is one sentence."""

    def __init__(self, sentence: str, *, is_away: bool = False) -> None:
        """Say why; ``is_away``: no other command will be answered now either."""
        super().__init__(sentence)
        self.is_away = is_away


class PollCommands:
    """One poll: after a command that did not answer in time, none is tried any more."""

    def __init__(
        self, commands: Commands, *, answers: Collection[int] = (0,), system: str = ""
    ) -> None:
        """Read with ``commands``, whose output counts if the exit status is one of ``answers``."""
        self.failures: list[str] = []  # a sentence per command that was not read
        self.unread: list[str] = []  # the parts of the snapshot that were not
        self._commands, self._answers, self._system = commands, answers, system
        self._is_away = False

    def of(self, argv: Sequence[str], parse: Callable[[str], T], part: str = "") -> T | None:
        """Run a command and return its parsed output; None: it could not be read."""

        def read() -> T:
            text = self.answer(argv)
            try:
                return parse(text)
            except _ODD as problem:
                words = f": {problem}."
                if not isinstance(problem, ParseError):
                    words = f" ({type(problem).__name__}: {problem}"[:_MOST_WORDS] + ")."
                name = Path(argv[0]).name
                raise UnreadError(f"{name} printed something unexpected{words}") from problem

        return self.part(part, read)

    def part(self, part: str, read: Callable[[], T]) -> T | None:
        """Read a part of the snapshot by several commands; None: it could not be read."""
        if not self._is_away:  # else each further command would block as long
            try:
                return read()
            except UnreadError as problem:
                self._is_away = problem.is_away
                self.failures.append(str(problem))
            except ParseError as problem:
                self.failures.append(f"{self._system}'s {part} cannot be read: {problem}.")
        self.unread.append(part)
        return None

    def answer(self, argv: Sequence[str]) -> str:
        """Return what a command prints; raises ``UnreadError``."""
        completed = self.run(argv)
        is_whole = not (completed.timed_out or completed.truncated)
        if not is_whole or completed.returncode not in self._answers:
            why = self._commands.why_failed(completed)
            raise UnreadError(why, is_away=self._commands.is_away(completed))
        return completed.stdout

    def run(self, argv: Sequence[str]) -> process.Completed:
        """Run a command."""
        return self._commands.query(argv)


class ByCommands(BatchSystem):
    """The base of adapters that run commands; an adapter adds its own commands and formats."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands

    def reading(self, *, answers: Collection[int] = (0,)) -> PollCommands:
        """Begin a poll (``PollCommands``)."""
        return PollCommands(self.commands, answers=answers)

    def order(self, argv: Sequence[str], *, code: str, harmless: re.Pattern[str] = _NONE) -> str:
        """Run a command that changes something, and return its output.

        Raises:
            BatchSystemError: ``code``, it failed, and its messages are not ``harmless``.
        """
        completed = self.commands.run(argv, self.commands.base_environment())
        is_harmless = not completed.timed_out and harmless.fullmatch(completed.stderr)
        if completed.is_ok or is_harmless:
            return completed.stdout.strip()
        next_step = "The next poll shows whether it had an effect; it is tried again if needed."
        raise BatchSystemError(code, why_failed(completed), next_step)

    def request_counts(self) -> Mapping[str, int]:
        """Return the number of commands so far, by kind."""
        return self.commands.request_counts()


class PilotLauncher(ABC):
    """Submits, cancels and observes pilots; an adapter adds its command lines and answers.

    All methods are called from the daemon's threads; ``observe`` and polls keep ``running``.
    """

    system: ClassVar[str]  # in sentences, as are the next three
    node_word: ClassVar[str] = "node"
    queue_word: ClassVar[str] = "partition"
    then: ClassVar[str]  # after a submission that may have been heard
    odd_answer: ClassVar[str]  # of a submission that succeeded
    codes: ClassVar[tuple[str, ...]]  # of ``_REFUSALS``, in that order
    gone: ClassVar[re.Pattern[str]]  # said of each pilot that had left when it was cancelled
    forces_pending = True  # whether a pending pilot that is late is killed, too

    def __init__(
        self,
        *,
        commands: Commands,
        queue: str,
        preamble: Path | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the collaborators.

        Args:
            commands: to run.
            queue: or partition, of pilots.
            preamble: shell file under which agents run.
            steady: monotonic clock.
        """
        self.commands, self.queue = commands, queue
        self.token = ""  # of our pilots' names, once it is known where they are
        self.tokens: set[str] = set()  # those in names that we gave
        self.running: frozenset[str] = frozenset()  # job ids last seen running
        self._preamble, self._steady = preamble, steady
        self._asked_s: dict[str, float] = {}  # job ids asked to leave

    def pilots_are_in(self, directory: Path) -> None:
        """Learn where the daemon keeps the folders of its pilots, before it launches any."""
        self.token = token_of_place(directory)
        self.tokens.add(self.token)

    def launch(self, request: PilotRequest, *, cycle_s: float) -> str:
        """Submit a pilot and return its job id.

        Raises:
            UnansweredError: it is not known whether it was submitted.
            BatchSystemError: by ``codes``: refused, a limit under one minute, or a request that
                cannot be passed on verbatim.
        """
        if why := self._fault(request):
            raise self._refusal("fault", request, why)
        minutes = int(request.time_limit_s // 60)
        if request.time_limit_s < SHORTEST_LIMIT_S:
            raise self._refusal("short", request)
        argv = self._argv(request, minutes, cycle_s)
        self.tokens.add(self.token or token_of(request))
        completed = self._submit(request, argv)
        job_id = self._job_id(request, completed)
        if job_id:
            return job_id
        if completed.is_ok:
            raise self._refusal("unknown", request, self.odd_answer)
        outcome = "unknown" if self._is_unknown(completed) else "refused"
        raise self._refusal(outcome, request, self.commands.why_failed(completed))

    def cancel(self, job_ids: Sequence[str], *, force: bool) -> None:
        """Ask pilots to leave; ids that are gone or were never ours are not an error.

        Running pilots get TERM alone. Pending ones are ended, and so are those that were asked
        ``FORCE_AFTER_S`` ago.

        Raises:
            BatchSystemError: the batch system did not accept the cancellation.
        """
        now_s, ids = self._steady(), _own(job_ids)
        recently_asked_s = {
            job_id: asked_s
            for job_id, asked_s in self._asked_s.items()
            if now_s - asked_s < _FORGOTTEN_S
        }
        ids_of: dict[str, list[str]] = {"ask": [], "end": [], "force": []}
        for job_id in ids:
            is_running = job_id in self.running
            asked_s = self._asked_s.get(job_id, now_s)
            recently_asked_s[job_id] = asked_s
            is_late = force or now_s - asked_s >= FORCE_AFTER_S
            if is_late and (is_running or self.forces_pending):
                ids_of["force"].append(job_id)
            elif is_running:
                ids_of["ask"].append(job_id)
            else:
                ids_of["end"].append(job_id)
        self._asked_s = recently_asked_s
        problems: list[str] = []
        for how, job_ids_so in ids_of.items():
            if job_ids_so:
                problems += self._end(how, job_ids_so)
        if problems:
            raise self._refusal("kept", None, " ".join(problems))

    def observe(self, job_ids: Sequence[str]) -> dict[str, PilotObservation]:
        """Observe each id; all are ``UNKNOWN`` when the batch system does not answer."""
        ids = _own(job_ids)
        observations: Mapping[str, PilotObservation] = {}
        try:
            if ids:
                observations = self._seen(ids)
        except ParseError as problem:
            unknown = PilotObservation(presence=Presence.UNKNOWN, reason=str(problem))
            return dict.fromkeys(job_ids, _ABSENT) | dict.fromkeys(ids, unknown)
        # Of those that are not known now, what was known last stays.
        running = self.running - set(ids)
        for job_id, observation in observations.items():
            is_unknown = observation.presence is Presence.UNKNOWN
            if observation.phase == "running" or (is_unknown and job_id in self.running):
                running |= {job_id}
        self.running = running
        return {job_id: observations.get(job_id, _ABSENT) for job_id in job_ids}

    def _refusal(self, what: str, request: PilotRequest | None, why: str = "") -> BatchSystemError:
        """Return the error, in words of ``_REFUSALS``."""
        words: dict[str, object] = {"system": self.system, "then": self.then, "why": why}
        if request is not None:
            words |= {"pilot_id": request.pilot_id, "limit_s": request.time_limit_s}
            words |= {"where": f"{self.node_word} {request.node}", "user": request.user or "you"}
            words |= {"queue": f"{self.queue_word} {self.queue}"}
        cause, next_step = _REFUSALS[what]
        cause, next_step = cause.format(**words), next_step.format(**words)
        code = self.codes[list(_REFUSALS).index(what)]
        if what == "unknown":
            return UnansweredError(code, cause, next_step)
        return BatchSystemError(code, cause, next_step)

    def _agent(self, request: PilotRequest) -> tuple[str, ...]:
        """Return the agent's command line under the user's shell file, if there is one."""
        if self._preamble is None:
            return request.agent_argv
        return under(str(self._preamble), request.agent_argv)

    def _problems(self, done: process.Completed, lines: Sequence[str]) -> list[str]:
        """Return why a cancellation failed, by its messages; []: it did not, or all had left."""
        are_gone = bool(lines) and all(map(self.gone.search, lines)) and not done.timed_out
        if done.is_ok or are_gone:
            return []
        return [self.commands.why_failed(done)]

    @abstractmethod
    def _fault(self, request: PilotRequest) -> str:
        """Say which part of a request cannot be passed on verbatim; "": all is well."""

    @abstractmethod
    def _argv(self, request: PilotRequest, minutes: int, cycle_s: float) -> tuple[str, ...]:
        """Return the submission's command line; raises ``BatchSystemError``."""

    @abstractmethod
    def _submit(self, request: PilotRequest, argv: tuple[str, ...]) -> process.Completed:
        """Run the submission; raises ``BatchSystemError``."""

    @abstractmethod
    def _job_id(self, request: PilotRequest, done: process.Completed) -> str:
        """Return the id of the submitted job; "": none is known."""

    @abstractmethod
    def _is_unknown(self, done: process.Completed) -> bool:
        """Return whether a submission that failed may have been carried out."""

    @abstractmethod
    def _end(self, how: str, job_ids: Sequence[str]) -> list[str]:
        """Cancel jobs: "ask" (running), "end" or "force"; return what failed, in sentences."""

    @abstractmethod
    def _seen(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        """Observe jobs; unknown ids are missing. Raises ``ParseError``: nobody answered."""


class LaunchingSystem(ByCommands, ABC):
    """The base of adapters with a ``PilotLauncher`` and a doctor."""

    launcher: PilotLauncher
    unread: ClassVar[staticmethod[[str], Finding]]  # of a doctor that cannot read settings
    to_reread: ClassVar[str]  # when settings can be read again
    pilots_dir: Path | None = None

    def pilots_are_in(self, directory: Path) -> None:
        """Tell our pilots from those of other daemons by the token of this folder."""
        self.pilots_dir = directory
        self.launcher.pilots_are_in(directory)

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        """Ask the pilots to leave with TERM; by force, or the second time after 2 s, kill them."""
        self.launcher.cancel(job_ids, force=force)

    def pilot_states(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        """Observe each id; ended and unknown ids are absent, those on lost nodes unknown."""
        return self.launcher.observe(job_ids)

    def findings(self, measured: Measured = NOTHING, /) -> tuple[Finding, ...]:
        """Check the site's settings; unreadable ones are a finding, too."""
        try:
            return self._findings(measured)
        except ParseError as problem:
            return (self.unread(str(problem)),)

    def site_files(self) -> tuple[SiteFile, ...]:
        """Return what an administrator installs here.

        Raises:
            BatchSystemError: BFT-1247, the settings cannot be read; the exit status is 6 where
                the batch system did not answer.
        """
        try:
            return self._site_files()
        except ParseError as problem:
            why = f"{self.launcher.system}'s settings cannot be read: {problem}"
            exit_code = ExitCode.INTERNAL
            if isinstance(problem, UnreadError):
                exit_code = ExitCode.DAEMON_UNREACHABLE
            raise BatchSystemError(
                "BFT-1247",
                why,
                f"Repeat it {self.to_reread}.",
                exit_code=exit_code,
            ) from problem

    @abstractmethod
    def _findings(self, measured: Measured) -> tuple[Finding, ...]:
        """Return what the doctor finds; raises ``ParseError``."""

    @abstractmethod
    def _site_files(self) -> tuple[SiteFile, ...]:
        """Return the site's files; raises ``ParseError``."""


def _own(job_ids: Sequence[str]) -> list[str]:
    return [job_id for job_id in dict.fromkeys(job_ids) if _JOB_ID.fullmatch(job_id)]
