"""Who makes no progress although it is alive: pure bookkeeping of one trainer.

A process that answers may still hang in its own code or in a collective. Signs of progress
and commits sent come in; whether the generation stands still, and which workers did not
act upon a commit, goes out. Used by ``actuate.generation``. Processes that do not even
answer are their agent's business (``worker_lease_s``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bftrainer.elastic import protocol


@dataclass(slots=True)
class Stall:
    """The no-progress lease; ``lease_s`` 0: there is none."""

    lease_s: float = 0.0
    _since_s: float | None = None  # of the last sign; None: the clock starts with the next look
    _told_s: dict[str, float] = field(default_factory=dict)  # worker -> commit not acted upon

    @property
    def cause(self) -> str:
        """What is said of a worker that is killed for it."""
        return f"It made no progress for {self.lease_s:g} s (no_progress_s)."

    def heard(self, worker_id: str, body: protocol.Message, step: int, now_s: float) -> None:
        """A worker said something; ``step``: the greatest known before."""
        if isinstance(body, protocol.Entered | protocol.Interrupted | protocol.Left):
            self.acted(worker_id)
        if isinstance(body, protocol.Progress) and body.step > step:
            self.progressed(now_s)

    def progressed(self, now_s: float) -> None:
        """A step was committed, or a generation is complete."""
        self._since_s = now_s

    def told(self, worker_ids: Iterable[str], now_s: float) -> None:
        """A commit was sent; these must act upon it whatever the others do.

        Those told to go on to a step boundary cannot: one that hangs keeps all from it.
        """
        self._since_s = now_s
        for worker_id in worker_ids:
            self._told_s.setdefault(worker_id, now_s)

    def acted(self, worker_id: str) -> None:
        """A worker's training loop said something about a generation, or it is gone."""
        self._told_s.pop(worker_id, None)

    def has_stalled(self, now_s: float) -> bool:
        """Whether a complete generation has stood still for the lease."""
        if self._since_s is None:
            self._since_s = now_s
        is_over = self.lease_s > 0 and now_s - self._since_s > self.lease_s
        if is_over:
            self._since_s = now_s  # the next generation has its own time
        return is_over

    def hung(self, now_s: float) -> list[str]:
        """Return the workers that did not act upon a commit within the lease."""
        if self.lease_s <= 0:
            return []
        return sorted(w for w, s in self._told_s.items() if now_s - s > self.lease_s)
