"""bftrainer beside a simulated machine: its polls, announcements, decisions and orders in time.

What the daemon keeps, its own parts keep here: its pilots are in a ``PilotBook``, cancels go
through its ``CancelQueue``, what the hook announces through its ``UnseenAnnouncements``, polls are
called for by its ``PollCalls``, its ``PilotRefusals`` pause requests that are refused or in vain,
and its ``HarmBook`` measures hand-overs and backs off. This module gives them the machine's clock,
carries their orders out on it (``SimulatedSlurm``) and counts. docs/design/simulator.md says what
is imitated still.

The times are the daemon's own on a real cluster (measured at 9896483a): a line of the
hook is read within 0.02 s, a look takes 0.1 s, an agent that is told to leave is gone 0.05 s
later, ``sbatch`` and ``scancel`` take 0.05 s each, in a thread of their own each. A daemon with a
hook decides at every event and once a second; here at every event, ``AFTER_S`` after the last one,
and ``RECHECK_S`` apart, which decides the same but for that much time.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bftrainer.batch.announcer import Announcement, UnseenAnnouncements
from bftrainer.batch.batch_system import PilotRequest
from bftrainer.batch.rate_limit import PollRateLimiter
from bftrainer.daemon.harm.book import HarmBook
from bftrainer.daemon.harm.ledger import Farewell
from bftrainer.daemon.poll_calls import PollCalls
from bftrainer.daemon.poller import rules_of
from bftrainer.decide import cycles
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.fleet.pilots.cancels import CancelOrder, CancelQueue
from bftrainer.fleet.pilots.launches import LaunchAnswers
from bftrainer.fleet.pilots.pilots import SIGNAL, STARTS_S, Pilot, PilotBook
from bftrainer.fleet.pilots.refusals import PilotRefusals
from bftrainer.lab.site.batch_system import NoJournal, SimulatedSlurm
from bftrainer.lab.site.looks import EPOCH_S, ORDINARY, MachineLooks, node_number
from bftrainer.lab.site.losses import HELD, PASSED, QUEUED, RELEASED, STARTING, Causes, cause_of
from bftrainer.lab.site.machine import (
    Machine,
    Neighbour,
    Preemptable,
    SiteJob,
)
from bftrainer.lab.site.occupancy import SiteTimeline
from bftrainer.lab.site.scheduler import queue_of, startable
from bftrainer.lab.site.timeline import positions
from bftrainer.model.cluster import PART_MARK, STAND_IN, Node, Snapshot
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Plan, Release
from bftrainer.model.errors import BatchSystemError
from bftrainer.model.parts import Lend, as_lent
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from bftrainer.site.policy.model import SitePolicy, settings_of

TRAINER = "t1"
TOLD = "told"  # as an agent calls it that a message of the daemon asked to leave
OWNER = "bft"  # of all pilots
POLL_INTERVALS = ("poll_interval_s", "poll_interval_with_hook_s")
HEARD_S, LOOK_S, LEAVE_S, ORDER_S = 0.02, 0.1, 0.05, 0.05
LOOK_REQUESTS = 2  # nodes and jobs
DECIDED_S = 0.0  # of the machine's time
AFTER_S = (1.0, 3.1)  # a pass of the main scheduler, and one of its longest
RECHECK_S = 5.0
MAIN_PASS_S = 3.0  # who knew so long before a cycle could have made room for it
NO_LOG = logging.getLogger("bftrainer.lab.site")
NO_LOG.disabled = True  # who plays cannot do what a warning of a simulated daemon asks for


class Core:
    """The decision and what it remembers, beside one machine."""

    def __init__(
        self,
        machine: Machine,
        *,
        start_s: float = 0.0,
        poll_s: float | None = None,
        policy_values: Mapping[str, Any] = MappingProxyType({}),
        lend: Lend = Lend.NODES,
        lending: Sequence[Node] = (),
    ) -> None:
        """Begin without a memory.

        Args:
            machine: to be beside of.
            start_s: of a worker, until its first step.
            poll_s: between two looks; None: the default.
            policy_values: of the site's policy, where they are not the defaults.
            lend: whole nodes, or GPUs where nodes are shared (the site's policy).
            lending: the nodes as they lend GPUs while they are idle (``MachineLooks``).
        """
        self._machine, self.start_s, self.lend = machine, start_s, lend
        self._began_s: dict[tuple[str, str], float] = {}  # node and trainer -> worker started
        self.on_started: Callable[[], None] = lambda: None
        intervals_s: dict[str, Any] = {}  # keys of the policy
        if poll_s is not None:
            intervals_s = dict.fromkeys(POLL_INTERVALS, poll_s)
        policy = SitePolicy(**intervals_s, **policy_values)
        looks = MachineLooks(machine, shows_gpus=lend is not Lend.NODES, lending=lending)
        self.slurm = SimulatedSlurm(machine, looks)
        self.settings = replace(settings_of(policy, self.slurm), lend=lend)
        self.calls = PollCalls(rules_of(policy, has_hook=True))
        self.harm = HarmBook(policy, EPOCH_S + machine.now_s)
        self.refusals = PilotRefusals(clock=lambda: machine.now_s, log=NO_LOG)
        self._announced = UnseenAnnouncements(lambda: machine.now_s)
        self._policy = load_policy(policy.policy)
        self._memory = Memory()
        self.snapshot: Snapshot | None = None
        self.not_used: Mapping[str, str] = {}  # of the last decision
        self.given_back: set[str] = set()  # pilots that were released for a job
        self.cpu_s, self.n_decisions = 0.0, 0
        self.training: Mapping[str, str] = {}  # of the last decision: node -> trainer
        self._looks = looks
        self._lent: Snapshot | None = None
        self._unstepped = set[str]()  # trainers of which a pilot has ended since their last step
        has_parts = lend is not Lend.NODES and bool(machine.settings.capacities)
        spec = TrainerSpec(
            name="a",
            user="b",
            script="/dev/null",
            n_min=1,
            n_max=self.n_parts,
            gpus_per_unit=int(has_parts),
        )
        self._trainers: tuple[TrainerRecord, ...] = (
            TrainerRecord(
                trainer_id=TRAINER, spec=spec, state=TrainerState.RUNNING, submitted_s=EPOCH_S
            ),
        )

    @property
    def pace(self) -> PollRateLimiter:
        """When the next look is due."""
        return self.calls.pace

    @property
    def n_parts(self) -> int:
        """Return how many workers could run on all of the machine: one a node, or one a GPU."""
        settings = self._machine.settings
        if self.lend is Lend.NODES or not settings.capacities:
            return settings.n_nodes
        return sum(max(1, capacity.n_gpus) for capacity in settings.capacities)

    # ---- what is seen --------------------------------------------------------------------

    def look(self) -> Snapshot:
        """Return what a look at the machine shows now."""
        self._lent = as_lent(self.slurm.snapshot(), self.lend, self._lent)
        return self._lent

    def take(self, snapshot: Snapshot, began_s: float) -> bool:
        """Take a look over; whether it left out a job that was announced."""
        self.snapshot = self._announced.add_to(snapshot, began_s)
        return bool(self._announced.is_unshown)

    def waits_for_cycle(self, pilots: Sequence[PilotView]) -> bool:
        """Return whether anything depends on the outcome of the scheduler's next cycle."""
        return cycles.is_awaited(self._memory, pilots)

    def hear(self, job: SiteJob, *, is_end: bool) -> None:
        """Take over what the hook says of a job."""
        at_s = float(math.floor(EPOCH_S + self._machine.now_s))
        queue = job.spec.partition or ORDINARY
        if is_end:
            nodes, job_id = self._looks.names(job.nodes), str(job.spec.number)
            announcement = Announcement(at_s=at_s, partition=queue, nodes=nodes, job_id=job_id)
        else:
            stand_in = f"{STAND_IN}{job.spec.number}"
            view = self._looks.job(job, stand_in, is_waiting=True)
            view = dataclasses.replace(view, reason="", priority=0.0)
            announcement = Announcement(at_s=at_s, partition=queue, job=view)
        if self._announced.hear((announcement,)) and self.snapshot is not None:
            self.snapshot = self._announced.add_to(self.snapshot)
        self.calls.heard((announcement,), self._machine.now_s)

    # ---- what is decided -----------------------------------------------------------------

    def decide(self, pilots: Sequence[PilotView], *, is_new: bool) -> Plan:
        """Decide now, and let trainers follow the plan."""
        if self.snapshot is None:
            raise RuntimeError("a decision before the first look")
        held_nodes = {view.node for view in pilots if view.is_held and not view.is_leaving}
        self.training = self._training(held_nodes)
        self._step()
        now_s = EPOCH_S + self._machine.now_s
        pilot_nodes = {view.node for view in pilots}
        trainers, memory = self.refusals.allowed(self._trainers, self._memory, pilot_nodes)
        facts = DecisionInput(
            now_s=now_s,
            snapshot=self.snapshot,
            is_new_snapshot=is_new,
            pilots=tuple(pilots),
            trainers=tuple(trainers),
            settings=self.harm.applied(self.settings, now_s),
            memory=memory,
            may_claim=self.refusals.may_claim(trainers),
            training=self.training,
            cooling=self.harm.cooling(now_s),
        )
        began_s = time.process_time()
        plan = decide(facts, self._policy)
        self.cpu_s += time.process_time() - began_s
        self.n_decisions += 1
        self._memory, self.not_used = plan.memory, plan.not_used
        for release in plan.releases:
            if release.for_job:
                self.given_back.add(release.pilot_id)
        self.harm.decided(facts, plan, DECIDED_S)
        self._follow(plan)
        return plan

    def _training(self, held_nodes: AbstractSet[str]) -> Mapping[str, str]:
        """Return the trainer on each node; one trainer takes all."""
        return self._started(dict.fromkeys(held_nodes, TRAINER))

    def _started(self, running: Mapping[str, str]) -> Mapping[str, str]:
        """Return on which nodes workers have started, of those on which they run."""
        now_s, before = self._machine.now_s, self._began_s
        self._began_s = {pair: before.get(pair, now_s) for pair in running.items()}
        if self.start_s and self._began_s.keys() - before.keys():
            self._machine.at(now_s + self.start_s, self.on_started)
        return {n: t for (n, t), at_s in self._began_s.items() if at_s + self.start_s <= now_s}

    @property
    def records(self) -> Mapping[str, TrainerRecord]:
        """The trainers that decisions see, by their ids."""
        return {record.trainer_id: record for record in self._trainers}

    def pilot_ended(self, pilot: Pilot) -> None:
        """Note that a trainer has used up a pilot."""
        self._unstepped.add(pilot.for_trainer)

    def _step(self) -> None:
        """Let trainers that train have made a step since a pilot of theirs ended.

        Only ``PilotRefusals`` asks for their steps: whether there was one since pilots ended. Each
        new record costs the decision time, because its caches go by identity.
        """
        steppers = self._unstepped.intersection(self.training.values())
        if not steppers:
            return
        self._unstepped -= steppers
        trainers = list(self._trainers)
        for place, record in enumerate(trainers):
            if record.trainer_id in steppers:
                progress = replace(record.progress, step=record.progress.step + 1)
                trainers[place] = replace(record, progress=progress)
        self._trainers = tuple(trainers)

    def _follow(self, plan: Plan) -> None:
        """Let trainers do what is planned; this one needs no telling."""


class QueueLook(NamedTuple):
    """What is needed to tell who could have started when a look was taken."""

    at_s: float
    queue: list[SiteJob]
    timeline_at: Callable[[float], SiteTimeline]


class Sidecar(Neighbour):
    """The daemon and its pilots."""

    def __init__(self, machine: Machine, *, hello_s: float = 3.0, core: Core | None = None) -> None:
        """``hello_s``: from a pilot's start to its agent's hello."""
        self._machine, self._hello_s = machine, hello_s
        self.core = core or Core(machine)
        self.core.on_started = self._decide_soon
        self.last_cycle: Callable[[], tuple[float, float] | None] = lambda: None
        self.n_submissions = self.n_releases = 0
        self.requested, self._stepped = set[str](), set[str]()  # pilots; node made a first step
        self.held_s, self._counted_s, self._held = 0.0, 0.0, 0.0  # nodes, parts as their share
        self.held_gpu_s, self._held_gpus = 0.0, 0
        self.trained_s = 0.0  # of pilots that have left: held after their workers' start
        self.book = PilotBook(
            NoJournal(),
            self.core.slurm,
            OWNER,
            lambda: EPOCH_S + machine.now_s,
            lambda: machine.now_s,
        )
        self.core.refusals.follow(self.book, lambda: self.core.records)
        self._learn_end = self.book.on_ended
        self.book.on_ended = self._pilot_ended
        self._answers = LaunchAnswers(self.book, self.core.refusals)
        self._cancels = CancelQueue(self.book)
        self._agents = set[str]()  # pilots whose agents are connected
        self._told_s: dict[str, float] = {}  # when these heard that they have to leave
        self._held_since_s: dict[str, float] = {}  # by pilot, of those that count as held
        capacities = machine.settings.capacities
        self._n_gpus = tuple(capacity.n_gpus for capacity in capacities)
        n_parts: dict[int, int] = {}
        if self.core.lend is not Lend.NODES:
            n_parts = {node: max(1, n_gpus) for node, n_gpus in enumerate(self._n_gpus)}
        self.causes = Causes(n_parts)
        self._number = 0  # of the last pilot
        self._queue_looks: deque[QueueLook] = deque()  # the latest ones
        self._orders_done_s = self._stirred_s = 0.0
        self._events = 0
        self._look_at_s = math.inf
        self._is_looking = self._is_deciding = False

    def begin(self) -> None:
        """Start the daemon now; it finds what the machine has."""
        self._machine.neighbour = self
        self._counted_s = self._machine.now_s
        self._stir()
        self._plan_look()

    def count_from_now(self) -> None:
        """Forget what was counted so far."""
        self.count()
        self.held_s, self.trained_s, self.n_submissions, self.n_releases = 0.0, 0.0, 0, 0
        self.held_gpu_s = 0.0
        self.requested.clear()

    def count(self) -> None:
        """Add up what is held until now."""
        now_s = self._machine.now_s
        self.held_s += self._held * (now_s - self._counted_s)
        self.held_gpu_s += self._held_gpus * (now_s - self._counted_s)
        self._counted_s = now_s

    @property
    def trained(self) -> set[str]:
        """Return the pilots whose node made a first step, of those requested."""
        return self.requested & self._stepped

    def views(self) -> tuple[PilotView, ...]:
        """Return the pilots as the next decision sees them."""
        return self.book.views(self._agents)

    # ---- what Slurm and the agents tell --------------------------------------------------

    def submitted(self, job: SiteJob) -> None:
        """The hook's line is read; of an array there is one."""
        if job.spec.array in (0, job.spec.number):
            self._machine.at(self._machine.now_s + HEARD_S, partial(self._heard, job, is_end=False))

    def ended(self, job: SiteJob) -> None:
        """The same of the end of a job."""
        self._machine.at(self._machine.now_s + HEARD_S, partial(self._heard, job, is_end=True))

    def started(self, mine: Preemptable) -> None:
        """An agent will say hello."""
        self._machine.at(self._machine.now_s + self._hello_s, partial(self._hello, mine))

    def gone(self, mine: Preemptable) -> None:
        """Its agent's connection ends; of one that never came only a look tells."""
        self.core.slurm.has_ended(mine)
        pilot = self.book.pilots.get(mine.name)
        if pilot is None or mine.name not in self._agents:
            return
        self._agents.discard(mine.name)
        self._bid_farewell(pilot)
        self.book.agent_left(mine.name, SIGNAL)
        self._let_go(pilot)
        self._changed()
        self._decide_soon()

    def _pilot_ended(self, pilot: Pilot) -> None:
        self._let_go(pilot)
        self.core.pilot_ended(pilot)
        self._learn_end(pilot)

    def _bid_farewell(self, pilot: Pilot) -> None:
        """Take an agent's last message: it was told to leave, or has got a signal just now."""
        pilot_id, node = pilot.record.pilot_id, pilot.record.node
        left_s = EPOCH_S + self._machine.now_s
        reason, told_s = SIGNAL, left_s
        if pilot_id in self._told_s:
            reason, told_s = TOLD, self._told_s.pop(pilot_id)
        words = Farewell(pilot_id=pilot_id, node=node, reason=reason, told_s=told_s, left_s=left_s)
        self.core.harm.left(pilot_id, node, words, left_s)

    def _heard(self, job: SiteJob, *, is_end: bool) -> None:
        self.core.hear(job, is_end=is_end)
        self._plan_look()
        self._decide_soon()

    def _hello(self, mine: Preemptable) -> None:
        pilot = self.book.pilots.get(mine.name)
        if pilot is None or self._machine.preemptable.get(mine.name) is not mine:
            return
        self._agents.add(mine.name)
        if self.book.agent_came(mine.name):
            self._tell_to_leave(mine.name)
        else:
            self._hold(pilot)
        self._changed()
        self._decide_soon()

    def _hold(self, pilot: Pilot) -> None:
        """Count what a pilot has as held from now on."""
        record = pilot.record
        if record.pilot_id in self._held_since_s:
            return
        self.count()
        self._held_since_s[record.pilot_id] = self._machine.now_s
        self._held += self._size_of(pilot)
        self._held_gpus += self._gpus_of(pilot)
        if record.part is None:
            self.causes.note(self._machine.now_s, node_number(record.node), HELD)

    def _let_go(self, pilot: Pilot) -> None:
        """Count it no more."""
        record = pilot.record
        since_s = self._held_since_s.pop(record.pilot_id, None)
        if since_s is None:
            return
        self.count()
        size = self._size_of(pilot)
        self._held -= size
        self._held_gpus -= self._gpus_of(pilot)
        if record.part is None:
            self.causes.note(self._machine.now_s, node_number(record.node), RELEASED)
        trained_s = self._machine.now_s - (since_s + self.core.start_s)
        self.trained_s += size * max(0.0, trained_s)

    def _size_of(self, pilot: Pilot) -> float:
        """Return how much of a node it has."""
        part = pilot.record.part
        if part is None:
            return 1.0
        return part.gpus / self._n_gpus[node_number(pilot.record.node)]

    def _gpus_of(self, pilot: Pilot) -> int:
        part = pilot.record.part
        if part is not None:
            return part.gpus
        if self._n_gpus:
            return self._n_gpus[node_number(pilot.record.node)]
        return 0

    # ---- looks -----------------------------------------------------------------------------

    def _changed(self) -> None:
        """Have a look show a change of this moment that nobody announces."""
        self.core.calls.changed(self._machine.now_s)
        self._plan_look()

    def _plan_look(self) -> None:
        due_s = self.core.pace.due_s(self._machine.now_s)
        if not self._is_looking and due_s < self._look_at_s:
            self._look_at_s = due_s
            self._machine.at(due_s, self._look_if_due)

    def _look_if_due(self) -> None:
        now_s = self._machine.now_s
        if self._is_looking or now_s < self._look_at_s:
            return
        self._look_at_s = math.inf
        if self.core.pace.due_s(now_s) > now_s:
            self._plan_look()
            return
        self._is_looking = True
        is_called = self.core.pace.is_called(now_s)
        n_requests = LOOK_REQUESTS
        if self._reads_cycle():
            self.core.slurm.cycle = self.last_cycle()
            n_requests += 1
        machine = self._machine
        queue_look = QueueLook(now_s + LOOK_S, queue_of(machine), machine.timeline_later())
        end_of_look = partial(self._looked, self.core.look(), queue_look)
        machine.at(now_s + LOOK_S, partial(end_of_look, n_requests=n_requests, is_called=is_called))

    def _reads_cycle(self) -> bool:
        """Return whether this look reads when the scheduler's last cycle was."""
        core = self.core
        if not core.waits_for_cycle(self.views()):
            return False
        return core.calls.may_ask_for_cycle(self._machine.now_s, core.slurm.cycle_s)

    def _looked(
        self,
        snapshot: Snapshot,
        queue_look: QueueLook,
        *,
        n_requests: int,
        is_called: bool,
    ) -> None:
        now_s, pace = self._machine.now_s, self.core.pace
        self._is_looking = False
        self.core.refusals.polled(snapshot.closed)
        is_unshown = self.core.take(snapshot, now_s - LOOK_S)
        self.book.observe(snapshot, now_s - LOOK_S)
        self.core.calls.saw(
            snapshot,
            now_s,
            is_unshown=is_unshown,
            owes_node=self.core.harm.owes_node,
            awaits_end=self.book.awaits_end,
        )
        if self.book.has_unexplained:
            for pilot in self.book.explanations():
                self.book.on_explained(pilot.pilot_id, pilot.how)
                self.core.harm.ended(pilot.pilot_id, pilot.how)
            n_requests += 1
        pace.looked(now_s - LOOK_S, now_s, n_requests, is_called=is_called)
        self._cancel(self.book.overdue(), force=True)
        looks = self._queue_looks
        looks.append(queue_look)
        while len(looks) > 1 and looks[1].at_s <= now_s - MAIN_PASS_S - RECHECK_S:
            looks.popleft()
        self._decide(is_new=True)
        self._plan_look()

    def know(self) -> Callable[[], Iterable[SiteJob]]:
        """Return a function: the jobs that could start now, as a look showed one main pass ago."""
        machine, now_s = self._machine, self._machine.now_s
        looks = [look for look in self._queue_looks if look.at_s <= now_s - MAIN_PASS_S]
        if not looks:
            return tuple
        latest = looks[-1]
        return lambda: startable(machine, latest.timeline_at(now_s), latest.queue)

    # ---- decisions -------------------------------------------------------------------------

    def _stir(self) -> None:
        now_s = self._machine.now_s
        if now_s >= self._stirred_s + RECHECK_S:
            self._decide(is_new=False)
        self._machine.at(self._stirred_s + RECHECK_S, self._stir)

    def _decide_soon(self) -> None:
        if not self._is_deciding:  # requests of one moment become one
            self._is_deciding = True
            self._machine.at(self._machine.now_s, partial(self._decide, is_new=False))
        self._decide_after()

    def _decide_after(self) -> None:
        """Decide again when what has just happened has had its time."""
        self._events += 1
        for after_s in AFTER_S:
            self._machine.at(self._machine.now_s + after_s, partial(self._after, self._events))

    def _after(self, events: int) -> None:
        if events == self._events:
            self._decide(is_new=False)

    def _decide(self, *, is_new: bool) -> None:
        now_s = self._machine.now_s
        self._is_deciding, self._stirred_s = False, now_s
        if is_new:
            self._decide_after()
        if self.core.snapshot is None:
            return
        views = self.views()
        plan = self.core.decide(views, is_new=is_new)
        for view in views:
            if view.node in self.core.training:
                self._stepped.add(view.pilot_id)
        self.carry_out(plan)
        self._note_causes()

    def _note_causes(self) -> None:
        """Note why nodes without an ordinary job are not held."""
        machine, not_used = self._machine, self.core.not_used
        whole: dict[int, Pilot] = {}
        parted = defaultdict[int, list[Pilot]](list)
        for pilot in self.book.pilots.values():
            node = node_number(pilot.record.node)
            if pilot.record.part is None:
                whole[node] = pilot
            else:
                parted[node].append(pilot)
        for node in positions(machine.every & ~machine.busy):
            name = f"n{node:05d}"
            if node in whole:
                self.causes.note(machine.now_s, node, self._cause_of(whole[node]))
            elif self.core.lend is Lend.NODES or not self._n_gpus:
                self.causes.note(machine.now_s, node, cause_of(not_used.get(name, "")))
            else:
                whys = [
                    not_used.get(f"{name}{PART_MARK}{k}", "") for k in range(self._n_gpus[node])
                ]
                self._note_parts(node, parted[node], whys)

    def _note_parts(self, node: int, pilots: Iterable[Pilot], whys: Sequence[str]) -> None:
        """Note the causes of each GPU of a node; ``whys``: of those without a pilot."""
        causes = {k: cause_of(why) for k, why in enumerate(whys)}
        unnumbered = dict.fromkeys(causes)
        for pilot in pilots:
            _, _, digits = pilot.record.node.rpartition(PART_MARK)
            number = int(digits)
            for k in (number, *unnumbered)[: 1 + len(unnumbered)]:
                if k in unnumbered:
                    del unnumbered[k]
                    causes[k] = self._cause_of(pilot)
                    break
        for k, cause in causes.items():
            self.causes.note_part(self._machine.now_s, node, k, cause)

    def _cause_of(self, pilot: Pilot) -> str:
        if pilot.is_leaving:
            return RELEASED
        pilot_id = pilot.record.pilot_id
        if pilot_id in self._agents:
            return HELD
        mine = self._machine.preemptable.get(pilot_id)
        if mine is not None and mine.start_s is not None:
            return STARTING
        asked_s, cycle = pilot.submitted_s, self.last_cycle()
        if asked_s is not None and cycle is not None:
            cycle_begin_s, _ = cycle
            if asked_s < cycle_begin_s:
                return PASSED
        return QUEUED

    # ---- orders ----------------------------------------------------------------------------

    def carry_out(self, plan: Plan) -> None:
        """Release and request pilots."""
        if plan.releases:
            self._release(plan.releases)
        self._request(plan)

    def _release(self, releases: Sequence[Release]) -> None:
        """Ask pilots to leave: those with an agent by a message, the others are cancelled."""
        for release in releases:
            pilot = self.book.pilots.get(release.pilot_id)
            if pilot is None or pilot.is_leaving:
                continue
            self.n_releases += 1
            self._let_go(pilot)
            if release.pilot_id in self._agents:
                self._tell_to_leave(release.pilot_id)
        self._cancel(self.book.release(releases, self._agents))

    def _tell_to_leave(self, pilot_id: str) -> None:
        """Send an agent the message; it is gone a moment later."""
        now_s = self._machine.now_s
        self._told_s[pilot_id] = EPOCH_S + now_s
        self._machine.at(now_s + LEAVE_S, partial(self._leave, pilot_id))

    def _leave(self, pilot_id: str) -> None:
        mine = self._machine.preemptable.get(pilot_id)
        if mine is not None:
            self._machine.cancel_preemptable(mine)

    def _cancel(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        for user in self._cancels.add(job_ids, force=force):
            self._next_cancel(user)

    def _next_cancel(self, user: str) -> None:
        order = self._cancels.next_order(user)
        if order:
            now_s = self._machine.now_s
            self.core.pace.ordered(now_s, 1)
            self._machine.at(now_s + ORDER_S, partial(self._cancelled, user, order))

    def _cancelled(self, user: str, order: CancelOrder) -> None:
        self.core.slurm.cancel_pilots(tuple(order))
        if self._cancels.ended(order, self._agents):
            self._changed()
        self._next_cancel(user)

    def _request(self, plan: Plan) -> None:
        """Open a pilot for each claim at once; each is submitted when those before it are."""
        pilots: list[Pilot] = []
        for claim in self.core.refusals.tried(plan.claims, self.core.records):
            self._number += 1
            pilot_id = f"p{self._number:07d}"
            self.requested.add(pilot_id)
            pilot = self.book.open(pilot_id, claim, public_key="")
            pilots.append(pilot)
            now_s = self._machine.now_s
            self.core.pace.ordered(now_s, 1)
            self._orders_done_s = max(self._orders_done_s, now_s) + ORDER_S
            self._machine.at(self._orders_done_s, partial(self._submit, pilot))
        if pilots:
            self._machine.at(self._machine.now_s + STARTS_S, partial(self._look_for, pilots))

    def _look_for(self, pilots: Sequence[Pilot]) -> None:
        """Have a look show who has the nodes of pilots that have not started: nobody tells."""
        if any(pilot.awaits_agent for pilot in pilots):
            self._changed()

    def _submit(self, pilot: Pilot) -> None:
        if not self._answers.is_still_wanted(pilot):
            return
        record = pilot.record
        self.n_submissions += 1
        request = PilotRequest(
            pilot_id=record.pilot_id,
            node=record.node,
            time_limit_s=record.time_limit_s,
            agent_argv=(),
            log_path=Path(),
            part=record.part,
        )
        trainer = self.core.records.get(pilot.for_trainer)
        try:
            job_id = self.core.slurm.launch_pilot(request)
        except BatchSystemError as problem:
            self._answers.failed(pilot, problem, trainer)
            return
        self._answers.accepted(pilot, job_id, trainer)  # it is not released within this moment
