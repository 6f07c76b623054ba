"""Base of a small adapter: runs the batch system's commands and says which failed.

docs/howto/add-batch-system.md shows one. Slurm's and LSF's adapters need more of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from bftrainer.batch.batch_system import BatchSystem
from bftrainer.batch.commands import Commands, why_failed
from bftrainer.model.errors import BatchSystemError

T = TypeVar("T")
_ODD = (ValueError, LookupError, TypeError, AttributeError)  # of a parser
_MOST_WORDS = 300
_NONE = re.compile(r"(?!)")


class Reading:
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
    """What adapters that run commands have in common; they add what only they can know."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands

    def reading(self, *, answers: Collection[int] = (0,)) -> Reading:
        """Begin a poll (``Reading``)."""
        return Reading(self.commands, answers=answers)

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
