"""Counts refused and dropped messages by kind, and logs some of them.

Used wherever messages are received: the daemon's server (and the parts that judge agents'
reports), agents' peer sockets and copy holders, and their sockets to workers. ``/metrics`` shows
the daemon's ``counts``.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from bftrainer.elastic.fields import in_one_line

LOG_EVERY_S = 10.0  # a flood must not fill the disk


class RefusedMessages:
    """Counters; logs at most one line per kind in ``LOG_EVERY_S``. Thread-safe."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._log = log
        self._clock = clock
        self._logged_s: dict[str, float] = {}

    def refuse(
        self,
        kind: str,
        whom: str,
        why: object,
        *,
        code: str = "BFT-1301",
        level: int = logging.WARNING,
        has_traceback: bool = False,
    ) -> None:
        """Count a refused message.

        Args:
            kind: label of the metric.
            whom: the sender.
            why: may quote the message.
            code: of the log line.
            level: of the log line.
            has_traceback: log the exception being handled.
        """
        self.counts[kind] += 1
        now_s = self._clock()
        if now_s - self._logged_s.get(kind, now_s - LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged_s[kind] = now_s
            self._log.log(
                level, "%s: message from %s dropped (%s, %d so far): %s",
                code, whom, kind, self.counts[kind], in_one_line(str(why)),
                exc_info=has_traceback,
            )  # fmt: skip
