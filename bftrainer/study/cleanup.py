"""Keeps a study's disk small: what is over needs no checkpoints, but for the best trial.

Logs stay, and what scripts and programs have written. Files are removed when no worker can write
there any more; one that cannot be removed does no harm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from bftrainer.elastic import files
from bftrainer.elastic.fence import SUFFIX
from bftrainer.study.directory import StudyDirectory
from bftrainer.study.outcome import best_of
from bftrainer.study.trial_table import KnownTrial
from bftrainer.study.trials import Stage


class Cleaner:
    """Removes what nobody needs of a study's checkpoints, each once."""

    def __init__(self, study: StudyDirectory) -> None:
        self._study = study
        self._is_file_wise = study.base.runtime != "command"
        self._dropped: set[int] = set()  # trials
        self._thinned: dict[int, int] = {}  # trial -> at which budget

    def clean(self, known: Sequence[KnownTrial]) -> None:
        """Drop those of trials that are over, but the best one's; of waiting ones keep one.

        The best of those that are over: a better one may still fail.
        """
        best = best_of([one for one in known if one.stage.is_over], self._study.document.sign)
        for one in known:
            if one.number in self._dropped or (best is not None and one.number == best.number):
                continue
            if one.stage.is_over and not writes(one):
                drop_checkpoints(self._study.of_trial(one.number))
                self._dropped.add(one.number)
            elif one.stage is Stage.WAITING and self._is_file_wise:
                if self._thinned.get(one.number) != one.budget:
                    keep_newest(self._study.of_trial(one.number))
                self._thinned[one.number] = one.budget


def writes(one: KnownTrial) -> bool:
    """Whether a worker of a trial may still write: it lives, or members have yet to end."""
    return one.is_alive or (one.view is not None and one.view.nodes > 0)


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
