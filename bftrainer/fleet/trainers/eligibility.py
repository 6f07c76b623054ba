"""Which trainers a decision may give nodes to, and when that changes by time alone.

``actuate.trainers`` owns the records; the reasons are in ``model.withheld``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bftrainer.model.trainer import TrainerRecord, as_decided
from bftrainer.model.withheld import withheld


class Waiting:
    """A view of all trainers' records."""

    def __init__(self, records: Mapping[str, TrainerRecord], clock: Callable[[], float]) -> None:
        self._records, self._clock = records, clock
        self._begins_s: float | None = None  # when the next trainer begins
        self._decided: dict[str, tuple[TrainerRecord, TrainerRecord]] = {}  # record, as decided

    def withheld(self) -> dict[str, str]:
        """Return the trainers that are to have no nodes now, each with a sentence."""
        return withheld(self._records, self._clock())

    def eligible(self) -> tuple[TrainerRecord, ...]:
        """Return the records that a decision may give nodes to, in FCFS order."""
        now_s, without = self._clock(), self.withheld()
        waiting = [r for r in self._records.values() if not r.state.is_final]
        begins = [r.spec.begin_s for r in waiting if r.spec.begin_s is not None]
        self._begins_s = min((at_s for at_s in begins if at_s > now_s), default=None)
        return tuple(r for r in waiting if r.trainer_id not in without)

    def has_begun(self) -> bool:
        """Whether a trainer's time to begin has come since the last call of ``eligible``."""
        return self._begins_s is not None and self._begins_s <= self._clock()

    def as_decided(self, records: Sequence[TrainerRecord]) -> tuple[TrainerRecord, ...]:
        """Return records as decisions read them; of hundreds that wait, only changed ones anew."""
        known, now = self._decided, {}
        for record in records:
            pair = known.get(record.trainer_id)
            if pair is None or pair[0] is not record:
                pair = record, as_decided(record)
            now[record.trainer_id] = pair
        self._decided = now
        return tuple(decided for _, decided in now.values())
