"""Detects workers that are alive but make no progress. Bookkeeping of one trainer, without I/O.

A process that answers may still hang in its own code or in a collective. Signs of progress and
sent commits come in; whether the generation has stalled, and which workers did not act on a
commit, goes out. Used by ``actuate.worker_set``. Processes that do not even answer are handled by
their agent (``worker_lease_s``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bftrainer.elastic import protocol


@dataclass(slots=True)
class Stall:
    """The no-progress lease; ``lease_s`` 0: none."""

    lease_s: float = 0.0
    since_s: float | None = None  # of the last sign; None: the next check starts the clock
    told_s: dict[str, float] = field(default_factory=dict)  # worker -> commit not acted on

    @property
    def cause(self) -> str:
        """The reason given for killing a worker."""
        return f"It made no progress for {self.lease_s:g} s (no_progress_s)."

    def heard(self, worker_id: str, body: protocol.Message, step: int, now_s: float) -> None:
        """A worker sent a message; ``step``: the greatest known before."""
        if isinstance(body, protocol.Entered | protocol.Interrupted | protocol.Left):
            self.acted(worker_id)
        if isinstance(body, protocol.Progress) and body.step > step:
            self.progressed(now_s)

    def progressed(self, now_s: float) -> None:
        """A step was committed, or a generation is complete."""
        self.since_s = now_s

    def told(self, worker_ids: Iterable[str], now_s: float) -> None:
        """A commit was sent; these workers must act on it whatever the others do.

        Workers that go on to a step boundary cannot be listed: one that hangs stops all of them.
        """
        self.since_s = now_s
        for worker_id in worker_ids:
            self.told_s.setdefault(worker_id, now_s)

    def acted(self, worker_id: str) -> None:
        """A worker's training loop reported about a generation, or it is gone."""
        self.told_s.pop(worker_id, None)

    def has_stalled(self, now_s: float) -> bool:
        """Whether a complete generation has made no progress for the lease."""
        if self.since_s is None:
            self.since_s = now_s
        is_over = self.lease_s > 0 and now_s - self.since_s > self.lease_s
        if is_over:
            self.since_s = now_s  # the next generation has a lease of its own
        return is_over

    def hung(self, now_s: float) -> list[str]:
        """Return the workers that did not act on a commit within the lease."""
        if self.lease_s <= 0:
            return []
        return sorted(w for w, s in self.told_s.items() if now_s - s > self.lease_s)
