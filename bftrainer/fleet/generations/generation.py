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

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

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
    NodesInUse,
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
from bftrainer.fleet.generations.state import (
    PLANNED,
    START,
    Checkpoints,
    Complaint,
    Course,
    CoursePhase,
    Crew,
    Identity,
    NodePlan,
    SerialNumbers,
    SizeRange,
    Trouble,
    WorkerPatience,
)
from bftrainer.fleet.lifecycle import WorkerPhase
from bftrainer.ground import protocol
from bftrainer.ground.fields import shortened
from bftrainer.model.trainer import Mark, TrainerProgress

READY_TIMEOUT_S = 15.0  # control threads answer in milliseconds, except in a stopped process
END_PATIENCE_S = 10.0  # how long other ranks may run on after rank 0 ended
MAX_CAUSE_CHARS = 1000  # of a failure's cause
MAX_REASON_CHARS = 300  # of a complaint's reason within a cause
KILLED_ITS_AGENT = (  # without the node's name: ``failures`` compares causes
    "BFT-1310: The agent of its node was killed while it ran there, and not by the batch system,"
    " which says {}."
)

# Sent to a whole pilot when the batch system takes its node; LSF begins with INT, and sends USR2 at
# the run limit.
TAKES_NODE = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
JOINING = frozenset({WorkerPhase.STARTING, WorkerPhase.WARM})
STEADY = frozenset({WorkerPhase.MEMBER, WorkerPhase.GONE})
HAS_STATE = frozenset({WorkerPhase.MEMBER, WorkerPhase.LEAVING})
MOST_IN_VAIN = 3  # generations in a row; so many are a failure


@dataclass(kw_only=True, eq=False)
class GenerationMachine:
    """State machine of one trainer's membership; its fields are its whole state."""

    identity: Identity
    size_range: SizeRange
    patience: WorkerPatience
    numbers: SerialNumbers = field(default_factory=SerialNumbers)
    plan: NodePlan = field(default_factory=NodePlan)
    crew: Crew = field(default_factory=Crew)
    mark: Mark = field(default_factory=Mark)  # how far it has come
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    course: Course = field(default_factory=Course)
    trouble: Trouble = field(default_factory=Trouble)
    forming: Forming | None = None
    failures: FailureCounts = field(default_factory=FailureCounts)
    stall: Stall = field(default_factory=Stall)
    apart: Apart = field(default_factory=Apart)
    # The journal has the fields of these as fields of the machine.
    INLINE: ClassVar = frozenset(
        {
            "identity",
            "size_range",
            "patience",
            "numbers",
            "plan",
            "crew",
            "mark",
            "checkpoints",
            "course",
            "trouble",
        }
    )
    ADDED: ClassVar = frozenset({"apart"})  # not written while unused; see CONTRIBUTING.md

    def nodes(self) -> NodesInUse:
        """Return the nodes of its members, and of workers starting or warm."""
        training = tuple(worker.node for worker in self.crew.member_workers() if worker.is_alive)
        joining = tuple(worker.node for worker in self.crew.in_phases(*JOINING))
        return NodesInUse(training, joining)

    @property
    def forming_roster(self) -> tuple[str, ...]:
        """The roster of the generation that forms; (): none does."""
        if self.forming is None:
            return ()
        return self.forming.roster

    @property
    def is_settled(self) -> bool:
        """Return whether no worker is about to join or leave."""
        if self.forming is not None or self.course.is_parking:
            return False
        return all(worker.phase in STEADY for worker in self.crew.workers.values())

    @property
    def is_idle(self) -> bool:
        """True if time alone changes nothing: no nodes, no workers, and none is about to come."""
        if self.plan.targets or self.crew.members or self.forming is not None:
            return False
        return not (self.course.is_parking or self.course.is_cancelled or self.has_workers)

    @property
    def has_workers(self) -> bool:
        """Return whether a living worker exists, in whatever phase."""
        return any(worker.is_alive for worker in self.crew.workers.values())

    def uses(self, pilot_id: str) -> bool:
        """Return whether it has, had or may start a worker on this pilot's node."""
        return bool(self.crew.on_pilot(pilot_id)) or self.plan.has_pilot(pilot_id)

    @property
    def has_members(self) -> bool:
        """Return whether some worker may have a state to save."""
        return bool(self.crew.in_phases(*HAS_STATE))

    def has_wound_up(self, now_s: float) -> bool:
        """Return whether it is cancelled and no worker is left, or its time is up."""
        by_s = self.course.ends_by_s
        return by_s is not None and (now_s >= by_s or not self.has_workers)

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
                return self._close(now_s)
            case stimuli.TargetsSet():
                self._set_targets(stimulus)
            case stimuli.WindUp(grace_s=grace_s):
                self.course.cancel(now_s + grace_s)
                self.plan.give((), {})
            case stimuli.SizesSet(n_min=n_min, n_max=n_max, sizes=sizes):
                self.size_range = SizeRange(n_min=n_min, n_max=n_max, sizes=sizes)
            case stimuli.LimitsSet():
                self.patience.join_window_s = stimulus.join_window_s
                self.patience.start_timeout_s = stimulus.start_timeout_s
                self.stall.lease_s = stimulus.no_progress_s
                self.apart = replace(self.apart, patience_s=stimulus.cut_patience_s)
            case stimuli.WorkerMissing(worker_id=worker_id):
                self.crew.workers[worker_id].becomes(WorkerPhase.GONE, now_s, "its agent lacks it")
            case stimuli.TimePassed():
                pass
        return self._advance(now_s)

    def _set_targets(self, targets: stimuli.TargetsSet) -> None:
        self.plan.batches = targets.batches
        if self.course.is_cancelled:
            self.plan.give((), {})
        else:
            self.plan.give(targets.offers, targets.staying)

    # ---- stimuli -------------------------------------------------------------------

    def _on_message(
        self, worker_id: str, body: protocol.Message, now_s: float
    ) -> list[Instruction]:
        worker = self.crew.workers.get(worker_id)
        if worker is None or not worker.is_alive:
            return []
        out: list[Instruction] = []
        self.stall.heard(worker_id, body, self.mark.step, now_s)
        self._note_trouble(worker, body, now_s)
        match body:
            case protocol.Warm() if worker.becomes(WorkerPhase.WARM, now_s):
                worker.warm_since_s = now_s
            case protocol.Ready():
                self._on_ready(worker, body)
            case protocol.Entered() if worker.phase is not WorkerPhase.LEAVING:
                out += self._on_entered(worker, body, now_s)
            case protocol.Progress() if body.step >= self.mark.step:
                self._on_progress(mark_of(body))
            case protocol.Saved() if self.course.is_parking:
                self.checkpoints.is_saved = True
            case protocol.Left():
                worker.has_left = True
                worker.becomes(WorkerPhase.LEAVING, now_s)
            case protocol.Finished():
                worker.is_finished = True
                self.mark = mark_of(body)
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

    def _on_progress(self, mark: Mark) -> None:
        if mark.step > self.mark.step:
            self.trouble.in_vain = 0
        self.mark = mark
        self.failures.progressed(mark, self.crew.nodes_of(self.crew.members))

    def _on_ended(self, ended: stimuli.WorkerEnded, now_s: float) -> list[Instruction]:
        worker = self.crew.workers.get(ended.worker_id)
        if worker is None or not worker.is_alive:
            return []
        out: list[Instruction] = []
        phase_before = worker.phase
        worker.becomes(WorkerPhase.GONE, now_s, f"status {ended.returncode}")
        if ended.returncode == 0 and worker.is_finished:
            # Only rank 0's end ends the trainer: code after the training loop (saving,
            # evaluating) usually runs there.
            if self._is_first(ended.worker_id) and self.course.end():
                self.course.ended_s = now_s
                mark = self.mark
                out.append(Ended(step=mark.step, epoch=mark.epoch, samples=mark.samples))
        elif self._is_fault(phase_before, ended.returncode):
            text = worker.has_failed or ended.cause or describe_exit(ended.returncode)
            out.append(self._failed(worker, shortened(text, MAX_CAUSE_CHARS), now_s))
        return out + self._advance(now_s)

    def _is_first(self, worker_id: str) -> bool:
        """Return whether it has rank 0, or has it once the generation that is committed runs."""
        if worker_id in self.crew.members[:1]:
            return True
        forming = self.forming
        return forming is not None and forming.is_committed and worker_id in forming.roster[:1]

    def _is_fault(self, phase: WorkerPhase, returncode: int) -> bool:
        """Return whether a worker that was in this phase ended otherwise than it was told to."""
        if -returncode in TAKES_NODE:  # a loss
            return False
        if phase is WorkerPhase.MEMBER:
            return not self.course.is_parking
        return phase is not WorkerPhase.LEAVING

    def _close(self, now_s: float) -> list[Instruction]:
        """End everything at once."""
        kills: list[Instruction] = [kill(w, "closed", now_s) for w in self.crew.alive()]
        self.crew.members, self.forming = (), None
        self.course.end()
        return kills

    def _on_agent_lost(self, pilot_id: str, now_s: float) -> list[Instruction]:
        when = Lost(started=self.numbers.started_workers, best=self.failures.row.best)
        for worker in self.crew.on_pilot(pilot_id):
            worker.lost = None
            if worker.is_alive and not worker.has_left:
                worker.lost = when
            worker.becomes(WorkerPhase.GONE, now_s, "its agent is lost")
        self.plan.drop_pilot(pilot_id)
        return self._advance(now_s)

    def _on_agent_failed(self, pilot_id: str, how: str, now_s: float) -> list[Instruction]:
        worker: Worker | None = None
        when: Lost | None = None
        for candidate in self.crew.on_pilot(pilot_id):  # the last that was lost
            if candidate.lost is not None:
                worker, when = candidate, candidate.lost
        if self.course.is_ended or worker is None or when is None:
            return []
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
        forming.note_entered(worker.worker_id, body)
        self.mark = mark_of(body)
        if set(forming.roster) - forming.entered:
            return []
        self.forming = None
        self.trouble.mend()
        self.stall.progressed(now_s)
        size_before = self.crew.enter(forming)
        if not size_before:
            self.failures.started(self.mark)
        return [
            Rescaled(
                generation=forming.generation,
                attempt=forming.attempt,
                size_before=size_before,
                size=len(forming.roster),
                reason=forming.reason,
                pause_s=forming.pause_s,
                formation_s=now_s - forming.started_s,
                step=body.step,
                epoch=body.epoch,
                samples=body.samples,
                nodes=self.crew.nodes_of(forming.roster),
                resumed_from=forming.resumed_from,
                backend=forming.backend,
                batch=forming.batch,
            )
        ]

    def _advance(self, now_s: float) -> list[Instruction]:
        if self.course.is_ended:
            return self._clear_up(now_s)
        self._do_without(now_s)
        out = self._match_workers_to_targets(now_s)
        if self.forming is not None:
            out += self._advance_forming(now_s)
        if self.forming is None:
            out += self._maybe_form(now_s)
        return out

    def _clear_up(self, now_s: float) -> list[Instruction]:
        late = self.crew.alive()
        if now_s - (self.course.ended_s or now_s) <= END_PATIENCE_S:
            late = [worker for worker in late if not self._may_go_on(worker)]
        return [kill(worker, "ended", now_s) for worker in late]

    @property
    def finished_workers(self) -> list[str]:
        """Workers that have come to the end of the training, whether they still live or not."""
        return [w.worker_id for w in self.crew.workers.values() if w.is_finished]

    def _may_go_on(self, worker: Worker) -> bool:
        """Return whether a worker may end by itself after rank 0 has."""
        return worker.is_finished

    def _maybe_form(self, now_s: float) -> list[Instruction]:
        crew, trouble = self.crew, self.trouble
        alive = crew.alive_members()
        is_short = len(alive) < len(crew.members)
        if (is_short and not self.course.is_parking) or trouble.has_waited(now_s):
            trouble.is_broken = True
        out: list[Instruction] = []
        if crew.members and not alive:
            out.append(self._all_gone())
        if self.course.is_parking or crew.is_finishing:
            if self.course.is_parking and not trouble.is_broken and self.stall.has_stalled(now_s):
                trouble.is_broken = True
                out += self._park(now_s)  # again, with ``abandon``: a member hangs
            return out
        if crew.members and self.stall.has_stalled(now_s):
            trouble.is_broken = True
        joiners = self._joiners(now_s)
        staying = [member for member in crew.alive_members() if self._stays(member, joiners)]
        roster = self.size_range.cut_down(staying + joiners)
        if not self._is_news(staying, roster):
            return out
        # Some member must bring the state. Otherwise park: the members write a checkpoint, from
        # which the joiners start.
        if self.size_range.is_enough(len(roster)) and (staying or not crew.members):
            reason = trouble.reason if crew.members else START
            return out + self._prepare(roster, reason, now_s)
        if crew.members:
            out += self._park(now_s)
        return out

    def _is_news(self, staying: Sequence[str], roster: Sequence[str]) -> bool:
        """Return whether this roster is worth a generation: other members, or another batch."""
        members = self.crew.members
        if not members or self.trouble.is_broken:
            return True
        if len(staying) < len(members) or len(roster) > len(members):
            return True
        return self.plan.batch_on(len(roster)) not in (0, self.crew.batch)

    def _stays(self, member: str, joiners: Sequence[str]) -> bool:
        """Return whether a member stays: on its target, or until its replacement trains."""
        node = self.crew.workers[member].node
        if node in self.plan.targets:
            return True
        awaited_node = self.plan.staying.get(node)
        if awaited_node is None:
            return False
        roster = (*self.crew.alive_members(), *joiners)
        return awaited_node not in self.crew.nodes_of(roster)

    def _joiners(self, now_s: float) -> list[str]:
        """Warm workers, once no other is starting or the first has waited long enough."""
        warm: list[Worker] = []
        for worker in self.crew.in_phases(WorkerPhase.WARM):
            is_entering = worker.worker_id in self.crew.members  # committed, but not entered
            if worker.node in self.plan.targets and not is_entering:
                warm.append(worker)
        if not warm:
            return []
        warm.sort(key=since_when_warm)
        waited_s = now_s - (warm[0].warm_since_s or 0.0)
        is_starting = bool(self.crew.in_phases(WorkerPhase.STARTING))
        if is_starting and waited_s < self.patience.join_window_s and not self.trouble.is_broken:
            return []
        return [worker.worker_id for worker in warm]

    def _prepare(self, roster: tuple[str, ...], reason: str, now_s: float) -> list[Instruction]:
        self.numbers.generation += 1
        self.forming = Forming(
            generation=self.numbers.generation,
            attempt=1,
            roster=roster,
            reason=reason,
            started_s=now_s,
            abandon=self.trouble.is_broken,
        )
        self.checkpoints.is_saved = False
        out = self._complain(now_s)
        out.append(Announced(generation=self.numbers.generation))
        self.trouble.interrupted_s = None
        return out + self._send_prepare(self.forming)

    def _send_prepare(self, forming: Forming) -> list[Instruction]:
        forming.waiting = set(forming.roster)
        forming.store_port = 0
        prepare = protocol.Prepare(generation=forming.generation, attempt=forming.attempt)
        first, followers = forming.roster[:1], forming.roster[1:]
        out = self._tell(first, replace(prepare, open_store=True))
        return out + self._tell(followers, prepare)

    def _advance_forming(self, now_s: float) -> list[Instruction]:
        forming, trouble = self.forming, self.trouble
        if forming is None:
            return []
        is_hurt = self.crew.is_short or trouble.interrupted_s is not None
        has_lost = bool(forming.lost(self.crew.workers, self.crew.members, now_s))
        if is_hurt and self.crew.members and not forming.is_committed:
            forming.abandon = True  # there will be no step boundary
        if forming.is_committed:
            if (
                has_lost
                or trouble.has_waited(now_s)
                or (not forming.abandon and self.stall.has_stalled(now_s))  # before the boundary
            ):
                self._reform_after_commit(forming)
            return []
        if has_lost:
            return self._retry(forming, now_s)
        if not forming.waiting and forming.store_port:
            forming.is_committed = True
            trouble.interrupted_s = None  # it concerned the generation that ends now
            return self._send_commit(forming, now_s)
        if now_s - forming.started_s > READY_TIMEOUT_S:
            # If all have answered, rank 0 could not open the store.
            silent = sorted(forming.waiting) or forming.roster[:1]
            return [kill(self.crew.workers[w], "does not answer", now_s) for w in silent]
        return []

    def _retry(self, forming: Forming, now_s: float) -> list[Instruction]:
        """Nothing was committed: retry the same generation without the lost workers."""
        roster = tuple(w for w in forming.roster if self.crew.workers[w].is_alive)
        members = self.crew.members
        is_allowed = len(roster) >= self.size_range.n_min
        is_allowed = is_allowed and self.size_range.cut_down(roster) == roster
        is_stateless = bool(members) and set(members).isdisjoint(roster)
        if self.plan.staying or is_stateless or not is_allowed:
            self.forming = None  # start over: a member that was to leave may have to stay
            return []
        forming.roster = roster
        forming.attempt += 1
        forming.started_s = now_s
        return self._send_prepare(forming)

    def _send_commit(self, forming: Forming, now_s: float) -> list[Instruction]:
        self.stall.told(forming.roster if forming.abandon else (), now_s)
        workers = [self.crew.workers[worker_id] for worker_id in forming.roster]
        forming.batch = self.plan.batch_on(len(forming.roster))
        commit = protocol.Commit(
            generation=forming.generation,
            attempt=forming.attempt,
            token=self._new_token(),
            members=tuple(worker.as_member(rank) for rank, worker in enumerate(workers)),
            store_host=workers[0].address,
            store_port=forming.store_port,
            abandon=forming.abandon,
            incarnation=self.identity.incarnation,
            n_min=self.size_range.n_min,
            batch=forming.batch,
            sizes=self.size_range.sizes,
        )
        return self._tell(dict.fromkeys([*forming.roster, *self.crew.alive_members()]), commit)

    def _new_token(self) -> str:
        self.numbers.commits += 1
        return self.identity.token(self.numbers.generation, self.numbers.commits)

    def _park(self, now_s: float) -> list[Instruction]:
        members, is_broken = self.crew.alive_members(), self.trouble.is_broken
        self.numbers.generation += 1
        self.stall.told(members if is_broken else (), now_s)
        self.course.becomes(CoursePhase.PARKING)
        self.checkpoints.is_saved = False
        commit = protocol.Commit(
            generation=self.numbers.generation,
            attempt=1,
            token=self._new_token(),
            members=(),
            abandon=is_broken,
            incarnation=self.identity.incarnation,
            saver=members[0],
            n_min=self.size_range.n_min,
        )
        return [Announced(generation=self.numbers.generation), *self._tell(members, commit)]

    def _all_gone(self) -> Parked:
        parked = Parked(
            generation=self.numbers.generation,
            size_before=self.crew.size_before,
            is_saved=self.checkpoints.is_saved,
            reason=PLANNED if self.course.is_parking else "all members were lost",
        )
        self._disband()
        return parked

    def _disband(self) -> None:
        """Be open for new members once the last one is gone."""
        self.crew.disband()
        self.course.becomes(CoursePhase.OPEN)
        self.trouble.mend()
        self.checkpoints.passed_over = ""

    def _tell(self, worker_ids: Iterable[str], message: protocol.ToWorker) -> list[Instruction]:
        body = protocol.to_body(message)
        workers = self.crew.workers
        return [Tell(pilot_id=workers[i].pilot_id, worker_id=i, body=body) for i in worker_ids]

    # ---- workers -------------------------------------------------------------------

    def _match_workers_to_targets(self, now_s: float) -> list[Instruction]:
        """Start missing workers; kill joiners that are no longer planned or too slow."""
        out = self._kill_hung(now_s)
        start_patience_s, busy_nodes = self.patience.start_s, set[str]()
        for worker in self.crew.alive():
            kills = self._maybe_kill(worker, start_patience_s, now_s)
            out += kills
            if not kills:
                busy_nodes.add(worker.node)
        if self.crew.is_finishing or not self.failures.may_start(now_s):
            return out
        nodes = self.crew.nodes_of(self.crew.alive_members())
        n_leavers = sum(node not in self.plan.targets for node in nodes)
        for node, offer in sorted(self.plan.targets.items()):
            if node in busy_nodes or self.failures.is_cooling(node, now_s):
                continue
            if len(self.crew.alive()) < self.size_range.n_max + n_leavers:
                out.append(self._start(offer, now_s))
        return out

    def _kill_hung(self, now_s: float) -> list[Instruction]:
        """Kill workers whose loop does not act on a commit: the others wait for them."""
        out: list[Instruction] = []
        for worker_id in self.stall.hung(now_s):
            worker = self.crew.workers[worker_id]
            if worker.is_alive:
                out.append(kill(worker, "no progress", now_s))
                out.append(self._failed(worker, self.stall.cause, now_s))
        return out

    def _maybe_kill(
        self, worker: Worker, start_patience_s: float, now_s: float
    ) -> list[Instruction]:
        """Kill a worker that stays on, is no longer planned, or is too slow to start."""
        if self._is_overdue(worker, now_s):
            return [kill(worker, "stays on", now_s)]
        if worker.phase not in JOINING or worker.worker_id in self.forming_roster:
            return []
        if worker.node not in self.plan.targets:
            return [kill(worker, "no longer planned", now_s)]
        waited_s = now_s - worker.started_s
        if worker.phase is WorkerPhase.STARTING and waited_s > start_patience_s:
            return self._give_up(worker, waited_s, now_s)
        return []

    def _give_up(self, worker: Worker, waited_s: float, now_s: float) -> list[Instruction]:
        """Kill a worker that is too slow to start; the next one has more time."""
        self.patience.slow_start_s = max(self.patience.slow_start_s, waited_s)
        cause = (
            f"It was not ready to train after {waited_s:.0f} s (start_timeout_s); the next one has"
            f" {self.patience.start_s:.0f} s."
        )
        return [kill(worker, "too slow to start", now_s), self._failed(worker, cause, now_s)]

    def _is_overdue(self, worker: Worker, now_s: float) -> bool:
        """Return whether a worker that must leave, or is in no generation any more, hangs."""
        is_leaving = worker.phase is WorkerPhase.LEAVING
        if worker.phase is WorkerPhase.MEMBER:
            is_left_over = self.forming is None and worker.worker_id not in self.crew.members
            is_leaving = self.course.is_parking or is_left_over
        if not is_leaving:
            worker.leaving_since_s = None
            return False
        if worker.leaving_since_s is None:
            worker.leaving_since_s = now_s
        return now_s - worker.leaving_since_s > self.patience.leave_patience_s

    def _start(self, offer: NodeOffer, now_s: float) -> StartWorkerOn:
        self.crew.forget_gone(self.forming_roster)
        self.numbers.started_workers += 1
        worker_id = self.identity.worker_id(self.numbers.started_workers)
        worker = self.crew.workers[worker_id] = worker_on(offer, worker_id, now_s)
        worker.number = self.numbers.started_workers
        worker.log_path = self.identity.log_path(worker_id)
        return StartWorkerOn(
            pilot_id=offer.pilot_id, worker_id=worker_id, node=offer.node, address=offer.address
        )

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
        working = self.numbers.generation
        if self.forming is not None and not self.forming.is_committed:
            working -= 1
        match body:
            case protocol.Interrupted() if body.generation >= working:
                self.trouble.interrupt(Complaint(worker.worker_id, body.reason), now_s)
            case protocol.Unsaved():
                self.checkpoints.not_saved = body.cause
            case protocol.Saved():
                self.checkpoints.not_saved = ""
            case protocol.PassedOver():
                self.checkpoints.passed_over = body.cause
            case protocol.Unreachable():
                self.apart = self.apart.heard(worker.node, body.nodes, now_s)

    def kept_order(self) -> tuple[str, ...]:
        """Return its nodes in the order in which they are kept.

        Members come first, in rank order, so that the state and the store stay where they are.
        """
        nodes = self.crew.nodes_of((*self.crew.members, *self.forming_roster))
        return tuple(dict.fromkeys([*nodes, *sorted(self.plan.targets)]))

    def unreached(self, now_s: float) -> frozenset[str]:
        """Return which of its nodes it does without because others cannot reach them."""
        if not self.apart.pairs:
            return frozenset()
        return self.apart.left_out(now_s, self.kept_order())

    def _do_without(self, now_s: float) -> None:
        """Leave out unreached nodes, and give up a generation with one of them."""
        unreached_nodes = self.unreached(now_s)
        if not unreached_nodes:
            return
        forming, roster = self.forming, self.forming_roster
        self.plan.drop_nodes(unreached_nodes)
        if forming is None or not forming.abandon:
            roster = (*roster, *self.crew.alive_members())
        if self.course.is_parking or unreached_nodes.isdisjoint(self.crew.nodes_of(roster)):
            return
        self.trouble.is_broken = True
        self.trouble.cut = self.apart.sentence(now_s, unreached_nodes)
        if forming is not None and forming.is_committed:
            self._reform_after_commit(forming)
        self.forming = None

    def _complain(self, now_s: float) -> list[Instruction]:
        """Count a generation that broke although all its members live; too many are a failure.

        Not one that a stranger broke: whoever connects often enough would end another's trainer.
        """
        trouble, complaint = self.trouble, self.trouble.take_complaint()
        worker = self.crew.workers.get(complaint.worker_id)
        if not trouble.is_broken or trouble.cut or complaint.is_of_stranger or worker is None:
            return []
        if not self.crew.members or self.crew.is_short:
            return []
        trouble.in_vain += 1
        if trouble.in_vain % MOST_IN_VAIN:
            return []
        why = shortened(complaint.reason, MAX_REASON_CHARS).rstrip(".")
        cause = (
            f"BFT-1341: {trouble.in_vain} generations in a row broke without a step, although all"
            f" members live and reach each other: {why}."
        )
        return [self._failed(worker, cause, now_s)]

    def _reform_after_commit(self, forming: Forming) -> None:
        """Some members may have switched already: keep the union of both memberships."""
        self.crew.members = tuple(dict.fromkeys([*forming.roster, *self.crew.members]))
        self.trouble.is_broken = True
        self.forming = None


def since_when_warm(worker: Worker) -> tuple[float, str]:
    """Return the order of workers that wait to join: the longest first."""
    return worker.warm_since_s or 0.0, worker.worker_id


def mark_of(
    body: protocol.Entered
    | protocol.Progress
    | protocol.Finished
    | Rescaled
    | Regrouped
    | TrainerProgress,
) -> Mark:
    """Return the progress that a message or a record reports."""
    return Mark(step=body.step, epoch=body.epoch, samples=body.samples)
