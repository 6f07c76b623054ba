"""The error classes, with stable codes.

Every error that a user can cause is a ``BftError``: a code that never changes its meaning, one
sentence of cause, one next step. The command line prints these three and exits with
``exit_code``; a traceback is printed only for bugs.

Code ranges: 10xx command line and submission, 11xx daemon and API, 12xx batch systems, 13xx wire
and agents (137x: the example of docs/howto/add-batch-system.md), 14xx trainers and elastic runtime
(defined in ``bftrainer.elastic``, which imports nothing else of ours), 15xx a site's service and
users, 20xx-21xx policy files, 22xx journal, 30xx decision, 40xx traces and workloads, 41xx
simulator, 42xx profiler.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Sequence

_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
_CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_OF_ANOTHER_KIND = frozenset({errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})


class ExitCode(enum.IntEnum):
    """Exit codes of every verb (docs/reference/cli.md has a table of them)."""

    OK = 0
    INTERNAL = 1  # a defect, a disk, or what was started: a trainer, a script
    USAGE = 2
    REFUSED_BY_POLICY = 3
    NOT_FOUND = 4
    NOT_PERMITTED = 5
    DAEMON_UNREACHABLE = 6
    TIMEOUT = 7
    VALIDATION_FAILED = 8
    ALREADY_RUNNING = 75


def exit_code_of(problem: Exception) -> ExitCode:
    """Return the exit code for a path that is missing, closed or unfit, or whose disk fails."""
    number = problem.errno if isinstance(problem, OSError) else None
    if number in _MISSING:
        return ExitCode.NOT_FOUND
    if number in _OF_ANOTHER_KIND:
        return ExitCode.USAGE
    if number in _CLOSED:
        return ExitCode.NOT_PERMITTED
    return ExitCode.INTERNAL


class BftError(Exception):
    """A failure with a stable code, its cause in one sentence and the next step."""

    def __init__(
        self,
        code: str,
        cause: str,
        next_step: str,
        *,
        exit_code: ExitCode = ExitCode.INTERNAL,
    ) -> None:
        super().__init__(f"{code}: {cause} {next_step}")
        self.code = code
        self.cause = cause
        self.next_step = next_step
        self.exit_code = exit_code

    def cause_lines(self) -> Sequence[str]:
        """Return the cause as it is printed: one line, unless an error lists several problems."""
        return (self.cause,)


class UsageError(BftError):
    """The request itself is wrong (exit code 2 by default)."""

    def __init__(
        self, code: str, cause: str, next_step: str, *, exit_code: ExitCode = ExitCode.USAGE
    ) -> None:
        super().__init__(code, cause, next_step, exit_code=exit_code)


class NoDaemonError(BftError):
    """No daemon answers; what to do then depends on the verb and on what the site has.

    ``is_of_site``: the site's daemon was asked, not one of the user's own.
    """

    is_of_site: bool = False


class BatchSystemError(BftError):
    """The batch system refused a request or did not answer."""


class UnansweredError(BatchSystemError):
    """It is not known whether the batch system carried out a request."""
