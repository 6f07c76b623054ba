"""Checks that only the owner and root can write where the hook's file is.

Called before the scripts are written (``main``) and before lines are read (``watch``). With write
access there, other users could replace the file by a pipe, a link or a file of their own, and
slurmctld would block, or write as SlurmUser into a file of their choice.
"""

from __future__ import annotations

from pathlib import Path

from bftrainer.batch.tail import name_of, why_unsafe

__all__ = ["FIRST_LINE", "MAX_BYTES", "OLD", "name_of", "why_unsafe", "why_unsafe_place"]

OLD = ".old"  # suffix of a full file when a new one replaces it
FIRST_LINE = "bftrainer-hook 1"  # marks the file as ours
MAX_BYTES = 1 << 20  # then the writers begin a new file
_TOP = Path("/")


def why_unsafe_place(directory: Path, owner_uid: int) -> str:
    """Say why others can write to a directory or replace it; "" if they cannot.

    A missing directory is judged by its parents. Sticky directories such as /tmp are refused:
    their contents may vanish and be created anew by others.
    """
    if directory != directory.resolve():
        return f"{directory} is not its real path, which is {directory.resolve()}"
    for one in (directory, *directory.parents):
        if one.is_relative_to(_TOP) and one.exists():
            why = why_unsafe(one.stat(), owner_uid)
            if why or not one.is_dir():
                return f"{one} {why or 'is not a directory'}"
    return ""
