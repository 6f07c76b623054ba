"""The time in which a process was awake, by which it judges others.

A host that is moved, that swaps or whose file systems hang, SIGSTOP, and a loop that is blocked let
a process sleep. What others have said meanwhile waits to be read, and what they were to hear was
not said. Whoever compares a clock with a deadline then, and concludes that somebody else is late,
silent or gone, counts the time in which nobody listened. So such deadlines are times of an
``AwakeClock``, which stands still meanwhile, and for a moment after, in which the waiting messages
are read.

The loop that judges promises with each ``beat`` when the next one comes. If that comes much later,
the loop slept. Deadlines that a calendar, a budget or a promise to people sets go by other clocks.

``AWAKE`` is that of the daemon's loop, as ``clock.STEADY`` is its clock.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SLEEP_S: Final = 2.0  # a loop that comes later than this slept; before, it was only slow
SHARE_OF_TIMEOUT: Final = 0.5  # of the shortest time that is judged, if that is less
DAZE_SHARE: Final = 0.125  # of it: so long the clock stands still after a sleep
LOOK_S: Final = 1.0  # between two looks of somebody who waits


def boot_s() -> float:
    """Return the seconds since the host was booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """A time in which nobody listened, in seconds of the boot clock."""

    from_s: float
    until_s: float

    @property
    def duration_s(self) -> float:
        """Its length in seconds."""
        return self.until_s - self.from_s


class AwakeClock:
    """Counts on from the boot clock while somebody beats in time. Thread-safe."""

    def __init__(
        self, boot: Callable[[], float] = boot_s, *, shortest_s: float = SLEEP_S / SHARE_OF_TIMEOUT
    ) -> None:
        """Count by another clock than the host's boot clock in tests.

        ``shortest_s``: the shortest time that is judged by this clock, in seconds.
        """
        self._boot, self._lock = boot, threading.Lock()
        self.judges(shortest_s)
        self._due_s = math.inf  # when the next beat is promised; inf: none is
        self._promise_s = math.inf
        # Last known to be awake; from when on it counts, and from what.
        self._seen_s = self._from_s = self._counted_s = boot()
        self._is_asleep = False
        self._woke_s = -math.inf  # by this clock
        self.sleeps, self.slept_s = 0, 0.0  # their number and sum
        self.last: Sleep | None = None

    def judges(self, shortest_s: float) -> None:
        """Take for a sleep what would matter for a time as short as this."""
        self.sleep_s = min(SLEEP_S, SHARE_OF_TIMEOUT * shortest_s)

    def __call__(self) -> float:
        """Return the time in seconds; during a sleep, until its end is known, that before it.

        Any thread may ask; only a beat ends a sleep.
        """
        with self._lock:
            return self._read(self._boot())

    def beat(self, promise_s: float | None = None) -> float:
        """Say that the loop runs, and does so again within ``promise_s``; None: as said before.

        Returns:
            The length of the sleep that this ends, in seconds; 0: there was none.
        """
        with self._lock:
            now_s = self._boot()
            value_s, slept_s = self._read(now_s), 0.0
            if self._is_asleep:
                self.last = Sleep(from_s=self._seen_s, until_s=now_s)
                slept_s = self.last.duration_s
                self.sleeps, self.slept_s = self.sleeps + 1, self.slept_s + slept_s
                self._woke_s, self._counted_s = value_s, value_s
                self._from_s = now_s + DAZE_SHARE * self.sleep_s
                self._is_asleep, self._seen_s = False, now_s
            if promise_s is not None:
                self._promise_s = promise_s
            self._due_s = now_s + self._promise_s
            return slept_s

    def rest(self) -> None:
        """Say that no further beat comes, which is no sleep."""
        with self._lock:
            self._due_s = self._promise_s = math.inf

    def woke_within(self, seconds: float) -> bool:
        """Return whether a sleep ended so lately, by this clock."""
        with self._lock:
            return self._read(self._boot()) - self._woke_s <= seconds

    def waited_s(self, seconds: float) -> float:
        """Return how long a message may have waited to be read, if a sleep ended so lately."""
        if self.last is None or not self.woke_within(seconds):
            return 0.0
        return self.last.duration_s

    def _read(self, now_s: float) -> float:
        self._is_asleep = self._is_asleep or now_s - self._due_s > self.sleep_s
        if not self._is_asleep:
            self._seen_s = max(self._seen_s, now_s)
        return self._counted_s + max(0.0, self._seen_s - self._from_s)


class Patience:
    """A time limit of one thread that waits for somebody, and that may sleep meanwhile."""

    def __init__(self, limit_s: float, boot: Callable[[], float] = boot_s) -> None:
        """Begin to wait ``limit_s`` seconds."""
        self._clock = AwakeClock(boot, shortest_s=limit_s)
        self._ends_s = self._clock() + limit_s

    def rest_s(self) -> float:
        """Return how long to wait until the next look, in seconds; 0: the time is up."""
        self._clock.beat(LOOK_S)
        return min(LOOK_S, max(0.0, self._ends_s - self._clock()))

    def until_readable(self, fd: int) -> bool:
        """Wait until something can be read there; return whether it can."""
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while (rest_s := self.rest_s()) > 0.0:
            if poller.poll(1000.0 * rest_s):
                return True
        return False


AWAKE: Final = AwakeClock()  # of the daemon's loop
