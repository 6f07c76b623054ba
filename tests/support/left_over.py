"""Finds what a command that should clean up after itself has left behind."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def processes_of(directory: Path) -> dict[int, str]:
    """All that a command started: TMPDIR is handed down to everything."""
    mark = f"TMPDIR={directory}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            given = (entry / "environ").read_bytes().split(b"\0")
            if any(one == mark or one.startswith(mark + b"/") for one in given):
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


@contextmanager
def nothing_left(pattern: str) -> Iterator[Path]:
    """A short TMPDIR (sockets are made in it); nothing may be left in it or run with it."""
    with tempfile.TemporaryDirectory(prefix="bft-t", dir="/tmp") as name:
        directory = Path(name)
        yield directory
        left = processes_of(directory)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert left == {}
        assert list(directory.glob(pattern)) == []  # torch keeps a cache there
