"""Looks at the batch system in a thread of its own, and hears what it announces between two polls.

When to poll is ``poller``'s; what follows from a poll is ``incarnation``'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from bftrainer.batch.announcer import Announcement, UnseenAnnouncements
from bftrainer.batch.awake import AWAKE
from bftrainer.batch.batch_system import BatchSystem
from bftrainer.daemon.awakenings import Awakenings
from bftrainer.fleet.background import ready_threads
from bftrainer.fleet.logs import SaidOnce
from bftrainer.model.cluster import Snapshot
from bftrainer.model.site import Measured

LOG = logging.getLogger("bftrainer.daemon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """A snapshot as the batch system gave it, and when it was begun."""

    snapshot: Snapshot
    began_s: float  # by the clock of the awake
    heard_until_s: float  # announcements of later are not in it
    sleeps: int  # of the daemon until then


class Lookout:
    """What one daemon sees of its batch system; used in the event loop."""

    def __init__(
        self,
        system: BatchSystem,
        awakenings: Awakenings,
        clock: Callable[[], float],
        look_into: Callable[[Snapshot], Snapshot],
    ) -> None:
        """``look_into`` is given each snapshot in the polling thread, and returns it."""
        self._system, self._clock, self._look_into = system, clock, look_into
        self.awakenings = awakenings
        self._thread = ready_threads(1, "look")
        self._announced = UnseenAnnouncements()
        self._trouble = SaidOnce()

    @property
    def thread(self) -> Executor:
        """The thread of polls, for other questions to the batch system."""
        return self._thread

    @property
    def is_unshown(self) -> bool:
        """Return whether an announced job awaits the poll that must show it."""
        return self._announced.is_unshown

    async def poll(self, *, wants_cycle: bool) -> Poll:
        """Ask the batch system; log what it does not answer.

        Args:
            wants_cycle: ask when the scheduler's last cycle was, too.
        """
        sleeps = self.awakenings.number()
        began_s, heard_until_s = AWAKE(), self._announced.look_begins()
        loop = asyncio.get_running_loop()
        snapshot = await loop.run_in_executor(
            self._thread, lambda: self._look_into(self._taken(wants_cycle=wants_cycle))
        )
        self._log_trouble(snapshot)
        return Poll(snapshot=snapshot, began_s=began_s, heard_until_s=heard_until_s, sleeps=sleeps)

    def completed(self, snapshot: Snapshot, poll: Poll, before: Snapshot | None) -> Snapshot:
        """Return a poll's snapshot with what it could not show.

        Args:
            snapshot: of the poll, with our pilots recognised.
            poll: it.
            before: the completed snapshot of the poll before; None: this is the first.
        """
        return self._announced.add_to(snapshot.with_last_known(before), poll.heard_until_s)

    def hear(
        self, announcements: tuple[Announcement, ...], snapshot: Snapshot | None
    ) -> Snapshot | None:
        """Return the snapshot with what was announced; None: it shows nothing else by that."""
        is_news = self._announced.hear(announcements)
        if not is_news or snapshot is None:
            return None
        completed = self._announced.add_to(snapshot)
        if completed is snapshot:  # the end of a pilot changes nothing
            return None
        return completed

    async def warn_of_settings(self, measured: Measured) -> None:
        """Log the batch system's settings that cost nodes or time."""
        loop = asyncio.get_running_loop()
        for finding in await loop.run_in_executor(self._thread, self._system.findings, measured):
            LOG.warning("%s %s: %s", finding.code, finding.setting, finding.cost)

    def woke(self) -> None:
        """Have what was heard across a sleep not count."""
        self._announced.slept()

    def close(self) -> None:
        """Wait for the poll that is under way."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _taken(self, *, wants_cycle: bool) -> Snapshot:
        began_s = self._clock()
        snapshot = self._system.snapshot(wants_cycle=wants_cycle)
        return snapshot.taken_between(began_s, self._clock())

    def _log_trouble(self, snapshot: Snapshot) -> None:
        if failures := self._trouble.new(snapshot.failures):
            LOG.warning("batch system: %s", "; ".join(failures))
        elif not snapshot.failures and self._trouble.is_over():
            LOG.info("batch system: it answers again")
