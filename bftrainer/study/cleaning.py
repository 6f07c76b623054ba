"""Keeps a study's disk small: what is over needs no checkpoints, but for the best trial.

Logs stay. Files are removed when no worker can write there any more.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from bftrainer.elastic import files

LOGS = "logs"


def drop_checkpoints(directory: Path) -> None:
    """Remove everything but the logs."""
    for path in _inside(directory):
        if path.name == LOGS:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def keep_newest(directory: Path) -> None:
    """Remove all checkpoints but the newest."""
    for path in files.newest_first(directory)[1:]:
        path.unlink(missing_ok=True)


def _inside(directory: Path) -> Iterable[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return ()
