"""Trainers: their records, generation machines and history.

The plan's assignment and all agents' messages come in; messages for agents and journal entries go
out. One ``TrainerBook`` per daemon.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

from bftrainer.batch.clock import STEADY
from bftrainer.decide.throughput.batch_curve import batches_of
from bftrainer.fleet.generations import breakage, members, stimuli
from bftrainer.fleet.generations.adoption import adopt, parked_meanwhile
from bftrainer.fleet.generations.failures import given_up
from bftrainer.fleet.generations.generation import mark_of
from bftrainer.fleet.generations.state import trainer_of
from bftrainer.fleet.runtimes.base import load_runtime, worker_config
from bftrainer.fleet.trainers import record_updates, remainder, unreachable
from bftrainer.fleet.trainers.costs import (
    learn_leaving,
    learn_progress,
    learn_rescale,
    watch_from,
)
from bftrainer.fleet.trainers.creation import (
    LastWord,
    Trainer,
    limits_of,
    opened_of,
    sizes_of,
)
from bftrainer.fleet.trainers.figures import FigureBook
from bftrainer.fleet.trainers.log_files import WorkerFacts, log_files, worker_facts
from bftrainer.fleet.trainers.occupancy import Occupancy, Waiting, busy_pilots_of, occupancy_of
from bftrainer.fleet.trainers.quarantine import Quarantine
from bftrainer.fleet.trainers.reported_workers import AgentReports, has_heard
from bftrainer.fleet.trainers.rescale_budget import RescaleBudget
from bftrainer.fleet.trainers.speeds import SpeedBook
from bftrainer.fleet.trainers.study_news import StudyNews
from bftrainer.fleet.wire.messages import DaemonMessage, KillWorker, TellWorker, WorkerReport
from bftrainer.fleet.wire.router import RefusedMessages
from bftrainer.ground import protocol
from bftrainer.journal.journal import Journal
from bftrainer.model.decision import Replacing
from bftrainer.model.errors import BftError
from bftrainer.model.reports import UserAccount
from bftrainer.model.trainer import (
    TrainerChange,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
    happens_anywhere,
)
from bftrainer.model.views import LogFile
from bftrainer.site.policy.model import SitePolicy

LOG = logging.getLogger("bftrainer.trainers")
KEPT_RESCALES = 1000
KEPT_WORKERS = 32  # of a trainer that has ended, for its users
STANDS_S = 60.0  # so long no decision changes the nodes of trainers that cannot be reached
REPORTS_EVERY_S = 2.0  # workers repeat what a killed daemon did not write


class RescaleNote(NamedTuple):
    """A rescale as those who list the latest ones need it; the journal has all."""

    trainer_id: str
    at_s: float
    rescaled: members.Rescaled


class Send(Protocol):
    """Sends messages to agents."""

    def __call__(self, pilot_id: str, message: DaemonMessage, /) -> bool:
        """Send without waiting."""


class TrainerBook:
    """All records, and the machines of trainers that are not final or still have workers."""

    def __init__(
        self,
        *,
        journal: Journal,
        policy: SitePolicy,
        incarnation: int,
        send: Send,
        clock: Callable[[], float],
        on_change: Callable[[], None],
        steady: Callable[[], float] | None = None,  # monotonic; None: ``clock``
        refusals: RefusedMessages | None = None,
    ) -> None:
        self._journal, self._send = journal, send
        self._policy, self._incarnation = policy, incarnation
        self._clock, self._steady = clock, steady or clock
        self._on_change = on_change
        self.records: dict[str, TrainerRecord] = {
            r.trainer_id: record_updates.read(r) for r in journal.trainers()
        }
        self.trainers: dict[str, Trainer] = {}
        # What users gave as a time of day is by the wall clock.
        self.waiting = Waiting(self.records, lambda: clock() + STEADY.calendar_ahead_s())
        self._ended_workers: dict[str, Mapping[str, WorkerFacts]] = {}  # the last, by trainer
        self.news = StudyNews()
        self.touched = 0  # grows with every change of a record
        self._refusals = refusals or RefusedMessages(LOG)
        # Hears of each end, and of each trainer whose time limit is over.
        self.on_ended: Callable[[TrainerRecord], None] = lambda _record: None
        # Whether new reports may be written now, or with the trainer's next entry.
        self.takes_report: Callable[[TrainerRecord], bool] = lambda _record: True
        self.figures = FigureBook()
        self.speeds = SpeedBook(
            policy.straggler_threshold,
            lambda i, kind, what: self._write(self.trainers[i], kind, what),
        )
        self.budget = RescaleBudget(policy.rescale_budget)
        self.quarantine = Quarantine(policy.quarantine_s)
        self.cuts = unreachable.Cuts()
        self.reports = AgentReports(send, self._refusals)
        # Trainers whose agents cannot be reached.
        self.standing: dict[str, unreachable.Standstill] = {}
        # Pilots that a trainer's others lost, too; the endpoint of the agent on a node.
        self.on_broken: Callable[[Collection[str]], object] = lambda _pilot_ids: None
        self.agent_on: Callable[[str], str] = lambda _node: ""
        self.connection_of: Callable[[str], int] = lambda _pilot_id: 0  # number of its agent's
        self.rescales: deque[RescaleNote] = deque(maxlen=KEPT_RESCALES)
        # Since the daemon started: lives that ended without a checkpoint, and what was done again.
        self.lives_lost, self.steps_lost = 0, Counter[UserAccount]()
        self.pauses, self.paused_s = 0, 0.0  # likewise
        for record in self.records.values():
            if not record.state.is_final:
                self._open(record)
            elif record.reason.startswith("BFT-1028"):
                LOG.error("trainer %s: %s", record.trainer_id, record.reason)

    def adopt_policy(self, policy: SitePolicy) -> None:
        """Go by another policy from now on."""
        self._policy = policy
        self.speeds.threshold = policy.straggler_threshold
        self.budget.limit, self.quarantine.first_s = policy.rescale_budget, policy.quarantine_s
        for trainer in list(self.trainers.values()):
            self._handle(trainer, limits_of(policy, trainer.record.spec))

    # ---- users -----------------------------------------------------------------------

    def submit(self, spec: TrainerSpec) -> TrainerRecord:
        """Accept a trainer; it is durable when this returns."""
        return self.submit_all([spec])[0]

    def submit_all(self, specs: Sequence[TrainerSpec]) -> tuple[TrainerRecord, ...]:
        """Accept several, all or none; at least one."""
        submissions = [(spec, record_updates.unmet(spec, self.records)) for spec in specs]
        records = self._journal.submit_all(submissions, self._clock())
        for record in records:
            self.records[record.trainer_id] = record
            self._open(record)
            self.news.changed(record.spec)
        self._on_change()
        return records

    def waiting_and_running(self) -> tuple[TrainerRecord, ...]:
        """Return records that are not final, in FCFS order."""
        return tuple(r for r in self.records.values() if not r.state.is_final)

    def nodes_of(self, trainer_id: str) -> members.NodesInUse:
        """Return the nodes of its members, and of workers starting or warm."""
        trainer = self.trainers.get(trainer_id)
        if trainer is None:
            return members.NodesInUse()
        return trainer.machine.nodes()

    def last_pilots(self, trainer_id: str) -> list[str]:
        """Return the pilots of the workers of its last generation that did not leave in order."""
        trainer, pilots = self.trainers.get(trainer_id), set[str]()
        workers: Mapping[str, members.Worker] = {}
        if trainer is not None:
            workers = trainer.machine.crew.workers
        for worker_id, pilot_id in self.records[trainer_id].workers:
            worker = workers.get(worker_id)
            if worker is None or not worker.has_left:
                pilots.add(pilot_id)
        return sorted(pilots)

    def log_files(self, trainer_id: str) -> tuple[LogFile, ...]:
        """Return the log of every worker it ever had, oldest first; reads users' files."""
        trainer = self.trainers.get(trainer_id)
        facts = self._ended_workers.get(trainer_id, {})
        if trainer is not None:
            facts = worker_facts(trainer.machine)
        return log_files(trainer_id, self.records[trainer_id].spec, facts)

    def cancel(self, trainer_id: str, *, now: bool = False) -> TrainerRecord:
        """End a trainer; its workers write a checkpoint first, unless ``now``."""
        trainer = self.trainers.get(trainer_id)
        record = self.records[trainer_id]
        if now or trainer is None:
            return self._cancelled(trainer_id)
        if not (trainer.machine.has_members or record.progress.size):
            return self._cancelled(trainer_id)
        if record.cancelled_s is None:
            grace_s = record_updates.save_grace_s(record.spec.contract)
            self._replace(
                trainer, cancelled_s=self._clock(), reason=record_updates.cancelling(grace_s)
            )
            self._write(trainer, "cancelling", {"grace_s": grace_s})
            self._handle(trainer, stimuli.WindUp(grace_s=grace_s))
            self._on_change()
        return self.records[trainer_id]

    def change(self, trainer_id: str, change: TrainerChange) -> TrainerRecord:
        """Hold, release or update a trainer that is not final."""
        trainer = self.trainers[trainer_id]
        before = trainer.record
        record = record_updates.changed(before, change, self._clock())
        if record != before:
            self._set(trainer, record)
            sizes = sizes_of(record.spec)
            if sizes != sizes_of(before.spec):
                self._handle(trainer, sizes)
                self.budget.forget(trainer_id)  # the next decision may change its nodes
            self._write(trainer, "changed", change)
            self._on_change()
        return trainer.record

    def requeue(self, trainer_id: str) -> TrainerRecord:
        """Have a trainer leave its nodes and start again, or submit one that has ended anew."""
        record = self.records[trainer_id]
        if record.state.is_final:
            return self.submit(record_updates.again(record))
        trainer = self.trainers[trainer_id]
        if trainer.machine.has_workers and record.requeued_s is None:
            self._replace(trainer, requeued_s=self._clock())
            self._write(trainer, "requeued", {"state": str(record.state)})
            self._on_change()
        return trainer.record

    def _cancelled(self, trainer_id: str) -> TrainerRecord:
        trainer, record = self.trainers.get(trainer_id), self.records[trainer_id]
        is_saved, step = False, 0
        if trainer is not None:
            is_saved, step = trainer.is_saved, trainer.machine.mark.step
        why = record_updates.cancelled(record, step, is_saved=is_saved)
        return self._finish(trainer_id, TrainerState.CANCELLED, why)

    def clear(self) -> None:
        """Keep less of trainers that ended long ago and never ran; called now and then."""
        if shortened := remainder.due(self.records.values(), self._clock()):
            self._journal.note("cleared", {}, trainers=shortened)
            self.records |= {record.trainer_id: record for record in shortened}

    def drop(self, reasons: Mapping[str, str]) -> None:
        """End trainers that the policy does not admit; trainer -> why."""
        for trainer_id, reason in reasons.items():
            self._finish(trainer_id, TrainerState.CANCELLED, f"The policy dropped it: {reason}")

    # ---- daemons that follow each other, and cuts -------------------------------------

    def adopt_all(
        self,
        offers: Mapping[str, members.NodeOffer],
        away: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Build the machines' state from all ``reports``.

        Trainers on nodes that are ``away`` (by pilot), whose agents cannot be reached, stand still.
        """
        records = {trainer_id: trainer.record for trainer_id, trainer in self.trainers.items()}
        believed = self.reports.judged(records, offers)
        for trainer_id, trainer in self.trainers.items():
            now_s = self._steady()
            heirs = unreachable.reported_heirs(believed.get(trainer_id, ()), offers, now_s)
            unheard = unreachable.not_heard(trainer.record, away, now_s)
            if unheard:
                self.standing[trainer_id] = unreachable.Standstill(
                    pilots={worker.pilot_id for worker in unheard}, messages=heirs.messages
                )
            self._adopt(trainer, heirs)
            if unheard:
                unreachable.put_in(trainer.machine, unheard, offers)
                trainer.log.restart()

    def cannot_reach(self, pilot_id: str) -> None:
        """An agent is not heard, but it is probably the daemon that is cut off."""
        for trainer in self._on_pilot(pilot_id):
            workers = trainer.machine.crew.workers.values()
            if any(w.is_alive and w.pilot_id == pilot_id for w in workers):
                standing = self.standing.setdefault(
                    trainer.record.trainer_id, unreachable.Standstill()
                )
                standing.pilots.add(pilot_id)
            else:
                self._handle(trainer, stimuli.AgentLost(pilot_id=pilot_id))

    def reached(self, offers: Mapping[str, members.NodeOffer]) -> None:
        """All agents are back or lost: adopt the trainers that stood still as they are now."""
        standstills, self.standing = self.standing, {}
        reported_pilots = self.reports.pilots
        records = {i: t.record for i, t in self.trainers.items() if i in standstills}
        believed = self.reports.judged(records, offers)  # of others nobody knows a worker there
        for trainer_id, standing in standstills.items():
            trainer = self.trainers.get(trainer_id)
            if trainer is None:
                continue
            machine, now_s = trainer.machine, self._steady()
            self._reopen(trainer)
            heirs = unreachable.reported_heirs(believed.get(trainer_id, ()), offers, now_s)
            heirs = unreachable.with_survivors(
                heirs,
                machine=machine,
                standing=standing,
                generation=trainer.record.progress.generation,
                present=offers.keys() - reported_pilots,
            )
            self._adopt(trainer, heirs)
            for stimulus in (unreachable.former_targets(machine, offers), *standing.heard):
                self._handle(trainer, stimulus)  # without targets it would park

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

    def _adopt(self, trainer: Trainer, heirs: unreachable.Heirs) -> None:
        current = adopt(trainer.machine, heirs.workers, heirs.messages)
        trainer.log.restart()
        if current is not None and current.generation > trainer.record.progress.generation:
            self._on_regrouped(trainer, current)
        elif trainer.record.trainer_id in self.standing:
            return
        elif trainer.record.progress.size and not trainer.machine.crew.members:
            self._on_parked(trainer, parked_meanwhile(trainer.record))

    def _on_regrouped(self, trainer: Trainer, regrouped: members.Regrouped) -> None:
        record = trainer.record
        regrouped = replace(regrouped, size_before=record.progress.size)
        LOG.info(
            "trainer %s: generation %d, %d -> %d nodes, was announced by %s: %s",
            record.trainer_id, regrouped.generation, regrouped.size_before, regrouped.size,
            f"pilot {regrouped.by}" if regrouped.by else "a daemon", regrouped.reason,
        )  # fmt: skip
        self._set(trainer, record_updates.rescaled(record, regrouped, record.costs, self._clock()))
        self._write(trainer, "regrouped", regrouped)

    # ---- agents ----------------------------------------------------------------------

    def measure_anew(self) -> None:
        """Learn no throughput of a time in which reports waited to be read."""
        for trainer in self.trainers.values():
            trainer.watch = None

    def occupancy(self, among: Container[str] | None = None) -> Occupancy:
        """Return who is where; ``among``: the trainers of a decision, None: all that are open."""
        now_s = self._clock()
        ahead_s = now_s - self._steady()  # against the machines' clock
        settled_until_s = dict(self.budget.used_up(now_s))
        for trainer_id, trainer in self.trainers.items():
            ends_by_s = trainer.machine.course.ends_by_s
            if ends_by_s is not None:
                settled_until_s[trainer_id] = ends_by_s + ahead_s
        settled_until_s |= dict.fromkeys(self.standing, now_s + STANDS_S)
        occupancy = occupancy_of(self.trainers.values(), settled_until_s, among)
        barred = unreachable.all_barred(self.trainers.values(), among, self._steady(), ahead_s)
        return replace(occupancy, apart=barred)

    def busy_pilots(self) -> frozenset[str]:
        """Return the pilots on which a worker runs or starts."""
        return busy_pilots_of(self.trainers.values())

    def reconcile(self, pilot_id: str, reports: Sequence[WorkerReport]) -> None:
        """An agent (re)connected: workers it lacks are lost, workers we do not know are killed.

        So are the lost ones, because an order to start one may still arrive.
        """
        reported_ids, alive_ids = {report.worker_id for report in reports}, set[str]()
        for trainer in list(self.trainers.values()):
            for worker in list(trainer.machine.crew.workers.values()):
                if worker.pilot_id == pilot_id and worker.is_alive:
                    alive_ids.add(worker.worker_id)
                    if worker.worker_id not in reported_ids:
                        self._handle(trainer, stimuli.WorkerMissing(worker_id=worker.worker_id))
        for report in reports:  # its words, or ours, may have been lost with its connection
            if report.worker_id not in alive_ids:
                continue
            for body in report.latest:
                if body.get("type") != protocol.Progress.__name__:
                    self.on_body(pilot_id, report.worker_id, body)
            self._repeat(pilot_id, report)
        for worker_id in sorted(reported_ids ^ alive_ids):
            self._send(pilot_id, KillWorker(worker_id=worker_id))

    def _repeat(self, pilot_id: str, report: WorkerReport) -> None:
        """Send again what a worker was told last if it has not arrived, as its report shows."""
        connection = self.connection_of(pilot_id)
        trainer = self.trainers.get(trainer_of(report.worker_id))
        if trainer is None:  # ended by what was reported just now
            return
        word = trainer.last_words.get(report.worker_id)
        if word is None or word.connection == connection or has_heard(report, word.body):
            return
        trainer.last_words[report.worker_id] = word._replace(connection=connection)
        self._send(pilot_id, TellWorker(worker_id=report.worker_id, body=dict(word.body)))

    def on_body(self, pilot_id: str, worker_id: str, body: dict[str, object]) -> None:
        """A worker sent a message through this pilot's agent."""
        trainer = self._trainer_of(pilot_id, worker_id)
        if trainer is None:
            return
        try:
            message = protocol.from_body(body)
        except protocol.ProtocolError as problem:
            self._refusals.refuse("malformed", f"{worker_id} by {pilot_id}", problem)
            return
        if isinstance(message, protocol.Progress):
            self._on_progress(trainer, message, trainer.machine.crew.workers[worker_id].node)
        elif isinstance(message, protocol.TrainingLoss | protocol.GpusInUse):
            worker_ids = list(trainer.machine.crew.members)
            if isinstance(message, protocol.TrainingLoss):  # members end one after the other
                worker_ids += trainer.machine.finished_workers
            self._set(trainer, self.figures.heard(trainer.record, worker_id, message, worker_ids))
            return
        elif isinstance(message, protocol.Reported):
            self._on_reported(trainer, message)
        elif isinstance(message, protocol.Saved):
            self._on_saved(trainer, message)
        elif isinstance(message, protocol.Diverged):
            self._on_diverged(trainer, message)
        elif isinstance(message, protocol.Remarked):
            self._on_remarked(trainer, message)
        elif isinstance(message, protocol.Unreachable):
            message = breakage.of_agents_there(message, self.agent_on)
        self._handle(trainer, stimuli.WorkerMessage(worker_id=worker_id, message=message))

    def on_exit(self, pilot_id: str, worker_id: str, returncode: int, cause: str) -> None:
        """This pilot's agent reports that a worker is gone."""
        trainer = self._trainer_of(pilot_id, worker_id)
        if trainer is not None:
            ended = stimuli.WorkerEnded(worker_id=worker_id, returncode=returncode, cause=cause)
            self._handle(trainer, ended)

    def on_agent_lost(self, pilot_id: str) -> None:
        """An agent is gone, with everything on its node."""
        for trainer in self._on_pilot(pilot_id):
            self._handle(trainer, stimuli.AgentLost(pilot_id=pilot_id))

    def on_agent_failed(self, pilot_id: str, how: str) -> None:
        """A lost agent's pilot was not cancelled by anyone; ``how`` it ended."""
        for trainer in self._on_pilot(pilot_id):
            self._handle(trainer, stimuli.AgentFailed(pilot_id=pilot_id, how=how))

    def set_targets(
        self,
        targets: Mapping[str, Sequence[members.NodeOffer]],
        replacing: Mapping[str, Replacing] | None = None,
    ) -> None:
        """Give each trainer its planned nodes whose agents are connected.

        ``replacing``: stragglers that stay until their replacement trains.
        """
        staying: dict[str, dict[str, str]] = {}
        for node, pair in (replacing or {}).items():
            staying.setdefault(pair.trainer_id, {})[node] = pair.node
        without = self.waiting.withheld()  # also while no decision can be taken
        for trainer_id, trainer in list(self.trainers.items()):
            is_idle = trainer.is_resting or trainer.machine.is_idle
            if is_idle and not (trainer_id in targets or trainer_id in staying):
                continue  # hundreds of trials may wait
            user, pairs = trainer.record.spec.user, staying.get(trainer_id, {})
            offers = [offer for offer in targets.get(trainer_id, ()) if offer.serves(user)]
            if trainer_id in without:
                offers, pairs = [], {}
            self.speeds.staying(trainer_id, pairs)
            batches = batches_of(trainer.record, len(offers) + len(pairs))
            stimulus: stimuli.Stimulus = stimuli.TimePassed()
            plan, offer_on = trainer.machine.plan, {offer.node: offer for offer in offers}
            if (offer_on, pairs, batches) != (plan.targets, plan.staying, plan.batches):
                stimulus = stimuli.TargetsSet(offers=tuple(offers), staying=pairs, batches=batches)
            self._handle(trainer, stimulus)

    def tick(self) -> None:
        """Advance the time in every machine; clocks are read once, however many trainers wait."""
        now_s, steady_s = self._clock(), self._steady()
        awake = [trainer for trainer in self.trainers.values() if not trainer.is_resting]
        for trainer in awake:
            if not trainer.machine.is_idle:
                self._handle(trainer, stimuli.TimePassed())
            self._write_reports(trainer, steady_s)
            if trainer.machine.course.is_ended:
                self._go_on(trainer)
            if trainer.machine.has_wound_up(steady_s):
                self._cancelled(trainer.record.trainer_id)
            if trainer.record.requeued_s is not None and not trainer.machine.has_workers:
                self._replace(trainer, requeued_s=None)
                self._write(trainer, "requeued", {"state": str(trainer.record.state)})
                self._on_change()
            if trainer.record.overtime_s is None:
                self._end_time(trainer, now_s)
            trainer.rest_if_idle()
        self._let_go()
        cuts = self.cuts.have_changed(self.trainers.values(), steady_s)
        if self.quarantine.has_changed(now_s) or cuts:
            self._on_change()

    # ---- consequences ------------------------------------------------------------------

    def _trainer_of(self, pilot_id: str, worker_id: str) -> Trainer | None:
        trainer = self.trainers.get(trainer_of(worker_id))
        worker = trainer.machine.crew.workers.get(worker_id) if trainer else None
        if worker is not None and worker.pilot_id != pilot_id:
            why = f"{worker_id} is on the node of {worker.pilot_id}"
            self._refusals.refuse("not-its-worker", pilot_id, why, code="BFT-1307")
            return None
        return trainer if worker is not None else None

    def _on_progress(self, trainer: Trainer, said: protocol.Progress, node: str) -> None:
        record = record_updates.lived(trainer.record, said)
        if mark_of(said).is_beyond(trainer.machine.failures.row.best):
            self.quarantine.trains(
                record.trainer_id, self.nodes_of(record.trainer_id).training, self._clock()
            )
        if self.speeds.on_progress(record.trainer_id, node, said):
            self._on_change()
        if said.step < record.progress.step and said.generation <= record.progress.generation:
            self._set(trainer, record)
            return
        now_s, n_members = self._clock(), len(trainer.machine.crew.members)
        watch, costs = learn_progress(trainer.watch, record, said, n_members, now_s)
        if self.speeds.is_uneven(record.trainer_id):  # a straggler's pace, not its size's
            now = record.progress
            watch, costs = watch_from(said, now.size, now.batch, now_s), record.costs
        trainer.watch = watch
        self._set(trainer, record_updates.progressed(record, said, costs, now_s))

    def _on_reported(self, trainer: Trainer, said: protocol.Reported) -> None:
        record = record_updates.with_reports(trainer.record, said, self._clock())
        if record is not trainer.record and not record.state.is_final:
            self._set(trainer, record)
            self.news.changed(record.spec)
            trainer.unwritten = said.reports[-1]
            self._write_reports(trainer, self._steady())

    def _on_saved(self, trainer: Trainer, said: protocol.Saved) -> None:
        """Note it; the journal has it from the next entry on, at the latest when it parks."""
        record = record_updates.with_checkpoint(trainer.record, said)
        if record is not trainer.record and not record.state.is_final:
            self._set(trainer, record)

    def _on_diverged(self, trainer: Trainer, said: protocol.Diverged) -> None:
        record = record_updates.with_divergence(trainer.record, said)
        if record is not trainer.record and not record.state.is_final:
            self._set(trainer, record)
            self._write(trainer, "diverged", said)
            LOG.warning("trainer %s: %s", record.trainer_id, said.cause)

    def _on_remarked(self, trainer: Trainer, said: protocol.Remarked) -> None:
        is_made_up = said.generation > trainer.machine.numbers.generation  # by a script
        record = record_updates.with_remark(trainer.record, said)
        if not (is_made_up or record is trainer.record or record.state.is_final):
            self._set(trainer, record)
            self._write(trainer, "remarked", said)
            LOG.warning("trainer %s: %s", record.trainer_id, said.cause)

    def _write_reports(self, trainer: Trainer, steady_s: float) -> None:
        """Write new reports; not each of a script that reports at every step."""
        report = trainer.unwritten
        if report is not None and steady_s >= trainer.wrote_reports_s + REPORTS_EVERY_S:
            trainer.wrote_reports_s = steady_s
            if self.takes_report(trainer.record):
                self._write(trainer, "reported", report)

    def write_reports(self) -> None:
        """Write all reports that wait."""
        for trainer in [one for one in self.trainers.values() if one.unwritten is not None]:
            self._write(trainer, "reported", trainer.unwritten)

    def _handle(self, trainer: Trainer, stimulus: stimuli.Stimulus) -> None:
        if not self._holds(trainer, stimulus):
            self._carry_out(trainer, trainer.log.handle(stimulus, self._steady()))

    def _carry_out(self, trainer: Trainer, instructions: Sequence[members.Instruction]) -> None:
        if trainer.record.failing is not trainer.machine.failures.row:
            self._replace(trainer, failing=trainer.machine.failures.row)
        for instruction in instructions:
            match instruction:
                case members.StartWorkerOn():
                    self._start_worker(trainer, instruction)
                case members.Tell(pilot_id=pilot_id, worker_id=worker_id, body=body):
                    trainer.last_words[worker_id] = LastWord(self.connection_of(pilot_id), body)
                    self._send(pilot_id, TellWorker(worker_id=worker_id, body=dict(body)))
                case members.Kill(pilot_id=pilot_id, worker_id=worker_id):
                    self._send(pilot_id, KillWorker(worker_id=worker_id))
                case members.Announced(generation=generation):
                    self._on_announced(trainer, generation)
                    self._write(trainer, "generation", instruction)
                case members.Rescaled():
                    self._on_rescaled(trainer, instruction)
                case members.Parked():
                    self._on_parked(trainer, instruction)
                case members.Ended() if record_updates.is_at_rung(trainer.record.spec, instruction):
                    self._at_rung(trainer, instruction)
                case members.Ended():
                    why = record_updates.complete(trainer.record.spec, instruction)
                    self._finish(trainer.record.trainer_id, TrainerState.FINISHED, why)
                case members.WorkerFailed():
                    self._on_failed(trainer, instruction)

    def _on_announced(self, trainer: Trainer, generation: int) -> None:
        pilot_of = {worker.worker_id: worker.pilot_id for worker in trainer.machine.crew.alive()}
        self._replace(trainer, last_generation=generation, workers=tuple(pilot_of.items()))
        for worker_id in trainer.last_words.keys() - pilot_of.keys():
            del trainer.last_words[worker_id]

    def _start_worker(self, trainer: Trainer, asked: members.StartWorkerOn) -> None:
        spec = trainer.record.spec
        log_path = trainer.machine.crew.workers[asked.worker_id].log_path
        config = worker_config(
            trainer.record,
            worker_id=asked.worker_id,
            node=asked.node,
            address=asked.address,
            incarnation=self._incarnation,
            log_path=log_path,
        )
        config = trainer.tries.removed_by(config)
        try:
            message = load_runtime(spec.runtime).start_message(trainer.record, config)
        except BftError as problem:  # its runtime is no longer installed
            self._finish(trainer.record.trainer_id, TrainerState.FAILED, str(problem))
            return
        if not self._send(asked.pilot_id, message):
            LOG.info("worker %s not started: its agent is gone", asked.worker_id)

    def _on_rescaled(self, trainer: Trainer, done: members.Rescaled) -> None:
        record, now_s = trainer.record, self._clock()
        if record.state.is_final or trainer.machine.course.is_ended:
            return  # rank 0 ended before the last member's word arrived
        costs = learn_rescale(record.costs, done)
        if done.size_before and not self.speeds.is_uneven(record.trainer_id):
            costs = learn_leaving(costs, done.size_before, record.progress.batch)
        trainer.watch = watch_from(done, done.size, done.batch, now_s)
        self.speeds.on_rescaled(record.trainer_id, done)
        if not record.failing.count:
            self.quarantine.trains(record.trainer_id, done.nodes, now_s)
        self.budget.on_rescaled(record.trainer_id, done, now_s)
        self._set(trainer, record_updates.rescaled(record, done, costs, now_s))
        self.rescales.append(RescaleNote(record.trainer_id, now_s, done))
        if done.size_before:
            self.pauses += 1
            self.paused_s += done.pause_s
        self._write(trainer, "rescaled", done)
        self._on_change()

    def _on_parked(self, trainer: Trainer, parked: members.Parked) -> None:
        record = trainer.record
        if record.state.is_final:
            return
        self.speeds.forget(record.trainer_id)
        self.figures.forget(record.trainer_id)
        trainer.is_saved = parked.is_saved
        self.lives_lost += not parked.is_saved
        self._set(trainer, record_updates.parked(record, parked, self._clock()))
        self._write(trainer, "parked", parked)
        self._on_change()

    def _end_time(self, trainer: Trainer, now_s: float) -> None:
        """Have a trainer whose time limit is over leave its nodes after a checkpoint."""
        if record_updates.has_time_over(trainer.record, now_s):
            self._replace(trainer, overtime_s=now_s)
            self._write(trainer, "time-limit", {"limit_s": trainer.record.spec.time_limit_s})
            self.on_ended(trainer.record)
            self._on_change()

    def _at_rung(self, trainer: Trainer, done: members.Ended) -> None:
        """Free the nodes of a trial; others of its workers may still be leaving."""
        trainer_id = trainer.record.trainer_id
        self.speeds.forget(trainer_id)
        self.figures.forget(trainer_id)
        self.budget.forget(trainer_id)
        self._set(trainer, record_updates.at_rung(trainer.record, done, self._clock()))
        self._write(trainer, "rung", done)
        self._go_on(trainer)
        self._on_change()

    def _go_on(self, trainer: Trainer) -> None:
        """Give a trial at its rung a new machine, in case its budget grows."""
        if not (trainer.machine.has_workers or trainer.record.state.is_final):
            self._reopen(trainer)
            self._on_change()  # it may have grown already

    def _on_failed(self, trainer: Trainer, failed: members.WorkerFailed) -> None:
        record, failures = trainer.record, trainer.machine.failures
        in_all, trainer_id = record.failures + failed.counts, record.trainer_id
        has_trained = record.started_s is not None
        self._replace(trainer, failures=in_all)
        self._write(trainer, "worker-failed", failed)
        if not happens_anywhere(failed.cause):
            self.quarantine.failed(
                failed.node, trainer_id, failed.cause, self._clock(), has_trained=has_trained
            )
        LOG.warning("worker %s on %s failed: %s", failed.worker_id, failed.node, failed.cause)
        if failures.row.count > 1 or not has_trained:
            trainer.tries.add(failed.log_path)
        why = given_up(failures, trainer.record, self._policy)
        if why is not None:
            reason = f"{failed.said} {why} {failed.next_step}"
            self._finish(trainer_id, TrainerState.FAILED, reason)

    def _finish(self, trainer_id: str, state: TrainerState, reason: str) -> TrainerRecord:
        record = self.records[trainer_id]
        trainer = self.trainers.get(trainer_id)
        if trainer is None or record.state.is_final:
            return record
        self.speeds.forget(trainer_id)
        self.figures.forget(trainer_id)
        self.quarantine.ended(trainer_id)
        self.budget.forget(trainer_id)
        if state is not TrainerState.FINISHED:
            self._handle(trainer, stimuli.TrainerClosed())
        self._replace(
            trainer,
            state=state,
            reason=reason,
            ended_s=self._clock(),
            progress=record_updates.last_progress(record.progress, trainer.machine),
        )
        freed = record_updates.freed(trainer.record, self.records.values())
        for other in freed:
            self._set(self.trainers[other.trainer_id], other)
        self._write(trainer, state.value, {"reason": reason}, freed)
        self.on_ended(trainer.record)
        self._on_change()
        return trainer.record

    # ---- records -----------------------------------------------------------------------

    def _open(self, record: TrainerRecord) -> None:
        opened = opened_of(record, self._policy, self._incarnation, self._steady(), self._journal)
        self.trainers[record.trainer_id] = opened

    def _on_pilot(self, pilot_id: str) -> list[Trainer]:
        return [t for t in self.trainers.values() if t.machine.uses(pilot_id)]

    def _let_go(self) -> None:
        """Keep only the record of a trainer that has ended and has no worker any more."""
        for trainer_id in [i for i, t in self.trainers.items() if t.record.state.is_final]:
            if not (machine := self.trainers[trainer_id].machine).has_workers:
                self._ended_workers[trainer_id] = worker_facts(machine, KEPT_WORKERS)
                del self.trainers[trainer_id]

    def _reopen(self, trainer: Trainer) -> None:
        """Give a trainer that has no workers any more a new machine; workers' numbers go on."""
        opened = opened_of(
            trainer.record,
            self._policy,
            self._incarnation,
            self._steady(),
            self._journal,
            started_workers=trainer.machine.numbers.started_workers,
        )
        trainer.log, trainer.watch, trainer.is_saved = opened.log, None, False

    def _replace(self, trainer: Trainer, **changes: object) -> None:
        self._set(trainer, replace(trainer.record, **changes))  # type: ignore[arg-type]  # field names checked by replace

    def _set(self, trainer: Trainer, record: TrainerRecord) -> None:
        steps_lost = record.lives.lost.step - trainer.record.lives.lost.step
        if steps_lost:  # a user without losses needs no figure
            self.steps_lost[record.spec.user, record.spec.account] += steps_lost
        trainer.record = self.records[record.trainer_id] = record
        self.touched += 1

    def _note(self, trainer_id: str, kind: str, what: object) -> None:
        self._write(self.trainers[trainer_id], kind, what)

    def _write(
        self, trainer: Trainer, kind: str, payload: object, also: Sequence[TrainerRecord] = ()
    ) -> None:
        body = {"trainer_id": trainer.record.trainer_id, "what": payload}
        records = list(map(record_updates.written, (trainer.record, *also)))
        self._journal.note(kind, body, trainers=records)
        trainer.unwritten = None
        self.news.changed(trainer.record.spec)
