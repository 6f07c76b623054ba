"""The event kernel of the lab's simulators: a clock that goes from event to event.

Events come from a queue (``at``) and from sources, whose next time is computed anew after every
event because it depends on the state (the next completion at today's rates). Of events at one time
the one of the lowest rank is first, then the one that was asked for first, so that a simulation is
repeatable.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

Action = Callable[[], None]


class Kernel:
    """A clock with its events; the unit of time is the simulator's."""

    def __init__(self, now: float = 0.0, *, advance: Callable[[float], None] | None = None) -> None:
        """``advance`` lets time pass: it is called with the new time before the clock shows it."""
        self.now = now
        self._advance = advance
        self._queue: list[tuple[float, int, int, Action]] = []  # a heap
        self._sources: list[tuple[Callable[[], float], int, int, Action]] = []
        self._turn = itertools.count(1)

    def at(self, time: float, action: Action, *, rank: int = 0) -> None:
        """Let something happen once, not before now."""
        heapq.heappush(self._queue, (max(time, self.now), rank, next(self._turn), action))

    def source(self, next_time: Callable[[], float], action: Action, *, rank: int = 0) -> None:
        """Let something happen whenever ``next_time`` says (inf: never), asked at every event."""
        self._sources.append((next_time, rank, next(self._turn), action))

    def run(self, until: float = math.inf) -> None:
        """Let everything happen that is due before ``until``, then go there.

        Without a limit the clock stays at the last event.
        """
        queue = self._queue
        while True:
            due = (math.inf, 0, 0, _nothing)
            if queue:
                due = queue[0]
            for next_time, rank, turn, source_action in self._sources:
                due = min(due, (next_time(), rank, turn, source_action))  # turns differ
            time, _, _, action = due
            if time >= until:
                break
            if queue and due is queue[0]:
                heapq.heappop(queue)
            self._go(time)
            action()
        if until < math.inf:
            self._go(until)

    def _go(self, time: float) -> None:
        if self._advance is not None:
            self._advance(time)
        self.now = time


def _nothing() -> None:
    """Do nothing, never."""
