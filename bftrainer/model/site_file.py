"""A file that an administrator installs, filled in for the site (``bftrainer site init``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFile:
    """One file, and what the administrator does with it."""

    name: str  # without a directory
    text: str
    about: str  # one line: where it belongs
    is_executable: bool = False
    path: str = ""  # where it is installed as it is; "": it is merged into another file, or read
    without: str = ""  # what happens where it is missing; "": that shows otherwise
