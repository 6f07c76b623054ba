"""Nodes that train or are occupied, and trainers that may get some. Pure.

A node *trains* for an open trainer when a living worker of its current generation is there. It is
*occupied* when a living worker belongs to a trainer that takes no part: it has ended, waits at a
rung, or is held and still writes its state. Such a node may be planned for others, but its pilot
stays until that worker is gone. This is the only place that states these maps: whatever they name
takes part in the decision.

``trainers`` owns the records; ``withheld`` in ``model.trainer`` has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bftrainer.fleet.trainers.creation import Trainer
from bftrainer.model.trainer import TrainerRecord, as_decided, withheld


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """The trainers on nodes; no node is in both of the first two maps."""

    training: Mapping[str, str] = field(default_factory=dict)  # node -> trainer
    occupied: Mapping[str, str] = field(default_factory=dict)  # node -> trainer
    settled_until_s: Mapping[str, float] = field(default_factory=dict)  # trainer -> when
    # Trainer -> node that it must not get, because others of its nodes cannot reach it -> since.
    apart: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def occupancy_of(
    trainers: Iterable[Trainer],
    settled_until_s: Mapping[str, float],
    among: Container[str] | None = None,
) -> Occupancy:
    """State the maps of all trainers that may still have workers.

    Decisions must not change the nodes of some, until ``settled_until_s``; ``among``: those that
    take part in the decision, None: all that are open.
    """
    training, occupied, settled = dict[str, str](), dict[str, str](), dict[str, float]()
    for trainer in trainers:
        machine, trainer_id = trainer.machine, trainer.record.trainer_id
        if not machine.crew.workers and trainer_id not in settled_until_s:
            continue
        is_open = not (trainer.record.state.is_final or machine.course.is_ended)
        takes_part = is_open and (among is None or trainer_id in among)
        if takes_part and trainer_id in settled_until_s:
            settled[trainer_id] = settled_until_s[trainer_id]
        for worker_id, worker in machine.crew.workers.items():
            if not worker.is_alive:
                continue
            if not takes_part:
                occupied[worker.node] = trainer_id
            elif worker_id in machine.crew.members and (
                # The node may be another's already while its former trainer is about to leave it.
                worker.node not in training or worker.node in machine.plan.targets
            ):
                training[worker.node] = trainer_id
    for node in occupied.keys() & training.keys():
        del occupied[node]
    return Occupancy(training=training, occupied=occupied, settled_until_s=settled)


def busy_pilots_of(trainers: Iterable[Trainer]) -> frozenset[str]:
    """Return the pilots on which a worker of these runs or starts."""
    pilots = set[str]()
    for trainer in trainers:
        pilots |= {worker.pilot_id for worker in trainer.machine.crew.alive()}
    return frozenset(pilots)


class _Decided(NamedTuple):
    """A trainer's record, and how decisions read it."""

    record: TrainerRecord
    as_decided: TrainerRecord


class Waiting:
    """A view of all trainers' records."""

    def __init__(self, records: Mapping[str, TrainerRecord], clock: Callable[[], float]) -> None:
        self._records, self._clock = records, clock
        self._begins_s: float | None = None  # when the next trainer begins
        self._decided: dict[str, _Decided] = {}

    def withheld(self) -> dict[str, str]:
        """Return the trainers that are to have no nodes now, each with a sentence."""
        return withheld(self._records, self._clock())

    def eligible(self) -> tuple[TrainerRecord, ...]:
        """Return the records that a decision may give nodes to, in FCFS order."""
        now_s, withheld_ids, eligible = self._clock(), self.withheld(), list[TrainerRecord]()
        self._begins_s = None
        for record in self._records.values():
            if record.state.is_final:
                continue
            begin_s = record.spec.begin_s
            if begin_s is not None and begin_s > now_s:
                self._begins_s = min(begin_s, self._begins_s or begin_s)
            if record.trainer_id not in withheld_ids:
                eligible.append(record)
        return tuple(eligible)

    def has_begun(self) -> bool:
        """Return whether a trainer's time to begin has come since the last call of ``eligible``."""
        return self._begins_s is not None and self._begins_s <= self._clock()

    def as_decided(self, records: Sequence[TrainerRecord]) -> tuple[TrainerRecord, ...]:
        """Return records as decisions read them; of hundreds that wait, only changed ones anew."""
        before, self._decided = self._decided, {}
        for record in records:
            decided = before.get(record.trainer_id)
            if decided is None or decided.record is not record:
                decided = _Decided(record, as_decided(record))
            self._decided[record.trainer_id] = decided
        return tuple(decided.as_decided for decided in self._decided.values())
