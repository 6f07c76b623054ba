"""Keeps the bytes that users' verbs have written in a file, for the daemon that follows.

The file is replaced, so that the count itself takes no more room. A daemon that is killed loses
``KEPT_EVERY_S`` of it; no user can kill that of a site.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final

from bftrainer.api.volume import Volume
from bftrainer.ground.fence import write_whole
from bftrainer.ground.regular_file import read_file

LOG = logging.getLogger("bftrainer.daemon")
VOLUME_NAME: Final = "written-by-users.json"  # in the state directory
KEPT_EVERY_S: Final = 10.0
_UNREADABLE: Final = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError),
    *(OverflowError, RecursionError),
)
MOST_BYTES: Final = 64 * 1024 * 1024


class VolumeFile:
    """One per daemon."""

    def __init__(self, volume: Volume, file: Path) -> None:
        """Go on where the last daemon ended; else begin anew."""
        self._volume, self._file = volume, file
        self._kept_s, self._kept_changes = 0.0, 0
        try:
            volume.resume(json.loads(read_file(file, MOST_BYTES)))
        except FileNotFoundError:
            pass
        except _UNREADABLE as why:
            LOG.warning("what users have written within a day counts anew: %s: %s", file, why)

    def look(self, now_s: float) -> None:
        """Write the count if it has changed, now and then; called once a second."""
        if not 0.0 <= now_s - self._kept_s < KEPT_EVERY_S:
            self._kept_s = now_s
            self.keep()

    def keep(self) -> None:
        """Write the count if it has changed."""
        if self._volume.changes == self._kept_changes:
            return
        self._kept_changes = self._volume.changes
        try:
            write_whole(self._file, (json.dumps(self._volume.plain()).encode(),))
        except OSError as problem:
            LOG.warning("a next daemon will count users' bytes anew: cannot write %s", problem)
