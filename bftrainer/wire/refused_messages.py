"""What was refused, dropped or not believed: counted by kind, seldom logged.

Whoever listens to somebody else has one: the daemon's server (and through it the books
that judge what agents say), agents' peer sockets and holders, the agents' ends of workers'
sockets. ``counts`` is what ``/metrics`` shows of the daemon's.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from bftrainer.elastic.fields import in_one_line

LOG_EVERY_S = 10.0  # a flood must not fill the disk


class RefusedMessages:
    """Counts; at most one line of log per kind in ``LOG_EVERY_S``. Safe in threads."""

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
        """Count what ``whom`` sent.

        Args:
            kind: one word of ours: a label of the metric.
            whom: who sent it, as we know them; they need not be told apart by kind.
            why: may quote what was sent.
            code: of the line in the log.
            level: of that line.
            has_traceback: an error is being handled that nobody expected.
        """
        self.counts[kind] += 1
        now_s = self._clock()
        if now_s - self._logged_s.get(kind, now_s - LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged_s[kind] = now_s
            self._log.log(
                level, "%s: message of %s dropped (%s, %d so far): %s",
                code, whom, kind, self.counts[kind], in_one_line(str(why)),
                exc_info=has_traceback,
            )  # fmt: skip
