"""Errors of trace and workload files: one error type, stable codes.

Codes: 4001 malformed file (with its line), 4002 file cannot be read or written, 4003
format unknown, 4004 optional package missing, 4005 selection outside the trace, 4006
not a pandas frame, 4007 contradictory fragments, 4008 no jobs or nodes,
4009 parameters of the generator, 4010 malformed workload, 4011 unknown workload.
"""

from __future__ import annotations

from pathlib import Path

from bftrainer.errors import ExitCode, UsageError


class TraceError(UsageError):
    """A trace, a workload or a choice from one that cannot be used."""

    def __init__(self, code: str, cause: str, next_step: str) -> None:
        super().__init__(code, cause, next_step, exit_code=ExitCode.VALIDATION_FAILED)


def malformed(path: Path, line: int | None, what: str, next_step: str = "") -> TraceError:
    """The error of a file that does not have the form it should have."""
    where = path.name if line is None else f"{path.name}:{line}"
    return TraceError(
        "BFT-4001",
        f"{where}: {what}.",
        next_step or "Correct the file, or name its format with --format.",
    )


def unreadable(path: Path, problem: OSError) -> TraceError:
    """The error of a file that the system does not let us read or write."""
    return TraceError(
        "BFT-4002",
        f"{path}: {problem.strerror or problem}.",
        "Check the name and the permissions of the file.",
    )
