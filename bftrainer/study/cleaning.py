"""Keeps a study's disk small: what is over needs no checkpoints, but for the best trial.

Logs stay, and what scripts and programs have written. Files are removed when no worker can write
there any more; one that cannot be removed does no harm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from bftrainer.elastic import files
from bftrainer.elastic.fence import SUFFIX


def drop_checkpoints(directory: Path) -> None:
    """Remove all checkpoints."""
    _remove(_checkpoints(directory))
    with contextlib.suppress(OSError):
        if not directory.is_symlink():
            _remove(directory.glob(f".step-*{SUFFIX}.*.tmp"))  # of a killed writer


def keep_newest(directory: Path) -> None:
    """Remove all checkpoints but the newest."""
    _remove(_checkpoints(directory)[1:])


def _checkpoints(directory: Path) -> list[Path]:
    """Return those of a trial's own directory; where a link leads is somebody else's."""
    with contextlib.suppress(OSError):
        if not directory.is_symlink():
            return [path for path in files.newest_first(directory) if files.step_of(path) >= 0]
    return []


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
