"""Which nodes cool down because workers fail there: pure bookkeeping for all trainers.

Failures and complete generations come in; the nodes that decisions are to leave alone go
out. Used by ``actuate.trainers``; the back-off of each trainer itself is ``failures``.

A failure is held against a node when it cannot be the trainer alone: the trainer went on
without that node, or another trainer failed there, too. Without such evidence a node is
suspected after ``SUSPECT`` failures in a row, for the shortest time: its trainer is then
tried elsewhere, and whether it does well there tells. That of a trainer that has never
trained is tried elsewhere after its first failure. A generation that is complete on a node
clears it, or net progress where its trainer had failed before (``failures``). Losses (a node
taken, an agent dead) never get here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bftrainer.model.decision import Cooling

HELD = 2  # failures in a row that are held against a node before decisions leave it alone
SUSPECT = 3  # failures in a row, of one trainer that has shown nothing elsewhere
ELSEWHERE_S = 10.0  # at most, for the second try of a trainer that has never trained
MAX_COOL_DOWN_S = 1800.0
FADES_S = 4.0 * MAX_COOL_DOWN_S  # after the last failure; then the node is as good as any


@dataclass(slots=True, kw_only=True)
class _Row:
    """Failures on one node with no success between."""

    by: list[str] = field(default_factory=list)  # trainers, in order
    held: int = 0  # of them, against the node
    at_s: float = 0.0
    cause: str = ""
    cooling: Cooling | None = None


class Quarantine:
    """Nodes and the failures of workers on them."""

    def __init__(self, first_s: float) -> None:
        """Leave a node alone for ``first_s``, then twice as long each time; 0: never."""
        self._first_s = first_s
        self._rows: dict[str, _Row] = {}
        self._told: set[str] = set()

    def failed(
        self, node: str, trainer_id: str, cause: str, now_s: float, *, has_trained: bool = True
    ) -> None:
        """A worker of this trainer ended on its own account."""
        row = self._rows.setdefault(node, _Row())
        if now_s - row.at_s > FADES_S:
            row = self._rows[node] = _Row()
        others = set(row.by) - {trainer_id}
        row.by.append(trainer_id)
        row.at_s, row.cause = now_s, cause
        if others:
            self._hold(row, now_s)
        elif not row.held and len(row.by) >= SUSPECT:
            self._cool(row, self._first_s, now_s)
        elif not row.held and not has_trained:
            self._cool(row, min(self._first_s, ELSEWHERE_S), now_s)

    def trains(self, trainer_id: str, nodes: Collection[str], now_s: float) -> None:
        """A generation of this trainer is complete on these nodes: they are good.

        Where it failed before and is no longer, the node was to blame.
        """
        for node in nodes:
            self._rows.pop(node, None)
        for row in self._rows.values():
            unexplained = len(row.by) - row.held
            if unexplained and row.by[-1] == trainer_id:
                self._hold(row, now_s)

    def ended(self, trainer_id: str) -> None:
        """A trainer is final; what only it has against a node says nothing."""
        self._rows = {n: r for n, r in self._rows.items() if r.held or set(r.by) != {trainer_id}}

    def cooling(self, now_s: float) -> Mapping[str, Cooling]:
        """Return the nodes that decisions are to leave alone now."""
        longest_s = max(self._first_s, MAX_COOL_DOWN_S)  # more: somebody set the clock back
        return {
            node: row.cooling
            for node, row in sorted(self._rows.items())
            if row.cooling is not None and 0.0 < row.cooling.until_s - now_s <= longest_s
        }

    def has_changed(self, now_s: float) -> bool:
        """Whether other nodes cool down than when this was asked last."""
        before, self._told = self._told, set(self.cooling(now_s)) if self._rows else set()
        return before != self._told

    def _hold(self, row: _Row, now_s: float) -> None:
        row.held = len(row.by)
        if row.held >= HELD:
            doublings = min(16, row.held - HELD)
            self._cool(row, min(MAX_COOL_DOWN_S, self._first_s * 2.0**doublings), now_s)

    def _cool(self, row: _Row, seconds: float, now_s: float) -> None:
        if self._first_s <= 0.0:
            return
        row.cooling = Cooling(
            until_s=now_s + seconds,
            failures=len(row.by),
            trainer_id=row.by[-1],
            cause=row.cause,
        )
