"""Runs a batch system's commands, and is the base of a small adapter that does nothing else.

``Commands`` is the base of ``SlurmCommands`` and ``LsfCommands``. Variables of the caller that
could change an output (``SQUEUE_*``, ``BSUB_*`` and the like) are not passed on.

``ByCommands`` is the base of a small adapter; docs/howto/add-batch-system.md shows one. Slurm's and
LSF's adapters need more of their own.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from bftrainer.batch import process
from bftrainer.batch.batch_system import BatchSystem
from bftrainer.model.errors import BatchSystemError

KEPT = ("PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME")
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_MOST_WORDS = 300  # characters of a command's own message


class Commands:
    """Runs commands against one cluster and counts them."""

    def __init__(
        self,
        *,
        kind_of: Callable[[Sequence[str]], str],
        timeout_s: float,
        kept: Sequence[str] = (),
        added: Mapping[str, str] | None = None,
    ) -> None:
        """Say how commands are run.

        Args:
            kind_of: the kind under which a command line is counted; "submit" and "cancel" are
                orders (``batch_system.ORDER_KINDS``).
            timeout_s: limit per command; its process group is killed then.
            kept: variables passed on beside the usual ones.
            added: variables set in addition.
        """
        self.timeout_s = timeout_s
        self._kind_of, self._kept, self._added = kind_of, (*KEPT, *kept), dict(added or {})
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

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
        kept = {key: os.environ[key] for key in self._kept if key in os.environ}
        kept.setdefault("PATH", DEFAULT_PATH)
        return {**kept, **self._added}

    def run(
        self, argv: Sequence[str], environment: Mapping[str, str], *, stdin: str = ""
    ) -> process.Completed:
        """Run one command with exactly this environment."""
        self.count(argv)
        return process.run(argv, timeout_s=self.timeout_s, env=environment, cwd=None, stdin=stdin)


def why_failed(done: process.Completed) -> str:
    """Describe a failed command in one sentence, in the batch system's words."""
    name = done.argv[0].rpartition("/")[2]
    if done.timed_out:
        return f"{name} did not answer within {done.wall_s:.0f} s."
    if done.truncated:
        return f"{name} printed more than bftrainer reads."
    if done.returncode == 127:
        return f"{name} cannot be started: {done.stderr.strip()[:200]}."
    words = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    return f"{name} ended with status {done.returncode}: {words[:_MOST_WORDS] or 'no message'}."


T = TypeVar("T")
_ODD = (ValueError, LookupError, TypeError, AttributeError)  # of a parser
_NONE = re.compile(r"(?!)")


class PollCommands:
    """One poll: after a command that did not answer in time, none is tried any more."""

    def __init__(self, commands: Commands, *, answers: Collection[int] = (0,)) -> None:
        """Read with ``commands``, whose output counts if the exit status is one of ``answers``."""
        self.failures: list[str] = []  # a sentence per command that was not read
        self._commands, self._answers, self._is_away = commands, answers, False

    def of(self, argv: Sequence[str], parse: Callable[[str], T]) -> T | None:
        """Run a command and return its parsed output; None: it could not be read."""
        if self._is_away:
            return None
        done = self._commands.run(argv, self._commands.base_environment())
        if done.timed_out or done.truncated or done.returncode not in self._answers:
            self._is_away = done.timed_out
            self.failures.append(why_failed(done))
            return None
        try:
            return parse(done.stdout)
        except _ODD as problem:
            words = f"{type(problem).__name__}: {problem}"[:_MOST_WORDS]
            self.failures.append(f"{Path(argv[0]).name} printed something unexpected ({words}).")
            return None


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
        done = self.commands.run(argv, self.commands.base_environment())
        if done.is_ok or (not done.timed_out and harmless.fullmatch(done.stderr)):
            return done.stdout.strip()
        next_step = "The next poll shows whether it had an effect; it is tried again if needed."
        raise BatchSystemError(code, why_failed(done), next_step)

    def request_counts(self) -> Mapping[str, int]:
        """Return the number of commands so far, by kind."""
        return self.commands.request_counts()
