"""Who may write where the hook's file is: its owner and root, nobody else.

Called before the scripts are written (``main``) and before a line is believed (``watch``).
Where strangers can write they can put a pipe, a link or a file of their own in its place, and
slurmctld would wait, or write as SlurmUser into what they chose.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

OLD = ".old"  # what the full file is called once another has taken its place
FIRST_LINE = "bftrainer-hook 1"  # nobody takes another file for ours
MAX_BYTES = 1 << 20  # then the writers begin another
_TOP = Path("/")


def why_unsafe(status: os.stat_result, owner_uid: int) -> str:
    """Say why somebody else may write it; "" if nobody may."""
    if status.st_uid not in (0, owner_uid):
        return f"belongs to {name_of(status.st_uid)}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def why_unsafe_place(directory: Path, owner_uid: int) -> str:
    """Say why somebody else may make a directory, or anything in it, in its place.

    One that is not there yet is judged by those above it. Sticky ones such as /tmp are for
    everybody: what is in them may be gone one day, and a stranger's the next.
    """
    if directory != directory.resolve():
        return f"{directory} is not its true name, which is {directory.resolve()}"
    for one in (directory, *directory.parents):
        if one.is_relative_to(_TOP) and one.exists():
            why = why_unsafe(one.stat(), owner_uid)
            if why or not one.is_dir():
                return f"{one} {why or 'is no directory'}"
    return ""


def name_of(uid: int) -> str:
    """Return whose number it is."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
