"""Removes a study's unneeded checkpoints, and keeps a full disk from counting as trials' failures.

Logs and the files that scripts and programs write stay. Files are removed when no worker can write
there any more; one that cannot be removed does no harm.

Workers that cannot write fail, one after the other. The study stops at the first of them, before
its end is written; run again, it tries them again, and ``trial_table`` does not count that, up to
``MAX_EXCUSED`` times. Further ones may be the trial's own: it needs more room than there is.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from bftrainer.ground import files
from bftrainer.ground.fence import SUFFIX
from bftrainer.model.errors import BftError
from bftrainer.model.study import TrialView
from bftrainer.study.directory import StudyDirectory, unwritable
from bftrainer.study.trial_table import MAX_EXCUSED, KnownTrial, best_of
from bftrainer.study.trials import TrialStage

ROOM_BYTES = 64 * 1024  # less is too little for a checkpoint


class Cleaner:
    """Removes unneeded checkpoints of a study's trials, each once."""

    def __init__(self, study: StudyDirectory) -> None:
        self._study = study
        self._is_file_wise = study.base.runtime != "command"
        self._dropped: set[int] = set()  # trials
        self._thinned: dict[int, int] = {}  # trial -> at which budget

    def clean(self, trials: Sequence[KnownTrial]) -> None:
        """Drop those of trials that are over, but the best one's; of waiting ones keep one.

        The best of those that are over: a better one may still fail.
        """
        over = [trial for trial in trials if trial.stage.is_over]
        best = best_of(over, self._study.document.sign)
        for trial in trials:
            number = trial.number
            if number in self._dropped or (best is not None and number == best.number):
                continue
            if trial.stage.is_over and not writes(trial):
                drop_checkpoints(self._study.of_trial(number))
                self._dropped.add(number)
            elif trial.stage is TrialStage.WAITING and self._is_file_wise:
                if self._thinned.get(number) != trial.budget:
                    keep_newest(self._study.of_trial(number))
                self._thinned[number] = trial.budget


def writes(trial: KnownTrial) -> bool:
    """Return whether a worker of a trial may still write: it lives, or members have yet to end."""
    return trial.is_alive or (trial.view is not None and trial.view.nodes > 0)


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
            other_parts = files.parts_beside(path)
            path.unlink()  # first: without it the others are none
            for part in other_parts:
                part.unlink()


class FullDisk:
    """Looks at failures of trials, and at the disk of their study."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._excused: frozenset[str] | None = None  # trainers that had failed before

    def check(self, trials: Iterable[KnownTrial]) -> None:
        """Refuse to go on if a trial has just failed as a disk is full (BFT-1636)."""
        has_failures = False
        full: list[tuple[KnownTrial, TrialView]] = []
        for trial in trials:
            if trial.view is None or not trial.has_failed or trial.stored.end is not None:
                continue
            has_failures = True
            if trial.is_excused:
                full.append((trial, trial.view))
        if has_failures:
            self._check_room()
        if self._excused is None:
            # They failed before the study was run again: no reason to stop it once more.
            self._excused = frozenset(view.trainer_id for _, view in full)
        for trial, view in full:
            if view.trainer_id not in self._excused:
                raise BftError(
                    "BFT-1636",
                    f"A disk is full, so trial {trial.number} failed: {view.reason}",
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
