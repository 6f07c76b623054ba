"""Ends all descendants of a process, also those that left its process group and session.

A subreaper (prctl(2), PR_SET_CHILD_SUBREAPER) adopts the orphans below it, so nothing leaves the
tree of its descendants. Each worker has one of its own, its keeper (``keeping``); above it
template and agent adopt what a keeper leaves that was killed. Works for ordinary users, without
cgroups. Standard library only.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress

LOOK_S = 0.001  # between two looks whether all have ended
_PR_SET_CHILD_SUBREAPER = 36
_MANAGER = b"torch_shm_manag\n"  # torch_shm_manager, where tensors are shared by file_system


def adopt() -> None:
    """Make this process the parent of the orphans among its descendants."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def end_below(pid: int, spared: Collection[int] = (), *, is_last: bool = True) -> set[int]:
    """SIGKILL all descendants of an adopting process; return their pids.

    A process that was sent the signal starts no other one, and whoever loses its parent moves up.
    So a look from below that meets nobody new was the last. Safe from any thread.

    Args:
        pid: the adopting process, which is left alone.
        spared: children that are left alone, with all below them.
        is_last: whether the node has to be empty. Else torch's managers of shared files are left to
            end, within 2 s: they remove files that nobody else knows.
    """
    found, known = [pid], {pid, *spared}  # parents before their children

    def look_at(parent: int) -> None:
        new = [child for child in children(parent) if child not in known]
        found.extend(child for child in new if is_last or not _cleans_up(child))
        known.update(new)

    while True:
        first = len(found)
        for parent in found[::-1]:
            look_at(parent)
        for parent in itertools.islice(found, first, None):  # it grows
            look_at(parent)
        if len(found) == first:
            return set(found[1:])
        # In one go: processes that end take the processor from us.
        for child in found[first:]:
            with suppress(OSError):  # ended meanwhile, or runs as another user
                os.kill(child, signal.SIGKILL)


def sweep(spared: Collection[int] = (), *, limit_s: float = 0.0) -> set[int]:
    """SIGKILL and reap our descendants but ``spared`` children; return the pids.

    Repeats until none is left or the time is up: a process in the kernel may take long to end.
    """
    gone: set[int] = set()
    limit = time.monotonic() + limit_s
    while killed := end_below(os.getpid(), spared, is_last=False):
        gone |= killed
        reap(spared)
        if time.monotonic() >= limit:
            break
        time.sleep(LOOK_S)
    return gone


def reap(spared: Collection[int] = ()) -> None:
    """Reap the children that have ended, but not ``spared`` ones."""
    for pid in children(os.getpid()):
        if pid not in spared:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def children(pid: int) -> list[int]:
    """Return the children of a process, dead ones included; none if it has ended."""
    found: list[int] = []
    threads = f"/proc/{pid}/task"
    with suppress(OSError):
        # Not with pathlib, which takes twice the time: a node waits for this.
        for thread in os.listdir(threads):  # noqa: PTH208
            with suppress(OSError), open(f"{threads}/{thread}/children", "rb", 0) as file:  # noqa: PTH123
                found += map(int, file.read().split())
    return found


def _cleans_up(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/comm", "rb", 0) as file:  # noqa: PTH123 - as above
        return file.read() == _MANAGER
    return False
