"""What the daemon makes of times in which it did not run (``batch.awake``).

It says so once (BFT-1318: log, ``status``, metrics), and decides nothing until a poll shows the
cluster as it is now: the last snapshot, and what was decided on it, are as old as the sleep.
Owned by ``bftrainer.daemon.lookout``; ``incarnation`` and ``views`` read it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from bftrainer.batch.awake import AwakeClock, boot_s
from bftrainer.model.decision import Slept

LOG = logging.getLogger("bftrainer.daemon")
SHOWN_S: Final = 3600.0  # in ``status``
MOST_DAZED_S: Final = 10.0  # without a poll, if the batch system does not answer


class Awakenings:
    """Those of one daemon; used in its event loop."""

    def __init__(
        self, awake: AwakeClock, clock: Callable[[], float], boot: Callable[[], float] = boot_s
    ) -> None:
        self._awake, self._clock, self._boot = awake, clock, boot
        self._noticed = self._seen = self._before = awake.sleeps
        self._slept_before_s = awake.slept_s

    @property
    def count(self) -> int:
        """Number of sleeps since the daemon started."""
        return self._awake.sleeps - self._before

    @property
    def slept_s(self) -> float:
        """Their sum in seconds."""
        return self._awake.slept_s - self._slept_before_s

    def look(self, promise_s: float | None = None) -> bool:
        """Note that the loop runs; return whether it slept since the last call, and log that."""
        self._awake.beat(promise_s)
        if self._noticed == self._awake.sleeps:
            return False
        self._noticed = self._awake.sleeps
        LOG.warning("%s", self.sentence())
        return True

    def number(self) -> int:
        """Return what is another number after a sleep."""
        self._awake.beat()
        return self._awake.sleeps

    def saw(self, number: int) -> None:
        """Note that a poll has ended which began at this ``number``."""
        self._seen = max(self._seen, number)

    @property
    def is_dazed(self) -> bool:
        """Return whether nothing is to be decided, because no poll has begun and ended since."""
        is_unseen = self.number() != self._seen
        return is_unseen and self._awake.woke_within(MOST_DAZED_S)

    @property
    def slept(self) -> Slept:
        """The last sleep, by the daemon's clock."""
        if not self.count or self._awake.last is None:
            return Slept()
        ahead_s, last = self._clock() - self._boot(), self._awake.last
        return Slept(from_s=last.from_s + ahead_s, until_s=last.until_s + ahead_s)

    def sentence(self) -> str:
        """Say how long the daemon slept last; "": not of late."""
        slept = self.slept
        if not slept.until_s or self._clock() - slept.until_s > SHOWN_S:
            return ""
        at = time.strftime("%H:%M:%S", time.localtime(slept.until_s))
        for_s = slept.until_s - slept.from_s
        times = ""
        if self.count > 1:
            times = f" That was {self.count} times since its start."
        return (
            f"BFT-1318: The daemon did not run for {for_s:.0f} s, until {at}."
            f" Trainers went on, and nobody is taken for late because of it.{times}"
        )
