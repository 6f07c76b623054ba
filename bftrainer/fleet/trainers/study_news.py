"""Counts the changes of each study, so that those who watch one learn of them.

Studies of several users may have one name. Owned by ``trainers``.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

from bftrainer.model.trainer import TrainerSpec


class StudyKey(NamedTuple):
    """A study of a user."""

    user: str
    study: str


class StudyNews:
    """Counts the changes of each study since the daemon started."""

    def __init__(self) -> None:
        self._changes: dict[StudyKey, int] = {}
        self._last: dict[StudyKey, dict[int, int]] = {}  # of each trial, its last change
        self._waiting: dict[StudyKey, set[asyncio.Event]] = {}

    def changed(self, spec: TrainerSpec) -> None:
        """Something has changed in this trainer."""
        if spec.trial is None:
            return
        key = StudyKey(spec.user, spec.trial.study)
        self._changes[key] = count = self.count(*key) + 1
        self._last.setdefault(key, {})[spec.trial.number] = count
        for event in self._waiting.pop(key, ()):
            event.set()

    def close(self) -> None:
        """Answer all who wait: the daemon ends."""
        for events in self._waiting.values():
            for event in events:
                event.set()

    def count(self, user: str, study: str) -> int:
        """Return how often something has changed."""
        return self._changes.get(StudyKey(user, study), 0)

    def since(self, user: str, study: str, seen: int) -> frozenset[int]:
        """Return the trials that have changed after the count was ``seen``."""
        last = self._last.get(StudyKey(user, study), {})
        return frozenset(number for number, count in last.items() if count > seen)

    async def wait(self, user: str, study: str, seen: int, limit_s: float) -> None:
        """Wait until the count is another than ``seen``, or the time is over."""
        if self.count(user, study) != seen:
            return
        key, event = StudyKey(user, study), asyncio.Event()
        self._waiting.setdefault(key, set()).add(event)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), limit_s)
        finally:  # nothing stays of those who ask for studies that there are not
            events = self._waiting.get(key, set())
            events.discard(event)
            if not events:
                self._waiting.pop(key, None)
