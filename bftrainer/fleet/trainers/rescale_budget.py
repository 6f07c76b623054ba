"""Limits how often a trainer's nodes change.

Complete generations come in; the trainers that have used up the policy's ``rescale_budget``, and
until when, go out to decisions. Losses, give-backs and shrinks do not count: they are not chosen
for the trainer, and a plan that moves nodes back and forth shows in the nodes that join. Used by
``trainers``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

from bftrainer.fleet.generations.members import Rescaled
from bftrainer.fleet.generations.state import PLANNED

SPAN_S = 3600.0


class RescaleBudget:
    """Planned rescales that gave a trainer new nodes, within the last hour."""

    def __init__(self, limit: int | None) -> None:
        """Allow ``limit`` per trainer and hour; None: unlimited."""
        self.limit = limit
        self._at_s: dict[str, deque[float]] = {}
        self._nodes: dict[str, frozenset[str]] = {}

    def on_rescaled(self, trainer_id: str, done: Rescaled, now_s: float) -> None:
        """A generation is complete."""
        before, after = self._nodes.get(trainer_id, frozenset()), frozenset(done.nodes)
        self._nodes[trainer_id] = after
        has_joined = done.size > done.size_before or bool(before and after - before)
        if self.limit and done.size_before and done.reason == PLANNED and has_joined:
            times_s = deque(self._at_s.get(trainer_id, ()), self.limit)
            times_s.append(now_s)
            self._at_s[trainer_id] = times_s

    def forget(self, trainer_id: str) -> None:
        """Drop a trainer that is final."""
        self._at_s.pop(trainer_id, None)
        self._nodes.pop(trainer_id, None)

    def used_up(self, now_s: float) -> Mapping[str, float]:
        """Return the trainers without rescales left, and when each has one again."""
        until_s: dict[str, float] = {}
        if not self.limit:
            return until_s
        for trainer_id, at_s in sorted(self._at_s.items()):
            times_s = list(at_s)[-self.limit :]
            ends_s = times_s[0] + SPAN_S
            # A time in the future: the clock was set back.
            if len(times_s) == self.limit and times_s[-1] <= now_s < ends_s:
                until_s[trainer_id] = ends_s
        return until_s

    def in_words(self, trainer_id: str, now_s: float) -> tuple[str, ...]:
        """Say that a trainer keeps its nodes for now, if it does."""
        until_s = self.used_up(now_s).get(trainer_id)
        if until_s is None:
            return ()
        at = time.strftime("%H:%M", time.localtime(until_s))
        return (
            (
                f"It was given other nodes {self.limit} times within an hour (rescale_budget):"
                f" until {at} it keeps those it has and gets no others."
            ),
        )
