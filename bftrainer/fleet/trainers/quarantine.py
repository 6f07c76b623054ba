"""Nodes that cool down because workers fail there. Bookkeeping for all trainers, without I/O.

Failures and complete generations come in; the nodes that decisions must not use go out. Used by
``trainers``; each trainer's own back-off is in ``failures``.

A failure is held against a node when the trainer alone cannot be the cause: the trainer went on
without that node, or another trainer failed there, too. Without such evidence a node is suspected
after ``SUSPECT`` consecutive failures, for the shortest time; its trainer is then tried elsewhere,
and its success there is the evidence. A trainer that has never trained is tried elsewhere after
its first failure. A generation complete on a node clears it; so does net progress where its
trainer failed before (``failures``). Losses (a node taken, an agent dead) do not get here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bftrainer.model.decision import Cooling

HELD = 2  # consecutive failures held against a node before it cools down
SUSPECT = 3  # consecutive failures of one trainer without evidence elsewhere
ELSEWHERE_S = 10.0  # longest, for the second try of a trainer that has never trained
MAX_COOL_DOWN_S = 1800.0
FADES_S = 4.0 * MAX_COOL_DOWN_S  # after the last failure; then all is forgotten


@dataclass(slots=True, kw_only=True)
class _Row:
    """Failures on one node without success between them."""

    trainers: list[str] = field(default_factory=list)  # in order
    n_held: int = 0  # number held against the node
    at_s: float = 0.0
    cause: str = ""
    cooling: Cooling | None = None


class Quarantine:
    """Failures of workers by node."""

    def __init__(self, first_s: float) -> None:
        """Let a node cool down for ``first_s``, then twice as long each time; 0: never."""
        self.first_s = first_s
        self._rows: dict[str, _Row] = {}
        self._cooling: set[str] = set()  # at the last look

    def failed(
        self, node: str, trainer_id: str, cause: str, now_s: float, *, has_trained: bool = True
    ) -> None:
        """Record that a worker of this trainer failed."""
        row = self._rows.setdefault(node, _Row())
        if now_s - row.at_s > FADES_S:
            row = self._rows[node] = _Row()
        is_others = any(other_id != trainer_id for other_id in row.trainers)
        row.trainers.append(trainer_id)
        row.at_s, row.cause = now_s, cause
        if is_others:
            self._hold(row, now_s)
        elif not row.n_held and len(row.trainers) >= SUSPECT:
            self._cool(row, self.first_s, now_s)
        elif not row.n_held and not has_trained:
            self._cool(row, min(self.first_s, ELSEWHERE_S), now_s)

    def trains(self, trainer_id: str, nodes: Collection[str], now_s: float) -> None:
        """Record that a generation of this trainer is complete on these nodes: they are good.

        Nodes where it failed before and that it no longer uses were to blame.
        """
        for node in nodes:
            self._rows.pop(node, None)
        for row in self._rows.values():
            unexplained = len(row.trainers) - row.n_held
            if unexplained and row.trainers[-1] == trainer_id:
                self._hold(row, now_s)

    def ended(self, trainer_id: str) -> None:
        """A trainer is final; drop failures that it alone had on a node."""
        self._rows = {
            n: r for n, r in self._rows.items() if r.n_held or set(r.trainers) != {trainer_id}
        }

    def cooling(self, now_s: float) -> Mapping[str, Cooling]:
        """Return the nodes that decisions must not use now."""
        longest_s = max(self.first_s, MAX_COOL_DOWN_S)  # more: the clock was set back
        return {
            node: row.cooling
            for node, row in sorted(self._rows.items())
            if row.cooling is not None and 0.0 < row.cooling.until_s - now_s <= longest_s
        }

    def has_changed(self, now_s: float) -> bool:
        """Return whether the set of cooling nodes has changed since the last call."""
        before, self._cooling = self._cooling, set(self.cooling(now_s))
        return before != self._cooling

    def _hold(self, row: _Row, now_s: float) -> None:
        row.n_held = len(row.trainers)
        if row.n_held >= HELD:
            doublings = min(16, row.n_held - HELD)
            self._cool(row, min(MAX_COOL_DOWN_S, self.first_s * 2.0**doublings), now_s)

    def _cool(self, row: _Row, seconds: float, now_s: float) -> None:
        if self.first_s <= 0.0:
            return
        row.cooling = Cooling(
            until_s=now_s + seconds,
            failures=len(row.trainers),
            trainer_id=row.trainers[-1],
            cause=row.cause,
        )
