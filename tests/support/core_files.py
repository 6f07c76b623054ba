"""Core files: whether the kernel writes them where a process crashes, and what its limit is."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

_SOFT_AND_HARD = re.compile(r"^Max core file size\s+(\S+)\s+(\S+)", re.MULTILINE)


def limits_in(text: str) -> tuple[str, str]:
    """Return the soft and the hard limit, as /proc/PID/limits has them."""
    limits = _SOFT_AND_HARD.search(text)
    assert limits is not None, text
    return limits[1], limits[2]


def limits_of(pid: int | str) -> tuple[str, str]:
    """Return those of a process."""
    return limits_in(Path(f"/proc/{pid}/limits").read_text())


def are_written_beside() -> bool:
    """Whether a crash writes a file ``core...`` into the working directory of this machine."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    return pattern.startswith("core") and "/" not in pattern


def allow() -> tuple[int, int]:
    """Raise our own soft limit, as pilots have it on many sites; return the limits before."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    return before


@pytest.fixture
def core_files_allowed() -> Iterator[None]:
    """Whatever the test starts may write core files, as on many sites."""
    before = allow()
    if before[1] == 0:
        pytest.skip("this machine allows nobody core files")
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
