"""Which processes of this machine run, and whose children they are; for tests that end some."""

from __future__ import annotations

from pathlib import Path

from bftrainer.elastic.process import worker_keeper


def is_running(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # also ProcessLookupError, when it ends between open and read
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def parent_of(pid: int) -> int:
    """The process that a process is a child of now."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def below(pid: int) -> set[int]:
    """All descendants of a process that it has not lost to another parent."""
    found: set[int] = set()
    for child in worker_keeper.children(pid):
        found |= {child} | below(child)
    return found
