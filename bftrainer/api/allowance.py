"""How much one user may submit: unfinished trainers at once, submissions in a minute.

Each trainer costs every decision a little and the journal an entry, whoever's it is; without a
limit one user's loop would be everybody's delay. Nobody is exempt: today all trainers belong to
the daemon's own user, and a loop of root's writes as much.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable

from bftrainer.errors import ExitCode, UsageError
from bftrainer.model.trainer import TrainerRecord

_MINUTE_S = 60.0


class Allowance:
    """What users have submitted lately."""

    def __init__(
        self, most_trainers: int, most_per_minute: int, clock: Callable[[], float]
    ) -> None:
        self._most_trainers = most_trainers
        self._most_per_minute = most_per_minute
        self._clock = clock
        self._taken_s: defaultdict[str, deque[float]] = defaultdict(deque)

    def check(self, user: str, unfinished: Iterable[TrainerRecord]) -> None:
        """Refuse one more submission of a user who has reached a limit.

        Raises:
            UsageError: BFT-1030, too many unfinished trainers; BFT-1031, too fast.
        """
        count = sum(1 for record in unfinished if record.spec.user == user)
        if count >= self._most_trainers:
            raise UsageError(
                "BFT-1030",
                f"{user} has {count} unfinished trainers, the policy's limit "
                "(max_trainers_per_user).",
                "Wait for one to finish, or cancel one.",
                exit_code=ExitCode.REFUSED_BY_POLICY,
            )
        taken_s, now_s = self._taken_s[user], self._clock()
        while taken_s and taken_s[0] <= now_s - _MINUTE_S:
            taken_s.popleft()
        if len(taken_s) >= self._most_per_minute:
            raise UsageError(
                "BFT-1031",
                f"{user} has submitted {len(taken_s)} trainers within a minute, the policy's "
                "limit (submissions_per_minute_per_user).",
                f"Try again in {max(1.0, taken_s[0] + _MINUTE_S - now_s):.0f} s.",
                exit_code=ExitCode.REFUSED_BY_POLICY,
            )

    def took(self, user: str) -> None:
        """Count a submission that was taken."""
        self._taken_s[user].append(self._clock())
