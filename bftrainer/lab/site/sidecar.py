"""bftrainer beside a simulated machine: its polls, announcements, decisions and orders in time.

The only module here that uses bftrainer's own code. A ``Machine`` goes in as the snapshot the Slurm
adapter would have made of it, what the hook announces goes through the daemon's own
``UnseenAnnouncements``, the times of polls through its own ``PollRateLimiter``.

The times are the daemon's own on a real cluster (``bench_claim.py``): a line of the
hook is read within 0.02 s, a look takes 0.1 s, an agent that is told to leave is gone 0.05 s
later, ``sbatch`` and ``scancel`` take 0.05 s each, one after the other. A daemon with a hook
decides at every event and once a second; here at every event, ``AFTER_S`` after the last one,
and ``RECHECK_S`` apart, which decides the same but for that much time.

Trainers of a workload progress by the paper's books: on nodes whose agent is connected and whose
worker has started, less what rescales and losses cost.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

from bftrainer.batch.announcer import UNSEEN_S, Announcement, UnseenAnnouncements
from bftrainer.batch.rate_limit import PollRateLimiter
from bftrainer.daemon.poller import rules_of
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.trainers import SimTrainer, Tally, make_trainer
from bftrainer.lab.site.arms import ArmOutcome, Harvest, SharedStage, play_beside
from bftrainer.lab.site.losses import HELD, PASSED, QUEUED, RELEASED, STARTING, Causes, cause_of
from bftrainer.lab.site.machine import (
    Machine,
    Neighbour,
    Preemptable,
    SchedulerSettings,
    SiteJob,
)
from bftrainer.lab.site.occupancy import SiteTimeline
from bftrainer.lab.site.scheduler import queue_of, startable
from bftrainer.lab.site.sharing import NodeSet
from bftrainer.lab.site.timeline import positions
from bftrainer.lab.workloads import Submission
from bftrainer.model.cluster import (
    STAND_IN,
    Job,
    JobState,
    Node,
    NodeLeft,
    NodeState,
    Partition,
    Reservation,
    SchedulerCycle,
    Snapshot,
)
from bftrainer.model.decision import DecisionInput, Memory, PilotView
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from bftrainer.site.policy.model import SitePolicy, settings_of

EPOCH_S = 1_700_000_040.0  # of the begin of a run: a whole minute
ORDINARY, PILOTS = "batch", "bf"
PARTITIONS = (ORDINARY, PILOTS)
ORDINARY_TIER = 10  # and above; the pilots' is 0
CPUS = 64
TRAINER = "t1"
POLL_INTERVALS = ("poll_interval_s", "poll_interval_with_hook_s")
UNSHOWN_S = UNSEEN_S  # after an announcement that a look did not show


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class SitePilot:
    """A pilot as the daemon sees it."""

    name: str
    node: int
    limit_s: float
    requested_s: float
    submitted_s: float | None = None
    is_held: bool = False
    held_since_s: float = 0.0
    is_leaving: bool = False
    end_s: float | None = None  # once a look has shown it running
    has_trained: bool = False
    view: Any = None  # what the decision is told, until something of it changes


Orders = tuple[list[str], dict[int, float]]


class Core:
    """The decision and what it remembers, beside one machine."""

    def __init__(
        self,
        machine: Machine,
        *,
        start_s: float = 0.0,
        poll_s: float | None = None,
        policy_values: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Begin without a memory.

        Args:
            machine: to be beside of.
            start_s: of a worker, until its first step.
            poll_s: between two looks; None: the default.
            policy_values: of the site's policy, where they are not the defaults.
        """
        self._machine, self.start_s = machine, start_s
        self._began_s: dict[tuple[str, str], float] = {}  # node and trainer -> worker started
        self.on_started: Callable[[], None] = lambda: None
        every: dict[str, Any] = {} if poll_s is None else dict.fromkeys(POLL_INTERVALS, poll_s)
        policy = SitePolicy(**every, **policy_values)
        cycle_s = machine.settings.bf_interval_s
        system: Any = SimpleNamespace(cycle_s=cycle_s, idle_confirmations=1)
        self.settings: Any = settings_of(policy, system)
        self.pace = PollRateLimiter(rules_of(policy, has_hook=True))
        self._announced = UnseenAnnouncements(lambda: machine.now_s)
        self._policy = load_policy(policy.policy)
        self._memory = Memory()
        self.snapshot: Any = None
        self.not_used: Mapping[str, str] = {}  # of the last decision
        self.cpu_s, self.n_decisions = 0.0, 0
        self.cycle: tuple[float, float] | None = None  # the last whole one, as sdiag tells
        self._looks = _Looks(machine)
        n_max = machine.settings.n_nodes
        spec = TrainerSpec(name="a", user="b", script="/dev/null", n_min=1, n_max=n_max)
        self._trainers: tuple[TrainerRecord, ...] = (
            TrainerRecord(
                trainer_id=TRAINER, spec=spec, state=TrainerState.RUNNING, submitted_s=EPOCH_S
            ),
        )

    # ---- what is seen --------------------------------------------------------------------

    def look(self) -> Any:
        """Return what a look at the machine shows now."""
        return self._looks.look(self.cycle)

    def take(self, snapshot: Any, began_s: float) -> bool:
        """Take a look over; whether it left out a job that was announced."""
        self.snapshot = self._announced.add_to(snapshot, began_s)
        return bool(self._announced.is_unshown)

    def hear(self, job: SiteJob, *, is_end: bool) -> None:
        """Take over what the hook says of a job."""
        at_s = float(math.floor(EPOCH_S + self._machine.now_s))
        queue = job.spec.partition or ORDINARY
        if is_end:
            said = Announcement(at_s=at_s, partition=queue, nodes=self._looks.names(job.nodes))
        else:
            stand_in = f"{STAND_IN}{job.spec.number}"
            announced = self._looks.job(job, stand_in, is_waiting=True)
            announced = dataclasses.replace(announced, reason="", priority=0.0)
            said = Announcement(at_s=at_s, partition=queue, job=announced)
        if self._announced.hear((said,)) and self.snapshot is not None:
            self.snapshot = self._announced.add_to(self.snapshot)

    def running_pilots(self, snapshot: Any) -> Mapping[str, float | None]:
        """Return the pilots in a look: when their limit strikes, None: they wait."""
        return {
            job.pilot_id: None
            if job.state is JobState.PENDING
            else job.start_s + job.time_limit_s - EPOCH_S
            for job in snapshot.jobs
            if job.pilot_id is not None
        }

    # ---- what is decided -----------------------------------------------------------------

    def decide(
        self, pilots: Iterable[SitePilot], *, is_new: bool
    ) -> tuple[list[str], dict[int, float]]:
        """Decide now; return the pilots to release, and the nodes to claim with their limits.

        Limits are in whole minutes, as the adapter submits them.
        """
        pilots = tuple(pilots)
        views = tuple([self._view(pilot) for pilot in pilots])
        training = self._training({v.node for v in views if v.is_held and not v.is_leaving})
        for pilot, view in zip(pilots, views, strict=True):
            pilot.has_trained = pilot.has_trained or view.node in training
        given = DecisionInput(
            now_s=EPOCH_S + self._machine.now_s,
            snapshot=self.snapshot,
            is_new_snapshot=is_new,
            pilots=views,
            trainers=self._trainers,
            settings=self.settings,
            memory=self._memory,
            training=training,
        )
        began_s = time.process_time()
        plan = decide(given, self._policy)
        self.cpu_s += time.process_time() - began_s
        self.n_decisions += 1
        self._memory, self.not_used = plan.memory, plan.not_used
        self._follow(plan)
        claims = {int(c.node[1:]): math.floor(c.time_limit_s / 60.0) * 60.0 for c in plan.claims}
        return [r.pilot_id for r in plan.releases], {n: s for n, s in claims.items() if s}

    def _training(self, held: AbstractSet[str]) -> Mapping[str, str]:
        """Return the trainer on each node; one trainer takes all."""
        return self._started(dict.fromkeys(held, TRAINER))

    def _started(self, running: Mapping[str, str]) -> Mapping[str, str]:
        """Return on which nodes workers have started, of those on which they run."""
        now_s, known = self._machine.now_s, self._began_s
        self._began_s = {pair: known.get(pair, now_s) for pair in running.items()}
        if self.start_s and self._began_s.keys() - known.keys():
            self._machine.at(now_s + self.start_s, self.on_started)
        return {n: t for (n, t), at_s in self._began_s.items() if at_s + self.start_s <= now_s}

    def _follow(self, plan: Any) -> None:
        """Let trainers do what is planned; this one needs no telling."""

    def _view(self, pilot: SitePilot) -> Any:
        if pilot.view is None:
            pilot.view = PilotView(
                pilot_id=pilot.name,
                node=f"n{pilot.node:05d}",
                requested_s=EPOCH_S + pilot.requested_s,
                is_held=pilot.is_held,
                is_leaving=pilot.is_leaving,
                end_s=None if pilot.end_s is None else EPOCH_S + pilot.end_s,
            )
        return pilot.view


STATES = (
    NodeState.IDLE,
    NodeState.PLANNED,
    NodeState.ALLOCATED,
    NodeState.RESERVED,
    NodeState.COMPLETING,
)


def _partitions_of(settings: SchedulerSettings) -> tuple[Partition, ...]:
    if not settings.partitions:
        return (Partition(name=ORDINARY, tier=ORDINARY_TIER), Partition(name=PILOTS))
    ordinary = [
        Partition(name=p.name, tier=ORDINARY_TIER + p.tier, is_exclusive=p.is_whole)
        for p in settings.partitions
    ]
    return (*ordinary, Partition(name=PILOTS))


class _Looks:
    """A machine as snapshots; what has not changed is made once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._names = [f"n{k:05d}" for k in range(machine.settings.n_nodes)]
        nodes = [self._node(k) for k in range(machine.settings.n_nodes)]
        self._nodes = {
            state: [dataclasses.replace(node, state=state) for node in nodes] for state in STATES
        }
        self._partitions = _partitions_of(machine.settings)
        self._known: dict[int, tuple[Any, Any]] = {}
        self._reservations = tuple(
            Reservation(
                name=f"maint{k}",
                start_s=EPOCH_S + one.start_s,
                end_s=EPOCH_S + one.end_s,
                nodes=self.names(one.nodes),
                is_maintenance=True,
            )
            for k, one in enumerate(machine.maintenance)
        )

    def _node(self, k: int) -> Node:
        settings = self._machine.settings
        partitions: tuple[str, ...] = PARTITIONS
        if settings.partitions:
            own = (p.name for p in settings.partitions if p.nodes >> k & 1)
            partitions = tuple(sorted((*own, PILOTS)))
        name, state = self._names[k], NodeState.IDLE
        if not settings.capacities:
            return Node(name=name, state=state, partitions=partitions, cpus=CPUS)
        capacity = settings.capacities[k]
        kinds = [f"gpu:{kind}:{number}" for kind, number in capacity.gpus if number]
        return Node(
            name=name,
            state=state,
            partitions=partitions,
            cpus=capacity.cpus,
            memory_mb=capacity.memory_mb,
            gpus=capacity.n_gpus,
            node_type=",".join(kinds) or "cpu",
        )

    def look(self, cycle: tuple[float, float] | None) -> Any:
        """Return what a look shows now."""
        machine, settings = self._machine, self._machine.settings
        shown = SchedulerCycle(ended_s=None)
        if cycle is not None:
            began_s, ended_s = (math.floor(EPOCH_S + at_s) for at_s in cycle)
            shown = SchedulerCycle(ended_s=float(ended_s), began_s=float(began_s))
        known, self._known = self._known, {}
        ordinary = [*machine.pending, *machine.running.values()]
        jobs = [self._known_job(job, known) for job in ordinary]
        jobs += [self._pilot(mine) for mine in machine.preemptable.values()]
        return Snapshot(
            taken_at_s=EPOCH_S + machine.now_s,
            nodes=self._node_states(),
            jobs=tuple(jobs),
            reservations=self._reservations,
            cycle=shown,
            plan_window_s=settings.bf_window_s,
            plan_resolution_s=settings.bf_resolution_s,
            pilots_come_last=True,
            partitions=self._partitions,
        )

    def _node_states(self) -> tuple[Any, ...]:
        machine = self._machine
        planned = 0
        for job in machine.pending:
            planned |= job.planned
        used = machine.busy | machine.held
        found = list(self._nodes[NodeState.ALLOCATED])
        for state, some in (
            (NodeState.IDLE, machine.every & ~used),
            (NodeState.PLANNED, planned & ~used),
            (NodeState.RESERVED, machine.closed & ~used),
            (NodeState.COMPLETING, machine.completing & ~used),
        ):
            alike = self._nodes[state]
            for k in positions(some):
                found[k] = alike[k]
        for k, left in machine.occupancy.left_on(used).items():
            if left.cpus > 0:
                free = NodeLeft(cpus=left.cpus, memory_mb=left.memory_mb, gpus=left.gpus)
                found[k] = dataclasses.replace(found[k], left=free)
        return tuple(found)

    def names(self, some: NodeSet) -> tuple[str, ...]:
        """Return the names of nodes."""
        return tuple([self._names[k] for k in positions(some)])

    def _known_job(self, job: SiteJob, known: Mapping[int, tuple[Any, Any]]) -> Any:
        key, number = (job.start_s, job.planned_s, job.planned, job.reason), job.spec.number
        entry = known.get(number)
        known_key, view = entry if entry is not None else (None, None)
        if known_key != key:
            array = job.spec.array
            job_id = f"{array}_{number - array}" if array else str(number)
            view = self.job(job, job_id, is_waiting=not job.nodes)
        self._known[number] = (key, view)
        return view

    def job(self, job: SiteJob, job_id: str, *, is_waiting: bool) -> Any:
        """Return an ordinary job."""
        spec, start_s = job.spec, job.planned_s if is_waiting else job.start_s
        array, is_task, _ = job_id.partition("_")
        shown = Job(
            job_id=job_id,
            user=spec.user,
            partitions=(spec.partition or ORDINARY,),
            family=array if is_task else "",
            state=JobState.PENDING if is_waiting else JobState.RUNNING,
            n_nodes=spec.n_nodes,
            time_limit_s=spec.limit_s,
            reason=(spec.held_by or job.reason) if is_waiting else "",
            priority=spec.priority,
            submit_s=float(math.floor(EPOCH_S + spec.submit_s)),
            start_s=None if start_s is None else EPOCH_S + start_s,
            nodes=() if is_waiting else self.names(job.nodes),
            planned_nodes=self.names(job.planned),
        )
        if spec.share is None or not self._machine.settings.capacities:
            return shown
        return dataclasses.replace(
            shown,
            cpus=spec.share.cpus * spec.n_nodes,
            cpus_per_node=spec.share.cpus,
            memory_mb=spec.share.memory_mb,
            gpus_per_node=spec.share.gpus,
            can_share=not self._machine.is_whole(spec),
        )

    def _pilot(self, mine: Preemptable) -> Any:
        is_waiting = mine.start_s is None
        return Job(
            job_id=f"9{mine.name[1:]}",
            user="bft",
            partitions=(PILOTS,),
            state=JobState.PENDING if is_waiting else JobState.RUNNING,
            n_nodes=1,
            time_limit_s=mine.limit_s,
            start_s=None if mine.start_s is None else EPOCH_S + mine.start_s,
            nodes=self.names(mine.at),
            pilot_id=mine.name,
            required_nodes=self.names(mine.node),
        )


HEARD_S, LOOK_S, LEAVE_S, ORDER_S = 0.02, 0.1, 0.05, 0.05
CHANGED_S = 0.3  # from what nobody announces to the look that it calls for
LOOK_REQUESTS = 3
AFTER_S = (1.0, 3.1)  # a pass of the main scheduler, and one of its longest
RECHECK_S = 5.0
MAIN_PASS_S = 3.0  # who knew so long before a cycle could have made room for it


# A look, its queue and its timeline: what is needed to tell who could have started.
Known = tuple[float, list[SiteJob], Callable[[float], SiteTimeline]]


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
        self.held_s, self._counted_s, self._n_held = 0.0, 0.0, 0
        self.trained_s = 0.0  # of pilots that have left: held after their workers' start
        self._pilots: dict[str, SitePilot] = {}
        self.causes = Causes()
        self._number = itertools.count(1)
        self._known: deque[Known] = deque()
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
        self.requested.clear()

    def count(self) -> None:
        """Add up what is held until now."""
        now_s = self._machine.now_s
        self.held_s += self._n_held * (now_s - self._counted_s)
        self._counted_s = now_s

    @property
    def trained(self) -> set[str]:
        """Return the pilots whose node made a first step, of those requested."""
        return self.requested & self._stepped

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
        pilot = self._pilots.get(mine.name)
        if pilot is None or not (pilot.is_held or pilot.is_leaving):
            return
        self._hold(pilot, is_held=False)
        pilot.is_leaving, pilot.view = True, None
        self._call(CHANGED_S)
        self._decide_soon()

    def _heard(self, job: SiteJob, *, is_end: bool) -> None:
        now_s = self._machine.now_s
        self.core.hear(job, is_end=is_end)
        if is_end:
            self._call(CHANGED_S)
        elif job.spec.kind != "sbatch":
            self._call(UNSHOWN_S)
        else:
            self.core.pace.soon.call(now_s + HEARD_S)
            self._plan_look()
        self._decide_soon()

    def _hello(self, mine: Preemptable) -> None:
        pilot = self._pilots.get(mine.name)
        if pilot is None or self._machine.preemptable.get(mine.name) is not mine:
            return
        if not pilot.is_leaving:
            self._hold(pilot, is_held=True)
        self._call(CHANGED_S)
        self._decide_soon()

    def _hold(self, pilot: SitePilot, *, is_held: bool) -> None:
        if pilot.is_held is not is_held:
            self.count()
            self._n_held += 1 if is_held else -1
            self.causes.note(self._machine.now_s, pilot.node, HELD if is_held else RELEASED)
            pilot.is_held, pilot.view = is_held, None
            if is_held:
                pilot.held_since_s = self._machine.now_s
            else:
                began_s = pilot.held_since_s + self.core.start_s
                self.trained_s += max(0.0, self._machine.now_s - began_s)

    # ---- looks -----------------------------------------------------------------------------

    def _call(self, after_s: float) -> None:
        self.core.pace.calls.call(self._machine.now_s + after_s)
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
        self.core.cycle = self.last_cycle()
        machine = self._machine
        known = now_s + LOOK_S, queue_of(machine), machine.timeline_later()
        looked = partial(self._looked, self.core.look(), known, is_called=is_called)
        machine.at(now_s + LOOK_S, looked)

    def _looked(self, snapshot: object, known: Known, *, is_called: bool) -> None:
        now_s, pace = self._machine.now_s, self.core.pace
        self._is_looking = False
        pace.looked(now_s - LOOK_S, now_s, LOOK_REQUESTS, is_called=is_called)
        if self.core.take(snapshot, now_s - LOOK_S):
            self._call(UNSHOWN_S)
        shown = self.core.running_pilots(snapshot)
        for pilot in list(self._pilots.values()):
            if pilot.name in shown:
                if shown[pilot.name] != pilot.end_s:
                    pilot.end_s, pilot.view = shown[pilot.name], None
            elif pilot.submitted_s is not None and pilot.submitted_s < now_s - LOOK_S:
                self._hold(pilot, is_held=False)
                del self._pilots[pilot.name]
        self._known.append(known)
        while len(self._known) > 1 and self._known[1][0] <= now_s - MAIN_PASS_S - RECHECK_S:
            self._known.popleft()
        self._decide(is_new=True)
        self._plan_look()

    def know(self) -> Callable[[], Iterable[SiteJob]]:
        """Return a function: the jobs that could start now, as a look showed one main pass ago."""
        machine, now_s = self._machine, self._machine.now_s
        known = [k for k in self._known if k[0] <= now_s - MAIN_PASS_S]
        if not known:
            return tuple
        _, queue, timeline_at = known[-1]
        return lambda: startable(machine, timeline_at(now_s), queue)

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
        releases, claims = self.core.decide(self._pilots.values(), is_new=is_new)
        self._stepped.update(one.name for one in self._pilots.values() if one.has_trained)
        for name in releases:
            pilot = self._pilots.get(name)
            if pilot is None or pilot.is_leaving:
                continue
            self.n_releases += 1
            if pilot.is_held:
                leaves_s = now_s + LEAVE_S
            else:  # nobody announces its end
                leaves_s = self._order_s()
                self._machine.at(leaves_s, partial(self._call, CHANGED_S))
            self._hold(pilot, is_held=False)
            pilot.is_leaving, pilot.view = True, None
            self._machine.at(leaves_s, partial(self._leave, name))
        for node, limit_s in claims.items():
            name = f"p{next(self._number):07d}"
            self.requested.add(name)
            self._pilots[name] = SitePilot(name=name, node=node, limit_s=limit_s, requested_s=now_s)
            self._machine.at(self._order_s(), partial(self._submit, name))
        self._note_causes()

    def _note_causes(self) -> None:
        machine, pilots = self._machine, {one.node: one for one in self._pilots.values()}
        for node in positions(machine.every & ~machine.busy):
            pilot = pilots.get(node)
            if pilot is None:
                cause = cause_of(self.core.not_used.get(f"n{node:05d}", ""))
            elif pilot.is_leaving:
                cause = RELEASED
            elif pilot.is_held:
                cause = HELD
            elif machine.held >> node & 1:
                cause = STARTING
            else:
                asked_s, cycle = pilot.submitted_s, self.last_cycle()
                cause = QUEUED
                if asked_s is not None and cycle is not None:
                    cycle_begin_s, _ = cycle
                    if asked_s < cycle_begin_s:
                        cause = PASSED
            self.causes.note(machine.now_s, node, cause)

    def _order_s(self) -> float:
        """Return the time at which the next order will have been given."""
        now_s = self._machine.now_s
        self.core.pace.ordered(now_s, 1)
        self._orders_done_s = max(self._orders_done_s, now_s) + ORDER_S
        return self._orders_done_s

    def _submit(self, name: str) -> None:
        pilot = self._pilots[name]
        pilot.submitted_s = self._machine.now_s
        self.n_submissions += 1
        if not pilot.is_leaving:
            node = 1 << pilot.node
            mine = Preemptable(name=name, limit_s=pilot.limit_s, node=node)
            self._machine.submit_preemptable(mine)

    def _leave(self, name: str) -> None:
        mine = self._machine.preemptable.get(name)
        if mine is not None:
            self._machine.cancel_preemptable(mine)


class TrainingCore(Core):
    """The decision, and the trainers that follow it."""

    def __init__(
        self,
        machine: Machine,
        submissions: Iterable[Submission],
        *,
        policy: str,
        stage: SharedStage,
        p_jmax: int,
    ) -> None:
        """Trainers are submitted from the end of the warm-up on."""
        super().__init__(machine, start_s=stage.start_s, poll_s=stage.poll_s)
        begin_s = stage.warm_s
        self._policy = load_policy(policy)
        self.settings = replace(self.settings, policy=policy, p_jmax=p_jmax)
        self.books = PaperModel(Tally())
        self.books.begin(EPOCH_S + begin_s)
        self.everybody = tuple(
            make_trainer(one, number, EPOCH_S + begin_s, self.books.known_costs(one))
            for number, one in enumerate(submissions, start=1)
        )
        self._coming = deque(self.everybody)
        self._running: list[SimTrainer] = []
        self._held: AbstractSet[str] = frozenset()

    def train(self) -> None:
        """Train until now; complete trainers leave, trainers submitted by now come."""
        now_s = EPOCH_S + self._machine.now_s
        self.books.advance(now_s)
        for trainer in self.books.completed():
            self._running.remove(trainer)
        while self._coming and self._coming[0].record.submitted_s <= now_s:
            self._running.append(self._coming.popleft())
            self.books.admit(self._running[-1])
        self._trainers = tuple([trainer.as_decided() for trainer in self._running])

    def decide(self, pilots: Iterable[Any], *, is_new: bool) -> Any:
        """Decide on the trainers as they are now."""
        self.train()
        return super().decide(pilots, is_new=is_new)

    def _training(self, held: AbstractSet[str]) -> Mapping[str, str]:
        self._held = held
        self.books.lose(self.books.training().keys() - held)
        return self.books.training()

    def _follow(self, plan: Any) -> None:
        held = {n: t for n, t in plan.assignment.items() if n in self._held}
        started = self._started(held)
        sizes = Counter(started.values())
        too_few = {r.trainer_id for r in self._trainers if sizes[r.trainer_id] < r.spec.n_min}
        assignment = {n: t for n, t in started.items() if t not in too_few}
        self.books.apply_plan(replace(plan, assignment=assignment))
        for trainer in self._running:
            trainer.dropped = plan.dropped.get(trainer.trainer_id, "")
        self._running = [t for t in self._running if not t.dropped]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The result of a run; times since the epoch."""

    trainers: tuple[SimTrainer, ...]
    begin_s: float
    end_s: float
    node_s: float  # of trainers
    arm: ArmOutcome
    harvest: Harvest


def play(
    stage: SharedStage, submissions: Iterable[Submission], policy: str, p_jmax: int
) -> Trained:
    """Run the machine with the trainers beside it."""
    machine = Machine(stage.slurm, stage.maintenance)
    core = TrainingCore(machine, submissions, policy=policy, stage=stage, p_jmax=p_jmax)
    arm, harvest = play_beside(stage, machine, core)
    core.train()
    return Trained(
        trainers=core.everybody,
        begin_s=EPOCH_S + stage.warm_s,
        end_s=EPOCH_S + stage.end_s,
        node_s=core.books.tally.node_s_used,
        arm=arm,
        harvest=harvest,
    )
