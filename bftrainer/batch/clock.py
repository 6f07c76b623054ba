"""The clock of a daemon and its adapters: seconds since the epoch that no set clock makes jump.

Leases, ages, delays and deadlines are differences of its times. It counts on by the boot clock
(``CLOCK_BOOTTIME``, which also runs while the machine sleeps), so somebody who sets the wall clock
changes none of them. It follows the wall clock by ``FOLLOWS`` seconds a second at most, and not at
all while they differ by more than ``FAR_S``: such a clock is wrong, or was.

The daemon keeps it in its state directory. The next daemon on the same boot counts on, so that
times in the journal remain comparable; after a reboot wall time is all there is. ``wall_ahead_s``
converts to wall time where calendars, or programs with the host's clock, compare times.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bftrainer.batch.awake import boot_s
from bftrainer.ground.fence import write_whole
from bftrainer.ground.regular_file import read_file

LOG = logging.getLogger("bftrainer.daemon")
CLOCK_NAME: Final = "clock"  # in the state directory
FOLLOWS: Final = 0.05  # of the time that passes: durations are as exact
FAR_S: Final = 86_400.0
NEAR_S: Final = 1.0  # a smaller lead of the wall clock is none
MAX_BYTES: Final = 512
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return what distinguishes this boot of the host from all others; "": it is not told."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class SteadyClock:
    """Counts from the wall time at which it was made, or from where a file says. Thread-safe."""

    def __init__(
        self,
        wall: Callable[[], float] = lambda: time.time(),  # noqa: PLW0108 - tests set it
        boot: Callable[[], float] = boot_s,
        boot_name: str | None = None,
    ) -> None:
        """Count by other clocks than this host's in tests."""
        self._wall, self._boot = wall, boot
        self._boot_name = boot_id() if boot_name is None else boot_name
        self._lock = threading.Lock()
        self._file: Path | None = None
        self._kept_s = math.nan  # the distance to the boot clock that the file has
        self._is_far = False  # and it was told
        self._counted_s = boot()
        self._ahead_s = wall() - self._counted_s  # of the boot clock

    def __call__(self) -> float:
        """Return the present time."""
        return self._read()[0]

    def wall_ahead_s(self) -> float:
        """Return how far the wall clock is ahead; 0 if that is next to nothing."""
        now_s, wall_s = self._read()
        return wall_s - now_s if abs(wall_s - now_s) > NEAR_S else 0.0

    def calendar_ahead_s(self) -> float:
        """Return the same where dates and times of day count; 0 if the wall clock is far off."""
        ahead_s = self.wall_ahead_s()
        return ahead_s if abs(ahead_s) <= FAR_S else 0.0

    def _read(self) -> tuple[float, float]:
        with self._lock:
            boot_s, wall_s = self._boot(), self._wall()
            most_s = FOLLOWS * max(0.0, boot_s - self._counted_s)
            off_s = wall_s - boot_s - self._ahead_s
            if abs(off_s) <= FAR_S:
                self._ahead_s += min(max(off_s, -most_s), most_s)
            self._counted_s = boot_s
            return boot_s + self._ahead_s, wall_s

    def keep_in(self, file: Path) -> None:
        """Count on from what an earlier daemon kept there on this boot, and keep it from now on."""
        self._file = file
        ahead_s = self._kept(file)
        if ahead_s is not None:
            with self._lock:
                self._ahead_s = ahead_s
        self.look()

    def look(self) -> None:
        """Keep the count on disk; log once if the wall clock has become far off. Once a second."""
        self._read()
        if self._file is not None and not abs(self._ahead_s - self._kept_s) <= NEAR_S:
            self._kept_s = self._ahead_s
            count = {"boot_id": self._boot_name, "ahead_s": self._ahead_s}
            try:
                write_whole(self._file, (json.dumps(count).encode(),))
            except OSError as problem:
                LOG.warning("the next daemon will go by wall time: cannot write %s", problem)
        why = self.sentence()
        if why and not self._is_far:
            LOG.warning("%s", why)
        elif self._is_far and not why:
            LOG.info("the wall clock of this host is right again")
        self._is_far = bool(why)

    def sentence(self) -> str:
        """Say that the wall clock is far off, with BFT-1317; "": it is not."""
        ahead_s = self.wall_ahead_s()
        if abs(ahead_s) <= FAR_S:
            return ""
        way = "ahead of" if ahead_s > 0 else "behind"
        return (
            f"BFT-1317: The clock of this host was set: it is {abs(ahead_s) / 86_400.0:.1f} days"
            f" {way} the daemon's, which counts on as before, so nothing is early or late."
        )

    def _kept(self, file: Path) -> float | None:
        """Return what the file has of this boot; None: nothing, or nothing that a daemon wrote."""
        try:
            count = json.loads(read_file(file, MAX_BYTES))
            ahead_s, name = float(count["ahead_s"]), str(count["boot_id"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError) as why:
            LOG.warning("%s holds no count of an earlier daemon: by wall time now (%s)", file, why)
            return None
        if not name or name != self._boot_name or not math.isfinite(ahead_s):
            return None
        return ahead_s


STEADY: Final = SteadyClock()  # of this process


def now_s() -> float:
    """Return the present time of this process's clock."""
    return STEADY()


def calendar_s() -> float:
    """Return the present wall time, for comparison with times of other hosts' wall clocks."""
    return STEADY() + STEADY.calendar_ahead_s()
