"""Checks that only the owner and root can write where the hook's file is.

Called before the scripts are written (``main``) and before lines are read (``watch``). With write
access there, others could replace the file by a pipe, a link or a file of their own, and slurmctld
would block, or write as SlurmUser into a file of their choice.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

OLD = ".old"  # suffix of a full file when a new one replaces it
FIRST_LINE = "bftrainer-hook 1"  # marks the file as ours
MAX_BYTES = 1 << 20  # then the writers begin a new file
_TOP = Path("/")


def why_unsafe(status: os.stat_result, owner_uid: int) -> str:
    """Say why others can write to it; "" if they cannot."""
    if status.st_uid not in (0, owner_uid):
        return f"belongs to {name_of(status.st_uid)}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


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


def name_of(uid: int) -> str:
    """Return the name of a user id."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
