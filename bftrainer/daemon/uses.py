"""The timeline of a daemon: fed with its decisions, read by those who wait for something new."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from bftrainer.model.decision import DecisionInput, Plan
from bftrainer.model.study import Seen
from bftrainer.model.timeline import NodeUses, TimelineView


class UsesOfNodes:
    """One per daemon."""

    def __init__(self, zone: Callable[[], str | None]) -> None:
        self._uses, self._waiting = NodeUses(zone=zone), asyncio.Event()
        self._touched = 0
        self.incarnation = 0

    def saw(self, given: DecisionInput, plan: Plan) -> None:
        """Add what a decision saw."""
        if self._uses.saw(given, plan):
            self._wake()

    def look(self, touched: int) -> None:
        """Wake the readers if trainers' records have changed; called once a second."""
        if touched != self._touched:
            self._touched = touched
            self._uses.touch()
            self._wake()

    def timeline(self, seen: Seen | None) -> TimelineView:
        """Return all, or what is new to who has seen this daemon's."""
        is_known = seen is not None and seen.incarnation == self.incarnation
        return self._uses.timeline(self.incarnation, seen.change if seen and is_known else None)

    async def news(self, seen: Seen, limit_s: float) -> None:
        """Wait until there is something new, or the time is over."""
        if (seen.incarnation, seen.change) == (self.incarnation, self._uses.count):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._waiting.wait(), limit_s)

    def close(self) -> None:
        """Answer all readers: the daemon ends."""
        self._wake()

    def _wake(self) -> None:
        self._waiting.set()
        self._waiting = asyncio.Event()
