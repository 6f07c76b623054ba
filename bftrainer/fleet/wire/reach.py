"""Tells an agent that is cut off from the daemon that is cut off from its agents. Pure.

Agents fail one by one; most of them at once fall silent only if the path to the daemon is broken,
or if their nodes lost power, which the batch system notices, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

QUIET = 0.6  # of the timeout: agents that one cut silenced differ by a heartbeat


@dataclass(slots=True, kw_only=True)
class Reach:
    """Agents that the daemon cannot reach although nothing says that they are lost."""

    timeout_s: float
    away: set[str] = field(default_factory=set)  # pilots
    since_s: float | None = None  # when the first of them was not heard any more
    _back_s: float | None = None  # since when most are heard again

    def is_cut_off(self, ages_s: Iterable[float]) -> bool:
        """Whether two or more agents, and more than half of all, are silent.

        Args:
            ages_s: how long ago each connected agent was heard.
        """
        ages = list(ages_s)
        gone = len(self.away) + sum(age_s > QUIET * self.timeout_s for age_s in ages)
        return gone >= 2 and 2 * gone > len(self.away) + len(ages)

    def left(self, pilot_id: str, heard_s: float) -> None:
        """An agent was last heard then; it is away from now on."""
        self.away.add(pilot_id)
        self.since_s = heard_s if self.since_s is None else min(self.since_s, heard_s)

    def drop(self, pilot_ids: Collection[str]) -> None:
        """These are back, or lost."""
        self.away.difference_update(pilot_ids)
        if not self.away:
            self.since_s = self._back_s = None

    def lost(self, ages_s: Iterable[float], now_s: float) -> list[str]:
        """Return those that did not come back although most others did ``timeout_s`` ago."""
        if not self.away or self.is_cut_off(ages_s):
            self._back_s = None
            return []
        if self._back_s is None:
            self._back_s = now_s
        return sorted(self.away) if now_s - self._back_s > self.timeout_s else []
