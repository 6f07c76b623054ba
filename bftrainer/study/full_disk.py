"""Keeps a full disk from being counted as failures of trials.

Workers that cannot write fail, one after the other. The study stops at the first of them, before
its end is written; run again, it tries them again, and ``known`` does not count that, up to
``MAX_EXCUSED`` times. Further ones may be the trial's own: it needs more room than there is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from bftrainer.model.errors import BftError
from bftrainer.study.directory import unwritable
from bftrainer.study.trial_table import MAX_EXCUSED, KnownTrial

ROOM_BYTES = 64 * 1024  # less is too little for a checkpoint


class FullDisk:
    """Looks at failures of trials, and at the disk of their study."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._excused: frozenset[str] | None = None  # trainers that had failed before

    def check(self, known: Iterable[KnownTrial]) -> None:
        """Refuse to go on if a trial has just failed as a disk is full (BFT-1636)."""
        failed = {one.view.trainer_id: one for one in known if one.view and one.is_unjudged_failure}
        full = {name: one for name, one in failed.items() if one.is_excused}
        if failed:
            self._check_room()
        if self._excused is None:
            self._excused = frozenset(full)
        for name, one in full.items():
            if name not in self._excused:
                raise BftError(
                    "BFT-1636",
                    f"A disk is full, so trial {one.number} failed: {one.view_reason}",
                    "Make room where it writes, /dev/shm perhaps, then run the study again: it"
                    f" goes on. The first {MAX_EXCUSED} such failures of a trial do not count.",
                )

    def _check_room(self) -> None:
        try:
            with tempfile.TemporaryFile(dir=self._path) as file:
                file.write(bytes(ROOM_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise unwritable(self._path, problem) from problem
