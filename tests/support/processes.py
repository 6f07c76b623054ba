"""Whether a process of this machine runs; for tests that end some."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # also ProcessLookupError, when it ends between open and read
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
