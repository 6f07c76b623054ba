"""Limits per user: unfinished trainers at once, and submissions per minute.

Each trainer makes every decision a little slower and adds to the journal; without a limit one
user's loop would delay everyone. No user is exempt: today all trainers belong to the daemon's own
user, and a loop run by root costs as much.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable

from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.trainer import TrainerRecord

_MINUTE_S = 60.0
WAITING_TIMES = 10  # with those at their rungs, so many times the limit
GROUP = 50  # trials in one request that cost about as much as a submission


class Allowance:
    """Recent submissions by user."""

    def __init__(self, limits: Callable[[], tuple[int, int]], clock: Callable[[], float]) -> None:
        """Limit trainers at once and per minute; the limits may change."""
        self._limits = limits
        self._clock = clock
        self._taken_s: defaultdict[str, deque[float]] = defaultdict(deque)

    def check(self, user: str, unfinished: Iterable[TrainerRecord], more: int = 1) -> None:
        """Refuse a submission by a user who has reached a limit."""
        self.check_count(user, unfinished, more)
        _, most_per_minute = self._limits()
        taken_s, now_s = self._taken_s[user], self._clock()
        while taken_s and taken_s[0] <= now_s - _MINUTE_S:
            taken_s.popleft()
        if len(taken_s) >= most_per_minute:
            raise UsageError(
                "BFT-1031",
                f"{user} has submitted {len(taken_s)} trainers within a minute, the policy's "
                "limit (submissions_per_minute_per_user).",
                f"Try again in {max(1.0, taken_s[0] + _MINUTE_S - now_s):.0f} s.",
                exit_code=ExitCode.REFUSED_BY_POLICY,
            )

    def check_count(self, user: str, unfinished: Iterable[TrainerRecord], more: int = 1) -> None:
        """Refuse trainers beyond the limit; of trials at their rungs there may be more.

        Those cost a decision nothing, but memory and a daemon's start.
        """
        most, _ = self._limits()
        own = [record for record in unfinished if record.spec.user == user]
        count = sum(1 for record in own if record.rung_s is None)
        if count + more > most or len(own) + more > WAITING_TIMES * most:
            raise UsageError(
                "BFT-1030",
                f"{user} has {count} unfinished trainers, the policy's limit "
                "(max_trainers_per_user).",
                "Wait for one to finish, or cancel one.",
                exit_code=ExitCode.REFUSED_BY_POLICY,
            )

    def took(self, user: str, count: int = 1) -> None:
        """Count an accepted submission, of a group one for each ``GROUP`` trials."""
        self._taken_s[user].extend([self._clock()] * math.ceil(count / GROUP))
