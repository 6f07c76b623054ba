"""Takes over what an earlier daemon left: workers that train, and what it had learnt.

A base of ``trainers``; ``fleet.generations.adoption`` restores a machine from agents' reports.

``Memory`` is journalled with every decision. A new daemon keeps what takes time to learn: the
durations of pilot ends and starts, slow nodes, and the policy's state if policy and options are
the same. It drops momentary values (snapshot counts, hold-offs) and whatever was being measured,
because the daemon's absence would distort it. Called once, when the agents have been adopted.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from bftrainer.elastic import protocol
from bftrainer.fleet.generations import stimuli
from bftrainer.fleet.generations.adoption import adopt, parked_meanwhile
from bftrainer.fleet.generations.members import NodeOffer, Parked, Regrouped, Worker, worker_on
from bftrainer.fleet.trainers import record_updates
from bftrainer.fleet.trainers.creation import Trainer
from bftrainer.fleet.trainers.records import TrainerRecords
from bftrainer.fleet.trainers.reported_workers import AgentReports
from bftrainer.fleet.trainers.unreachable import Standstill, not_heard, put_in, survivors
from bftrainer.journal.journal import Journal
from bftrainer.model.canonical import CanonicalError, from_plain
from bftrainer.model.decision import Ends, Memory, Settings
from bftrainer.model.fairness import Usage

LOG = logging.getLogger("bftrainer.trainers")


class AdoptingTrainers(TrainerRecords):
    """Trainers that may be adopted."""

    reports: AgentReports
    agent_on: Callable[[str], str]  # endpoint of the agent on a node; "": there is none
    on_broken: Callable[[Collection[str]], object]  # pilots that a trainer's others lost, too
    standing: dict[str, Standstill]  # trainers whose agents cannot be reached

    def adopt_all(
        self, offers: Mapping[str, NodeOffer], away: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Build the machines' state from all ``reports``.

        Args:
            offers: of connected agents, by pilot.
            away: nodes of pilots whose agents cannot be reached; trainers there stand still.
        """
        found = self.reports.judged({i: t.record for i, t in self.trainers.items()}, offers)
        for trainer in self.trainers.values():
            believed, now_s = found.get(trainer.record.trainer_id, ()), self._steady()
            workers = [worker_on(offers[b.pilot_id], b.worker_id, now_s) for b in believed]
            said = {b.worker_id: b.said for b in believed}
            unheard = not_heard(trainer.record, away, now_s)
            if pilots := {worker.pilot_id for worker in unheard}:
                self.standing[trainer.record.trainer_id] = Standstill(pilots=pilots, said=said)
            self._adopt(trainer, workers, said)
            if unheard:
                put_in(trainer.machine, unheard, offers)
                trainer.log.restart()

    def cannot_reach(self, pilot_id: str) -> None:
        """An agent is not heard, but it is probably the daemon that is cut off."""
        for trainer in self._on_pilot(pilot_id):
            workers = trainer.machine.workers.values()
            if any(w.is_alive and w.pilot_id == pilot_id for w in workers):
                standing = self.standing.setdefault(trainer.record.trainer_id, Standstill())
                standing.pilots.add(pilot_id)
            else:
                self._handle(trainer, stimuli.AgentLost(pilot_id=pilot_id))

    def reached(self, offers: Mapping[str, NodeOffer]) -> None:
        """All agents are back or lost: adopt the trainers that stood still as they are now."""
        stood, self.standing = self.standing, {}
        reported = self.reports.pilots
        records = {i: t.record for i, t in self.trainers.items() if i in stood}
        found = self.reports.judged(records, offers)  # of others nobody knows a worker there
        for trainer_id, standing in stood.items():
            trainer = self.trainers.get(trainer_id)
            if trainer is None:
                continue
            old, now_s = trainer.machine, self._steady()
            self._reopen(trainer)
            believed, generation = found.get(trainer_id, ()), trainer.record.progress.generation
            stood_so = (old, standing, generation, believed, offers, reported, now_s)
            self._adopt(trainer, *survivors(*stood_so))
            had = [o.pilot_id for o in old.targets.values()]
            targets = tuple(offers[pilot_id] for pilot_id in had if pilot_id in offers)
            was = stimuli.TargetsSet(offers=targets, staying=old.staying, batches=old.batches)
            for stimulus in (was, *standing.heard):  # without targets it would park
                self._handle(trainer, stimulus)

    def _holds(self, trainer: Trainer, stimulus: stimuli.Stimulus) -> bool:
        """Return whether a stimulus must be kept from a trainer that stands still."""
        trainer_id = trainer.record.trainer_id
        standing = self.standing.get(trainer_id)
        if standing is None:
            return False
        if isinstance(stimulus, stimuli.TrainerClosed):
            del self.standing[trainer_id]
        is_held = standing.holds(stimulus)
        match stimulus:
            case stimuli.WorkerMessage(message=protocol.Interrupted(generation=generation)):
                if generation >= trainer.record.progress.generation:
                    self.on_broken(standing.pilots)  # its members do not hear each other either
            case _:
                pass
        return is_held

    def _adopt(
        self,
        trainer: Trainer,
        workers: Sequence[Worker],
        said: Mapping[str, Sequence[protocol.Message]],
    ) -> None:
        done = adopt(trainer.machine, workers, said)
        trainer.log.restart()
        if done is not None and done.generation > trainer.record.progress.generation:
            self._on_regrouped(trainer, done)
        elif trainer.record.trainer_id in self.standing:
            return
        elif trainer.record.progress.size and not trainer.machine.members:
            self._on_parked(trainer, parked_meanwhile(trainer.record))

    def _on_regrouped(self, trainer: Trainer, done: Regrouped) -> None:
        """Record a generation that agents announced while no daemon ran."""
        record = trainer.record
        done = replace(done, size_before=record.progress.size)
        LOG.info(
            "trainer %s: generation %d, %d -> %d nodes, was announced by pilot %s: %s",
            record.trainer_id, done.generation, done.size_before, done.size, done.by, done.reason,
        )  # fmt: skip
        self._set(trainer, record_updates.regrouped(record, done, self._clock()))
        self._write(trainer, "regrouped", done)

    @abstractmethod
    def _handle(self, trainer: Trainer, stimulus: stimuli.Stimulus) -> None: ...

    @abstractmethod
    def _on_parked(self, trainer: Trainer, parked: Parked) -> None: ...


def remembered(journal: Journal, settings: Settings, assignment: Mapping[str, str]) -> Memory:
    """Return the memory for the first decision.

    Args:
        journal: of this state directory.
        settings: of this daemon.
        assignment: node -> trainer, as observed.
    """
    memory = Memory(assignment=assignment)
    try:
        entry = journal.latest("decision")
        if entry is None:
            return memory
        plain = entry.plain()  # of hundreds of trainers; two parts are wanted
        known = from_plain(plain.get("plan", {}).get("memory"), Memory)
        then = from_plain(plain.get("input", {}).get("settings"), Settings)
    except CanonicalError as problem:  # written by another release
        LOG.warning("what an earlier daemon learnt cannot be read: %s", problem)
        return memory
    is_same = (then.policy, then.policy_options) == (settings.policy, settings.policy_options)
    return replace(
        memory,
        ends=Ends(took_s=known.ends.took_s, joined_s=known.ends.joined_s),
        slow_nodes=known.slow_nodes if settings.straggler_threshold else {},
        usage=known.usage if settings.fair_share_half_life_s is not None else Usage(),
        policy_state=known.policy_state if is_same else None,
    )
