"""The records of all trainers: kept in memory, written to the journal, passed on to listeners.

The base of ``trainers``, which changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bftrainer.fleet.trainers import record_updates
from bftrainer.fleet.trainers.creation import Trainer, opened_of
from bftrainer.fleet.trainers.log_files import Known, known_of, log_files
from bftrainer.fleet.trainers.occupancy import Waiting
from bftrainer.fleet.trainers.study_news import StudyNews
from bftrainer.journal.journal import Journal
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from bftrainer.model.views import LogFile
from bftrainer.site.policy.model import SitePolicy

KEPT_WORKERS = 32  # of a trainer that has ended, for its users


class TrainerRecords:
    """All records, and the machines of trainers that are not final or still have workers."""

    def __init__(
        self,
        *,
        journal: Journal,
        policy: SitePolicy,
        incarnation: int,
        clock: Callable[[], float],
        on_change: Callable[[], None],
        steady: Callable[[], float] | None = None,  # monotonic; None: ``clock``
    ) -> None:
        self._journal = journal
        self._policy = policy
        self._incarnation = incarnation
        self._clock, self._steady = clock, steady or clock
        self._on_change = on_change
        self.records: dict[str, TrainerRecord] = {
            r.trainer_id: record_updates.read(r) for r in journal.trainers()
        }
        self.waiting = Waiting(self.records, clock)
        self.trainers: dict[str, Trainer] = {}
        self._known: dict[str, Mapping[str, Known]] = {}  # last workers of those that have ended
        self.news = StudyNews()

    def submit(self, spec: TrainerSpec) -> TrainerRecord:
        """Accept a trainer; it is durable when this returns."""
        return self.submit_all([spec])[0]

    def submit_all(self, specs: Sequence[TrainerSpec]) -> tuple[TrainerRecord, ...]:
        """Accept several, all or none; at least one."""
        asked = [(spec, record_updates.unmet(spec, self.records)) for spec in specs]
        records = self._journal.submit_all(asked, self._clock())
        for record in records:
            self.records[record.trainer_id] = record
            self._open(record)
            self.news.changed(record.spec)
        self._on_change()
        return records

    def waiting_and_running(self) -> tuple[TrainerRecord, ...]:
        """Return records that are not final, in FCFS order."""
        return tuple(r for r in self.records.values() if not r.state.is_final)

    def nodes_of(self, trainer_id: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the nodes of its members, and of workers starting or warm."""
        trainer = self.trainers.get(trainer_id)
        return trainer.machine.nodes() if trainer is not None else ((), ())

    def last_pilots(self, trainer_id: str) -> list[str]:
        """Return the pilots of the workers of its last generation that did not leave in order."""
        trainer = self.trainers.get(trainer_id)
        known = trainer.machine.workers.values() if trainer else ()
        left = {worker.worker_id for worker in known if worker.has_left}
        there = self.records[trainer_id].workers
        return sorted({pilot_id for worker_id, pilot_id in there if worker_id not in left})

    def log_files(self, trainer_id: str) -> tuple[LogFile, ...]:
        """Return the log of every worker it ever had, oldest first; reads users' files."""
        trainer = self.trainers.get(trainer_id)
        known = known_of(trainer.machine) if trainer else self._known.get(trainer_id, {})
        return log_files(trainer_id, self.records[trainer_id].spec, known)

    def _open(self, record: TrainerRecord) -> None:
        opened = opened_of(record, self._policy, self._incarnation, self._steady(), self._journal)
        self.trainers[record.trainer_id] = opened

    def _on_pilot(self, pilot_id: str) -> list[Trainer]:
        """Return the trainers that the end of this pilot's agent concerns."""
        return [t for t in self.trainers.values() if t.machine.uses(pilot_id)]

    def _let_go(self) -> None:
        """Keep only the record of a trainer that has ended and has no worker any more."""
        for trainer_id in [i for i, t in self.trainers.items() if t.record.state.is_final]:
            if not (machine := self.trainers[trainer_id].machine).has_workers:
                self._known[trainer_id] = known_of(machine, KEPT_WORKERS)
                del self.trainers[trainer_id]

    def _reopen(self, trainer: Trainer) -> None:
        """Give a trainer that has no workers any more a new machine; workers' numbers go on."""
        opened = opened_of(
            trainer.record,
            self._policy,
            self._incarnation,
            self._steady(),
            self._journal,
            started_workers=trainer.machine.started_workers,
        )
        trainer.log, trainer.watch, trainer.is_saved = opened.log, None, False

    def _replace(self, trainer: Trainer, **changes: object) -> None:
        self._set(trainer, replace(trainer.record, **changes))  # type: ignore[arg-type]  # field names checked by replace

    def _set(self, trainer: Trainer, record: TrainerRecord) -> None:
        trainer.record = self.records[record.trainer_id] = record

    def _note(self, trainer_id: str, kind: str, what: object) -> None:
        self._write(self.trainers[trainer_id], kind, what)

    def _write(
        self, trainer: Trainer, kind: str, payload: object, also: Sequence[TrainerRecord] = ()
    ) -> None:
        body = {"trainer_id": trainer.record.trainer_id, "what": payload}
        records = [record_updates.written(record) for record in (trainer.record, *also)]
        self._journal.note(kind, body, trainers=records)
        trainer.unwritten = None
        self.news.changed(trainer.record.spec)
