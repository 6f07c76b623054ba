"""Checks who can write to a file or directory that the batch system writes for us.

Called by the readers of such files (``poll.tail``, the adapters) and by the commands that create
their directories. With write access there, others could replace a file by a pipe, a link or a file
of their own.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path


class UntrustedError(Exception):
    """Others can write to a file, or replace it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path
        self.why = why


def why_unsafe(status: os.stat_result, owner_uid: int) -> str:
    """Say why others can write to it; "" if they cannot."""
    if status.st_uid not in (0, owner_uid):
        return f"belongs to {name_of(status.st_uid)}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def name_of(uid: int) -> str:
    """Return the name of a user id."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"user {uid}"
