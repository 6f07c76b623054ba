"""The agents of an earlier daemon that a new one waits for, before it decides anything.

Their workers go on meanwhile; whoever has not come in time is taken for lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Adoption:
    """One per daemon."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: of the awake, in seconds."""
        self._clock = clock
        self._awaited: set[str] = set()
        self._until_s = clock()

    @property
    def awaited(self) -> set[str]:
        """The pilots whose agents have not come."""
        return self._awaited

    def begin(self, pilot_ids: Iterable[str], limit_s: float) -> None:
        """Wait for the agents of these pilots, ``limit_s`` seconds at most."""
        self._awaited.update(pilot_ids)
        self._until_s = self._clock() + limit_s

    def settled(self, pilot_id: str) -> None:
        """Wait for a pilot's agent no longer: it has come, or the pilot has ended."""
        self._awaited.discard(pilot_id)

    @property
    def is_over(self) -> bool:
        """Return whether no agent is awaited any more."""
        return not self._awaited or self._clock() >= self._until_s
