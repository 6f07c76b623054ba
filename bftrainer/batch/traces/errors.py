"""Errors of trace and workload files: one error type, stable codes.

Codes: 4001 malformed file (with its line), 4002 file cannot be read or written, 4003
format unknown, 4004 optional package missing, 4005 selection outside the trace, 4006
not a pandas frame, 4007 contradictory fragments, 4008 no jobs or nodes,
4009 parameters of the generator, 4010 malformed workload, 4011 unknown workload.
"""

from __future__ import annotations

from pathlib import Path

from bftrainer.model.errors import ExitCode, UsageError


class TraceError(UsageError):
    """A trace or workload, or a part of one, cannot be used."""

    def __init__(self, code: str, cause: str, next_step: str) -> None:
        super().__init__(code, cause, next_step, exit_code=ExitCode.VALIDATION_FAILED)


def malformed(path: Path, line: int | None, what: str, next_step: str = "") -> TraceError:
    """Return the error of a file that violates its format."""
    where = path.name if line is None else f"{path.name}:{line}"
    return TraceError(
        "BFT-4001",
        f"{where}: {what}.",
        next_step or "Correct the file, or name its format with --format.",
    )


def unreadable(path: Path, problem: OSError) -> TraceError:
    """Return the error of a file that cannot be read or written."""
    return TraceError(
        "BFT-4002",
        f"{path}: {problem.strerror or problem}.",
        "Check the name and the permissions of the file.",
    )
