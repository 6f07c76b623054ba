"""Wakes those who wait for news of a study."""

from __future__ import annotations

import asyncio
import contextlib

from bftrainer.model.trainer import TrainerSpec

Key = tuple[str, str]  # user, study


class StudyNews:
    """Counts the changes of each study since the daemon started."""

    def __init__(self) -> None:
        self._changes: dict[Key, int] = {}
        self._waiting: dict[Key, asyncio.Event] = {}

    def changed(self, spec: TrainerSpec) -> None:
        """Something has changed in this trainer."""
        if spec.trial is None:
            return
        key = spec.user, spec.trial.study
        self._changes[key] = self.count(*key) + 1
        if (event := self._waiting.pop(key, None)) is not None:
            event.set()

    def count(self, user: str, study: str) -> int:
        """Return how often something has changed."""
        return self._changes.get((user, study), 0)

    async def wait(self, user: str, study: str, seen: int, limit_s: float) -> None:
        """Wait until the count is another than ``seen``, or the time is over."""
        if self.count(user, study) == seen:
            event = self._waiting.setdefault((user, study), asyncio.Event())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), limit_s)
