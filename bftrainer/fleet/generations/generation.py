"""Forms the generations of one trainer: a state machine without I/O.

Starts workers on planned nodes, gives them up, ends them, and decides which train together.

prepare -> ready -> commit -> entered. Survivors never wait for joiners: a joiner becomes part of a
generation only when it is warm. A member that dies breaks its generation; a smaller one is
announced at once with ``abandon``. Generation numbers only grow; ``attempt`` counts the tries to
form one. A generation also breaks when a collective fails without a visible cause, and when the
nodes of two members are apart: then it is given up at once and formed without one of the two. Those
that break again and again without any of this, and without a step between, count as a failure each
``MOST_IN_VAIN`` times, so that they end. Stimuli and the time come in; the daemon executes the
returned instructions in order.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from bftrainer.elastic import protocol
from bftrainer.elastic.fields import shortened
from bftrainer.fleet.generations import stimuli
from bftrainer.fleet.generations.breakage import Apart
from bftrainer.fleet.generations.failures import FailureCounts, Stall
from bftrainer.fleet.generations.members import (
    Announced,
    Ended,
    Forming,
    Instruction,
    Lost,
    NodeOffer,
    Parked,
    Regrouped,
    Rescaled,
    StartWorkerOn,
    Tell,
    Worker,
    WorkerFailed,
    describe_exit,
    kill,
    worker_on,
)
from bftrainer.fleet.lifecycle import WorkerPhase
from bftrainer.model.trainer import Mark, TrainerProgress
from milp.problem import largest_size

READY_TIMEOUT_S = 15.0  # control threads answer in milliseconds, except in a stopped process
END_PATIENCE_S = 10.0  # how long other ranks may run on after rank 0 ended
MAX_CAUSE_CHARS = 1000  # of a failure's cause
KILLED_ITS_AGENT = (  # without the node's name: ``failures`` compares causes
    "BFT-1310: The agent of its node was killed while it ran there, and not by the batch system,"
    " which says {}."
)

# Sent to a whole pilot when the batch system takes its node; LSF begins with INT, and sends USR2 at
# the run limit.
TAKES_NODE = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
MOST_TIMEOUTS = 32.0  # of start_timeout_s, for a worker to start
KEPT_GONE = 200  # workers that are gone, in which a record or a user may be interested
LEAVE_PATIENCE_S = 60.0  # time for a worker to leave: a long step, a checkpoint
LOST = "a member was lost"
INTERRUPTED_PATIENCE_S = 1.0  # wait for the cause of a broken collective
MOST_IN_VAIN = 3
MOST_REASON = 300  # characters


@dataclass(kw_only=True, eq=False)
class GenerationMachine:
    """State machine of one trainer's membership; its fields are its whole state."""

    trainer_id: str
    n_max: int
    start_timeout_s: float
    incarnation: int
    log_directory: str = ""  # of the workers' logs
    leave_patience_s: float = LEAVE_PATIENCE_S
    workers: dict[str, Worker] = field(default_factory=dict)
    members: tuple[str, ...] = ()  # roster of the current generation
    forming: Forming | None = None
    is_parking: bool = False
    ends_by_s: float | None = None  # cancelled: when remaining workers are killed
    failures: FailureCounts = field(default_factory=FailureCounts)
    stall: Stall = field(default_factory=Stall)
    targets: dict[str, NodeOffer] = field(default_factory=dict)  # by node
    slow_start_s: float = 0.0  # the longest that a worker was given to start, in vain
    started_workers: int = 0
    generation: int = 0  # greatest announced
    is_broken: bool = False
    interrupted_s: float | None = None
    apart: Apart = field(default_factory=Apart)
    cut: str = ""  # why the generation that forms goes without members that live
    in_vain: int = 0  # generations in a row that broke without a loss and without a step
    not_saved: str = ""  # why checkpoints are not written
    passed_over: str = ""  # which checkpoints it began without when it last started
    complaint: tuple[str, str] = ("", "")  # the worker that reported the last one broken, and why
    n_min: int
    join_window_s: float
    commit_key: str = field(repr=False)  # secret: tokens of commits are derived from it
    commits: int = 0  # sent so far
    step: int = 0
    epoch: int = 0
    samples: int = 0
    is_saved: bool = False
    is_ended: bool = False
    ended_s: float | None = None
    staying: Mapping[str, str] = field(default_factory=dict)  # see ``TargetsSet``
    size_before: int = 0  # of the last complete generation
    batches: tuple[int, ...] = ()  # see ``TargetsSet``
    batch: int = 0  # of the last complete generation, if it was told one
    sizes: tuple[int, ...] = ()  # the only ones of n_min to n_max that it forms; (): all
    # Not written while unused; see CONTRIBUTING.md.
    ADDED: ClassVar = frozenset(
        {
            "slow_start_s",
            "apart",
            "cut",
            "in_vain",
            "complaint",
            "not_saved",
            "passed_over",
            "sizes",
        }
    )

    def nodes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the nodes of its members, and of workers starting or warm."""
        own = [self.workers[w] for w in self.members if w in self.workers]
        joining = {WorkerPhase.STARTING, WorkerPhase.WARM}
        return (
            tuple(w.node for w in own if w.is_alive),
            tuple(w.node for w in self.workers.values() if w.phase in joining),
        )

    @property
    def is_settled(self) -> bool:
        """Return whether no worker is about to join or leave."""
        steady = {WorkerPhase.MEMBER, WorkerPhase.GONE}
        is_changing = self.forming is not None or self.is_parking
        return not is_changing and all(w.phase in steady for w in self.workers.values())

    @property
    def is_idle(self) -> bool:
        """True if time alone changes nothing: no nodes, no workers, and none is about to come."""
        has_time = bool(self.targets or self.members or self.forming or self.is_parking)
        return not has_time and self.ends_by_s is None and not self.has_workers

    @property
    def has_workers(self) -> bool:
        """Return whether a living worker exists, in whatever phase."""
        return any(worker.is_alive for worker in self.workers.values())

    def uses(self, pilot_id: str) -> bool:
        """Return whether it has, had or may start a worker on this pilot's node."""
        worked = any(w.pilot_id == pilot_id for w in self.workers.values())
        return worked or any(offer.pilot_id == pilot_id for offer in self.targets.values())

    @property
    def has_members(self) -> bool:
        """Return whether some worker may have a state to save."""
        return any(w.phase in {WorkerPhase.MEMBER, WorkerPhase.LEAVING} for w in self._live())

    def has_wound_up(self, now_s: float) -> bool:
        """Return whether it is cancelled and no worker is left, or its time is up."""
        return self.ends_by_s is not None and (not self._live() or now_s >= self.ends_by_s)

    def handle(self, stimulus: stimuli.Stimulus, now_s: float) -> list[Instruction]:
        """Return what has to be done, in order, now that this has happened."""
        match stimulus:
            case stimuli.WorkerMessage(worker_id=worker_id, message=message):
                return self._on_message(worker_id, message, now_s)
            case stimuli.WorkerEnded():
                return self._on_ended(stimulus, now_s)
            case stimuli.AgentLost(pilot_id=pilot_id):
                return self._on_agent_lost(pilot_id, now_s)
            case stimuli.AgentFailed(pilot_id=pilot_id, how=how):
                return self._on_agent_failed(pilot_id, how, now_s)
            case stimuli.TrainerClosed():
                out: list[Instruction] = [kill(w, "closed", now_s) for w in self._live()]
                self.members, self.forming, self.is_ended = (), None, True
                return out
            case stimuli.TargetsSet(offers=offers, staying=staying, batches=batches):
                is_wanted = self.ends_by_s is None
                self.targets = {o.node: o for o in offers} if is_wanted else {}
                self.staying = staying if is_wanted else {}
                self.batches = batches
            case stimuli.WindUp(grace_s=grace_s):
                self.ends_by_s = self.ends_by_s or now_s + grace_s
                self.targets, self.staying = {}, {}
            case stimuli.SizesSet(n_min=n_min, n_max=n_max, sizes=sizes):
                self.n_min, self.n_max, self.sizes = n_min, n_max, sizes
            case stimuli.LimitsSet():
                self.join_window_s = stimulus.join_window_s
                self.start_timeout_s = stimulus.start_timeout_s
                self.stall.lease_s = stimulus.no_progress_s
                self.apart = replace(self.apart, patience_s=stimulus.cut_patience_s)
            case stimuli.WorkerMissing(worker_id=worker_id):
                self.workers[worker_id].becomes(WorkerPhase.GONE, now_s, "its agent lacks it")
            case stimuli.TimePassed():
                pass
        return self._advance(now_s)

    # ---- stimuli -------------------------------------------------------------------

    def _on_message(
        self, worker_id: str, body: protocol.Message, now_s: float
    ) -> list[Instruction]:
        worker = self.workers.get(worker_id)
        if worker is None or not worker.is_alive:
            return []
        out: list[Instruction] = []
        self.stall.heard(worker_id, body, self.step, now_s)
        self._note_trouble(worker, body, now_s)
        match body:
            case protocol.Warm() if worker.becomes(WorkerPhase.WARM, now_s):
                worker.warm_since_s = now_s
            case protocol.Ready():
                self._on_ready(worker, body)
            case protocol.Entered() if worker.phase is not WorkerPhase.LEAVING:
                out += self._on_entered(worker, body, now_s)
            case protocol.Progress() if body.step >= self.step:
                self.in_vain = self.in_vain if body.step == self.step else 0
                self.step, self.epoch, self.samples = body.step, body.epoch, body.samples
                known = (self.workers.get(w) for w in self.members)
                self.failures.progressed(mark_of(body), (w.node for w in known if w))
            case protocol.Saved():
                self.is_saved = self.is_saved or self.is_parking
            case protocol.Left():
                worker.has_left = True
                worker.becomes(WorkerPhase.LEAVING, now_s)
            case protocol.Finished():
                worker.is_finished = True
                self.step, self.epoch, self.samples = body.step, body.epoch, body.samples
            case protocol.Failed():
                worker.has_failed = f"{body.code}: {body.cause} {body.next_step}"
                worker.place = body.place
            case _:
                pass
        return out if self._is_one_of_many(body) else out + self._advance(now_s)

    def _is_one_of_many(self, body: protocol.Message) -> bool:
        """Return whether nothing follows from a message before others, or time, have come.

        Looking at all workers after each message would cost the square of their number.
        """
        if isinstance(body, protocol.Progress):
            return True
        if self.forming is None or not isinstance(body, protocol.Ready | protocol.Entered):
            return False
        return self.forming.is_committed or bool(self.forming.waiting)

    def _on_ended(self, ended: stimuli.WorkerEnded, now_s: float) -> list[Instruction]:
        worker_id, returncode = ended.worker_id, ended.returncode
        worker = self.workers.get(worker_id)
        if worker is None or not worker.is_alive:
            return []
        out: list[Instruction] = []
        was = worker.phase
        worker.becomes(WorkerPhase.GONE, now_s, f"status {returncode}")
        if returncode == 0 and worker.is_finished:
            # Only rank 0's end ends the trainer: code after the training loop (saving,
            # evaluating) usually runs there.
            forming = self.forming
            first = self.members[:1]  # of the next generation, too, once that is committed
            first += forming.roster[:1] if forming and forming.is_committed else ()
            if not self.is_ended and worker_id in first:
                self.is_ended, self.ended_s = True, now_s
                out.append(Ended(step=self.step, epoch=self.epoch, samples=self.samples))
        elif not (
            was is WorkerPhase.LEAVING
            or (was is WorkerPhase.MEMBER and self.is_parking)
            or -returncode in TAKES_NODE  # a loss
        ):
            text = worker.has_failed or ended.cause or describe_exit(returncode)
            out.append(self._failed(worker, shortened(text, MAX_CAUSE_CHARS), now_s))
        return out + self._advance(now_s)

    def _on_agent_lost(self, pilot_id: str, now_s: float) -> list[Instruction]:
        for worker in self.workers.values():
            if worker.pilot_id == pilot_id:
                lost = Lost(started=self.started_workers, best=self.failures.row.best)
                worker.lost = lost if worker.is_alive and not worker.has_left else None
                worker.becomes(WorkerPhase.GONE, now_s, "its agent is lost")
        self.targets = {n: o for n, o in self.targets.items() if o.pilot_id != pilot_id}
        return self._advance(now_s)

    def _on_agent_failed(self, pilot_id: str, how: str, now_s: float) -> list[Instruction]:
        lost = [(w, w.lost) for w in self.workers.values() if w.pilot_id == pilot_id and w.lost]
        if self.is_ended or not lost:
            return []
        worker, when = lost[-1]
        is_further = self.failures.row.best != when.best  # the others progressed, or it did since
        if is_further or not self.failures.lost(worker.number, when.started):
            return []
        return [self._failed(worker, KILLED_ITS_AGENT.format(how), now_s), *self._advance(now_s)]

    # ---- formation -----------------------------------------------------------------

    def _on_ready(self, worker: Worker, body: protocol.Ready) -> None:
        forming = self.forming
        if forming is None or forming.key != (body.generation, body.attempt):
            return
        forming.waiting.discard(worker.worker_id)
        forming.store_port = body.store_port or forming.store_port

    def _on_entered(
        self, worker: Worker, body: protocol.Entered, now_s: float
    ) -> list[Instruction]:
        forming = self.forming
        worker.becomes(WorkerPhase.MEMBER, now_s)
        worker.first_generation = worker.first_generation or body.generation
        if forming is None or body.generation != forming.generation:
            return []
        forming.entered.add(worker.worker_id)
        forming.pause_s = max(forming.pause_s, body.pause_s)
        forming.resumed_from = forming.resumed_from or body.resumed_from
        forming.backend = max(forming.backend, body.backend, key=len)
        self.step, self.epoch, self.samples = body.step, body.epoch, body.samples
        if set(forming.roster) - forming.entered:
            return []
        self.forming, self.members = None, forming.roster
        self.is_broken, self.interrupted_s, self.cut = False, None, ""
        self.batch = forming.batch
        self.stall.progressed(now_s)
        before, self.size_before = self.size_before, len(forming.roster)
        if not before:
            self.failures.started(mark_of(body))
        return [
            Rescaled(
                generation=forming.generation,
                attempt=forming.attempt,
                size_before=before,
                size=len(forming.roster),
                reason=forming.reason,
                pause_s=forming.pause_s,
                formation_s=now_s - forming.started_s,
                step=body.step,
                epoch=body.epoch,
                samples=body.samples,
                nodes=self._nodes_of(forming.roster),
                resumed_from=forming.resumed_from,
                backend=forming.backend,
                batch=forming.batch,
            )
        ]

    def _advance(self, now_s: float) -> list[Instruction]:
        if self.is_ended:
            return self._clear_up(now_s)
        self._do_without(now_s)
        out = self._match_workers_to_targets(now_s)
        if self.forming is not None:
            out += self._advance_forming(now_s)
        if self.forming is None:
            out += self._maybe_form(now_s)
        return out

    def _clear_up(self, now_s: float) -> list[Instruction]:
        late = now_s - (self.ended_s or now_s) > END_PATIENCE_S
        return [kill(w, "ended", now_s) for w in self._live() if late or not self._may_go_on(w)]

    @property
    def finished_workers(self) -> list[str]:
        """Workers that have come to the end of the training, whether they still live or not."""
        return [w.worker_id for w in self.workers.values() if w.is_finished]

    def _may_go_on(self, worker: Worker) -> bool:
        """Return whether a worker may end by itself after rank 0 has."""
        return worker.is_finished

    def _maybe_form(self, now_s: float) -> list[Instruction]:
        alive = self._alive_members()
        if (len(alive) < len(self.members) and not self.is_parking) or self._has_waited(now_s):
            self.is_broken = True
        out = self._all_gone() if self.members and not alive else []
        if self.is_parking or self._is_finishing():
            if self.is_parking and not self.is_broken and self.stall.has_stalled(now_s):
                self.is_broken = True
                out += self._park(now_s)  # again, with ``abandon``: a member hangs
            return out
        self.is_broken |= bool(self.members) and self.stall.has_stalled(now_s)
        joiners = self._joiners(now_s)
        keep = [m for m in self._alive_members() if self._is_kept(m, joiners)]
        roster = self._cut_down(keep + joiners)
        is_changed = self.is_broken or len(keep) < len(self.members)
        is_same = self.members and not is_changed and len(roster) <= len(self.members)
        if is_same and self._batch_of(len(roster)) in (0, self.batch):
            return out
        reason = self.cut or LOST if self.is_broken else "planned"
        # Some member must bring the state. Otherwise park: the members write a checkpoint, from
        # which the joiners start.
        if len(roster) >= max(1, self.n_min) and (keep or not self.members):
            reason = reason if self.members else "start"
            return out + self._prepare(roster, reason, now_s)
        return out + (self._park(now_s) if self.members else [])

    def _cut_down(self, workers: Sequence[str]) -> tuple[str, ...]:
        """Return the first of these, as many as its sizes allow."""
        some = tuple(workers)[: self.n_max]
        return some[: largest_size(len(some), 1, self.n_max, self.sizes)] if self.sizes else some

    def _batch_of(self, size: int) -> int:
        """The global batch on so many nodes; 0: none is told."""
        return self.batches[size - 1] if 0 < size <= len(self.batches) else 0

    def _is_kept(self, member: str, joiners: Sequence[str]) -> bool:
        node = self.workers[member].node
        awaited = None if node in self.targets else self.staying.get(node)
        if awaited is None:
            return node in self.targets
        return all(self.workers[w].node != awaited for w in (*self._alive_members(), *joiners))

    def _joiners(self, now_s: float) -> list[str]:
        """Warm workers, once no other is starting or the first has waited long enough."""
        warm = [
            w
            for w in self.workers.values()
            if w.phase is WorkerPhase.WARM
            and w.node in self.targets
            and w.worker_id not in self.members  # committed, but not entered
        ]
        if not warm:
            return []
        starting = [w for w in self._live() if w.phase is WorkerPhase.STARTING]
        first = min(w.warm_since_s or 0.0 for w in warm)
        if starting and now_s - first < self.join_window_s and not self.is_broken:
            return []
        warm.sort(key=lambda w: (w.warm_since_s or 0.0, w.worker_id))
        return [w.worker_id for w in warm]

    def _prepare(self, roster: tuple[str, ...], reason: str, now_s: float) -> list[Instruction]:
        self.generation += 1
        self.forming = Forming(
            generation=self.generation,
            attempt=1,
            roster=roster,
            reason=reason,
            started_s=now_s,
            abandon=self.is_broken,
        )
        self.is_saved = False
        out: list[Instruction] = [*self._complain(now_s), Announced(generation=self.generation)]
        self.interrupted_s = None
        return out + self._send_prepare(self.forming)

    def _send_prepare(self, forming: Forming) -> list[Instruction]:
        forming.waiting = set(forming.roster)
        forming.store_port = 0
        prepare = protocol.Prepare(generation=forming.generation, attempt=forming.attempt)
        first, others = forming.roster[:1], forming.roster[1:]
        return [*self._tell(first, replace(prepare, open_store=True)), *self._tell(others, prepare)]

    def _advance_forming(self, now_s: float) -> list[Instruction]:
        forming = self.forming
        if forming is None:
            return []
        lost = forming.lost(self.workers, self.members, now_s)
        is_hurt = len(self._alive_members()) < len(self.members) or self.interrupted_s is not None
        if is_hurt and self.members and not forming.is_committed:
            forming.abandon = True  # there will be no step boundary
        if forming.is_committed and (
            lost
            or self._has_waited(now_s)
            or (not forming.abandon and self.stall.has_stalled(now_s))  # before the step boundary
        ):
            return self._reform_after_commit(forming)
        if lost:
            return self._retry(forming, now_s)
        if not forming.is_committed and not forming.waiting and forming.store_port:
            forming.is_committed = True
            self.interrupted_s = None  # it concerned the generation that ends now
            return self._send_commit(forming, now_s)
        if not forming.is_committed and now_s - forming.started_s > READY_TIMEOUT_S:
            # If all have answered, rank 0 could not open the store.
            silent = sorted(forming.waiting) or forming.roster[:1]
            return [kill(self.workers[w], "does not answer", now_s) for w in silent]
        return []

    def _retry(self, forming: Forming, now_s: float) -> list[Instruction]:
        """Nothing was committed: retry the same generation without the lost workers."""
        roster = tuple(w for w in forming.roster if self.workers[w].is_alive)
        has_member = any(w in self.members for w in roster)
        is_short = len(roster) < self.n_min or self._cut_down(roster) != roster
        is_short = is_short or bool(self.staying)
        if is_short or (self.members and not has_member):
            self.forming = None  # start over: a member that was to leave may have to stay
            return []
        forming.roster = roster
        forming.attempt += 1
        forming.started_s = now_s
        return self._send_prepare(forming)

    def _send_commit(self, forming: Forming, now_s: float) -> list[Instruction]:
        self.stall.told(forming.roster if forming.abandon else (), now_s)
        first = self.workers[forming.roster[0]]
        forming.batch = self._batch_of(len(forming.roster))
        commit = protocol.Commit(
            generation=forming.generation,
            attempt=forming.attempt,
            token=self._new_token(),
            members=tuple(self.workers[w].as_member(rank) for rank, w in enumerate(forming.roster)),
            store_host=first.address,
            store_port=forming.store_port,
            abandon=forming.abandon,
            incarnation=self.incarnation,
            n_min=self.n_min,
            batch=forming.batch,
            sizes=self.sizes,
        )
        return self._tell(dict.fromkeys([*forming.roster, *self._alive_members()]), commit)

    def _new_token(self) -> str:
        """Derive the token of a commit: unique, and the same when replayed."""
        self.commits += 1
        name = f"{self.commit_key}-{self.incarnation}-{self.generation}-{self.commits}"
        return hashlib.sha256(name.encode()).hexdigest()[:32]

    def _park(self, now_s: float) -> list[Instruction]:
        self.generation += 1
        self.stall.told(self._alive_members() if self.is_broken else (), now_s)
        self.is_parking, self.is_saved = True, False
        commit = protocol.Commit(
            generation=self.generation,
            attempt=1,
            token=self._new_token(),
            members=(),
            abandon=self.is_broken,
            incarnation=self.incarnation,
            saver=self._alive_members()[0],
            n_min=self.n_min,
        )
        out: list[Instruction] = [Announced(generation=self.generation)]
        return out + self._tell(self._alive_members(), commit)

    def _all_gone(self) -> list[Instruction]:
        parked = Parked(
            generation=self.generation,
            size_before=self.size_before,
            is_saved=self.is_saved,
            reason="planned" if self.is_parking else "all members were lost",
        )
        self.members, self.size_before = (), 0
        self.is_parking = self.is_broken = False
        self.interrupted_s, self.cut, self.passed_over = None, "", ""
        return [parked]

    def _tell(self, worker_ids: Iterable[str], message: protocol.ToWorker) -> list[Instruction]:
        body = protocol.to_body(message)
        return [Tell(pilot_id=self.workers[i].pilot_id, worker_id=i, body=body) for i in worker_ids]

    # ---- workers -------------------------------------------------------------------

    def _match_workers_to_targets(self, now_s: float) -> list[Instruction]:
        """Start missing workers; kill joiners that are no longer planned or too slow."""
        out: list[Instruction] = []
        for worker in [self.workers[w] for w in self.stall.hung(now_s)]:
            if worker.is_alive:  # its loop does not act on a commit: the others wait for it
                out.append(kill(worker, "no progress", now_s))
                out.append(self._failed(worker, self.stall.cause, now_s))
        patience_s, busy_nodes = self._start_patience_s, set()
        for worker in self.workers.values():
            if not worker.is_alive:
                continue
            idle_phase = worker.phase in {WorkerPhase.STARTING, WorkerPhase.WARM}
            in_roster = self.forming is not None and worker.worker_id in self.forming.roster
            if self._is_overdue(worker, now_s):
                out.append(kill(worker, "stays on", now_s))
                continue
            if idle_phase and not in_roster and worker.node not in self.targets:
                out.append(kill(worker, "no longer planned", now_s))
                continue
            waited_s = now_s - worker.started_s
            if worker.phase is WorkerPhase.STARTING and waited_s > patience_s and not in_roster:
                out += self._give_up(worker, waited_s, now_s)
                continue
            busy_nodes.add(worker.node)
        if self._is_finishing() or not self.failures.may_start(now_s):
            return out
        leavers = [m for m in self._alive_members() if self.workers[m].node not in self.targets]
        for node, offer in sorted(self.targets.items()):
            if node in busy_nodes or self.failures.is_cooling(node, now_s):
                continue
            if len(self._live()) < self.n_max + len(leavers):
                out.append(self._start(offer, now_s))
        return out

    @property
    def _start_patience_s(self) -> float:
        """Time that a worker may take to start: twice what was too little before."""
        most_s = MOST_TIMEOUTS * self.start_timeout_s
        return max(self.start_timeout_s, min(2.0 * self.slow_start_s, most_s))

    def _give_up(self, worker: Worker, waited_s: float, now_s: float) -> list[Instruction]:
        """Kill a worker that is too slow to start; the next one has more time."""
        self.slow_start_s = max(self.slow_start_s, waited_s)
        cause = (
            f"It was not ready to train after {waited_s:.0f} s (start_timeout_s); the next one has"
            f" {self._start_patience_s:.0f} s."
        )
        return [kill(worker, "too slow to start", now_s), self._failed(worker, cause, now_s)]

    def _is_overdue(self, worker: Worker, now_s: float) -> bool:
        """Return whether a worker that must leave, or is in no generation any more, hangs."""
        is_left_over = worker.phase is WorkerPhase.MEMBER and (
            self.is_parking or (self.forming is None and worker.worker_id not in self.members)
        )
        if not is_left_over and worker.phase is not WorkerPhase.LEAVING:
            worker.leaving_since_s = None
            return False
        if worker.leaving_since_s is None:
            worker.leaving_since_s = now_s
        return now_s - worker.leaving_since_s > self.leave_patience_s

    def _start(self, offer: NodeOffer, now_s: float) -> StartWorkerOn:
        self._forget_gone()
        self.started_workers += 1
        worker_id = f"{self.trainer_id}-{self.incarnation}-{self.started_workers}"
        worker = self.workers[worker_id] = worker_on(offer, worker_id, now_s)
        worker.number = self.started_workers
        worker.log_path = f"{self.log_directory}/{worker_id}.log" if self.log_directory else ""
        return StartWorkerOn(
            pilot_id=offer.pilot_id, worker_id=worker_id, node=offer.node, address=offer.address
        )

    def _forget_gone(self) -> None:
        """Drop the oldest of very many workers that are gone."""
        needed = {*self.members, *(self.forming.roster if self.forming else ())}
        gone = [i for i, w in self.workers.items() if not w.is_alive and i not in needed]
        for worker_id in gone[:-KEPT_GONE]:
            del self.workers[worker_id]

    def _live(self) -> list[Worker]:
        return [w for w in self.workers.values() if w.is_alive]

    def _alive_members(self) -> list[str]:
        return [
            m
            for m in self.members
            if m in self.workers
            and self.workers[m].is_alive
            and self.workers[m].phase is not WorkerPhase.LEAVING
        ]

    def _is_finishing(self) -> bool:
        return any(w.is_finished for w in self.workers.values() if w.is_alive)

    def _failed(self, worker: Worker, cause: str, now_s: float) -> WorkerFailed:
        """Record that a worker failed, or was killed for its own fault."""
        self.stall.acted(worker.worker_id)
        counts = self.failures.note(worker.node, cause, worker.log_path, now_s, place=worker.place)
        return WorkerFailed(
            worker_id=worker.worker_id,
            node=worker.node,
            cause=cause,
            next_step=f"Read its log: {worker.log_path}.",
            log_path=worker.log_path,
            counts=counts,
            place=worker.place,
        )

    # ---- broken generations --------------------------------------------------------

    def _note_trouble(self, worker: Worker, body: protocol.Message, now_s: float) -> None:
        # Reports on generations before the one that members are in or entering are ignored.
        working = self.generation - bool(self.forming and not self.forming.is_committed)
        match body:
            case protocol.Interrupted() if body.generation >= working:
                # Usually the cause reaches us too, as the death of a member.
                if self.interrupted_s is None:
                    self.interrupted_s, self.complaint = now_s, (worker.worker_id, body.reason)
            case protocol.Unsaved():
                self.not_saved = body.cause
            case protocol.Saved():
                self.not_saved = ""
            case protocol.PassedOver():
                self.passed_over = body.cause
            case protocol.Unreachable():
                self.apart = self.apart.heard(worker.node, body.nodes, now_s)

    def kept_order(self) -> tuple[str, ...]:
        """Return its nodes in the order in which they are kept.

        Members come first, in rank order, so that the state and the store stay where they are.
        """
        roster = (*self.members, *(self.forming.roster if self.forming else ()))
        return tuple(dict.fromkeys([*self._nodes_of(roster), *sorted(self.targets)]))

    def unreached(self, now_s: float) -> frozenset[str]:
        """Return which of its nodes it does without because others cannot reach them."""
        if not self.apart.pairs:
            return frozenset()
        return self.apart.left_out(now_s, self.kept_order())

    def _do_without(self, now_s: float) -> None:
        """Leave out unreached nodes, and give up a generation with one of them."""
        gone = self.unreached(now_s)
        if not gone:
            return
        forming = self.forming
        roster = forming.roster if forming else ()
        self.targets = {n: o for n, o in self.targets.items() if n not in gone}
        if forming is None or not forming.abandon:
            roster = (*roster, *self._alive_members())
        if self.is_parking or gone.isdisjoint(self._nodes_of(roster)):
            return
        self.is_broken, self.cut = True, self.apart.sentence(now_s, gone)
        if forming is not None and forming.is_committed:
            self._reform_after_commit(forming)
        self.forming = None

    def _complain(self, now_s: float) -> list[Instruction]:
        """Count a generation that broke although all its members live; too many are a failure."""
        (name, why), self.complaint = self.complaint, ("", "")
        worker = self.workers.get(name)
        is_intact = self.members and len(self._alive_members()) == len(self.members)
        if not self.is_broken or self.cut or worker is None or not is_intact:
            return []
        self.in_vain += 1
        if self.in_vain % MOST_IN_VAIN:
            return []
        cause = (
            f"BFT-1341: {self.in_vain} generations in a row broke without a step, although all"
            f" members live and reach each other: {shortened(why, MOST_REASON).rstrip('.')}."
        )
        return [self._failed(worker, cause, now_s)]

    def _has_waited(self, now_s: float) -> bool:
        """Return whether a reported broken collective has had no visible cause for too long."""
        return (
            self.interrupted_s is not None and now_s - self.interrupted_s > INTERRUPTED_PATIENCE_S
        )

    def _reform_after_commit(self, forming: Forming) -> list[Instruction]:
        """Some members may have switched already: keep the union of both memberships."""
        union = dict.fromkeys([*forming.roster, *self.members])
        self.members = tuple(union)
        self.is_broken = True
        self.forming = None
        return []

    def _nodes_of(self, roster: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.workers[w].node for w in roster if w in self.workers)


def mark_of(
    body: protocol.Entered | protocol.Progress | Rescaled | Regrouped | TrainerProgress,
) -> Mark:
    """Return the progress that a message or a record reports."""
    return Mark(step=body.step, epoch=body.epoch, samples=body.samples)
