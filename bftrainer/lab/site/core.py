"""Runs bftrainer's decision on the simulated machine: snapshots in, orders to pilots out.

The only module here that uses bftrainer's own code. A ``Machine`` goes in as the snapshot the Slurm
adapter would have made of it, what the hook announces goes through the daemon's own
``UnseenAnnouncements``, the times of polls through its own ``PollRateLimiter``.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import SimpleNamespace
from typing import Any

from bftrainer.batch.announcer import STAND_IN, UNSEEN_S, Announcement, UnseenAnnouncements
from bftrainer.batch.rate_limit import PollRateLimiter
from bftrainer.daemon.poller import rules_of
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.site.jobs import NodeSet, Preemptable, SiteJob, positions
from bftrainer.lab.site.machine import Machine
from bftrainer.model.cluster import (
    Job,
    JobState,
    Node,
    NodeState,
    Partition,
    Reservation,
    SchedulerCycle,
    Snapshot,
)
from bftrainer.model.decision import DecisionInput, Memory, PilotView
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from bftrainer.site.policy.model import SitePolicy
from bftrainer.site.policy.settings import settings_of

EPOCH_S = 1_700_000_040.0  # of the begin of a run: a whole minute
PARTITIONS = ("batch", "bf")
CPUS = 64
TRAINER = "t1"
POLL_INTERVALS = ("poll_interval_s", "poll_interval_with_hook_s")
UNSHOWN_S = UNSEEN_S  # after an announcement that a look did not show


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class SitePilot:
    """A pilot as the daemon sees it."""

    name: str
    node: int
    limits_s: tuple[float, ...]
    requested_s: float
    submitted_s: float | None = None
    is_held: bool = False
    is_leaving: bool = False
    end_s: float | None = None  # once a look has shown it running
    has_trained: bool = False
    view: Any = None  # what the decision is told, until something of it changes


Claims = list[tuple[int, tuple[float, ...]]]  # node, limits


class Core:
    """The decision and what it remembers, beside one machine."""

    def __init__(
        self, machine: Machine, *, start_s: float = 0.0, poll_s: float | None = None
    ) -> None:
        """``start_s``: of a worker, until its first step; ``poll_s``: None: the default."""
        self._machine, self._start_s = machine, start_s
        self._began_s: dict[tuple[str, str], float] = {}  # node and trainer -> worker started
        self.on_started: Callable[[], None] = lambda: None
        every: dict[str, Any] = {} if poll_s is None else dict.fromkeys(POLL_INTERVALS, poll_s)
        policy = SitePolicy(**every)
        cycle_s = machine.settings.bf_interval_s
        system: Any = SimpleNamespace(cycle_s=cycle_s, idle_confirmations=1)
        self.settings: Any = settings_of(policy, system)
        self.pace = PollRateLimiter(rules_of(policy, has_hook=True))
        self._announced = UnseenAnnouncements(lambda: machine.now_s)
        self._policy = load_policy(policy.policy)
        self._memory = Memory()
        self.snapshot: Any = None
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
        if is_end:
            said = Announcement(at_s=at_s, partition="batch", nodes=self._looks.names(job.nodes))
        else:
            stand_in = f"{STAND_IN}{job.spec.number}"
            announced = self._looks.job(job, stand_in, is_waiting=True)
            announced = dataclasses.replace(announced, reason="", priority=0.0)
            said = Announcement(at_s=at_s, partition="batch", job=announced)
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

    def decide(self, pilots: Iterable[SitePilot], *, is_new: bool) -> tuple[list[str], Claims]:
        """Decide now; return the pilots to release and the nodes to claim."""
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
        self._memory = plan.memory
        self._follow(plan)
        claims = [(int(c.node[1:]), _limits_s(c)) for c in plan.claims]
        return [r.pilot_id for r in plan.releases], claims

    def _training(self, held: AbstractSet[str]) -> Mapping[str, str]:
        """Return the trainer on each node; one trainer takes all."""
        return self._started(dict.fromkeys(held, TRAINER))

    def _started(self, running: Mapping[str, str]) -> Mapping[str, str]:
        """Return on which nodes workers have started, of those on which they run."""
        now_s, known = self._machine.now_s, self._began_s
        self._began_s = {pair: known.get(pair, now_s) for pair in running.items()}
        if self._start_s and self._began_s.keys() - known.keys():
            self._machine.at(now_s + self._start_s, self.on_started)
        return {n: t for (n, t), at_s in self._began_s.items() if at_s + self._start_s <= now_s}

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


def _limits_s(claim: Any) -> tuple[float, ...]:
    """Return a pilot's limits in whole minutes, as the adapter submits it."""
    whole_s = math.floor(claim.time_limit_s / 60.0) * 60.0
    return (whole_s,) if whole_s >= 60.0 else ()


STATES = (NodeState.IDLE, NodeState.PLANNED, NodeState.ALLOCATED, NodeState.RESERVED)


class _Looks:
    """A machine as snapshots; what has not changed is made once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._names = [f"n{k:05d}" for k in range(machine.settings.n_nodes)]
        self._nodes = {
            state: [
                Node(name=n, state=state, partitions=PARTITIONS, cpus=CPUS) for n in self._names
            ]
            for state in STATES
        }
        self._partitions = (Partition(name="batch", tier=10), Partition(name="bf"))
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
        ):
            alike = self._nodes[state]
            for k in positions(some):
                found[k] = alike[k]
        return tuple(found)

    def names(self, some: NodeSet) -> tuple[str, ...]:
        """Return the names of nodes."""
        return tuple([self._names[k] for k in positions(some)])

    def _known_job(self, job: SiteJob, known: Mapping[int, tuple[Any, Any]]) -> Any:
        key, number = (job.start_s, job.planned_s, job.planned, job.reason), job.spec.number
        entry = known.get(number)
        if entry is None or entry[0] != key:
            array = job.spec.array
            job_id = f"{array}_{number - array}" if array else str(number)
            entry = (key, self.job(job, job_id, is_waiting=not job.nodes))
        self._known[number] = entry
        return entry[1]

    def job(self, job: SiteJob, job_id: str, *, is_waiting: bool) -> Any:
        """Return an ordinary job."""
        spec, start_s = job.spec, job.planned_s if is_waiting else job.start_s
        array, is_task, _ = job_id.partition("_")
        return Job(
            job_id=job_id,
            user=spec.user,
            partitions=("batch",),
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

    def _pilot(self, mine: Preemptable) -> Any:
        is_waiting = mine.start_s is None
        return Job(
            job_id=f"9{mine.name[1:]}",
            user="bft",
            partitions=("bf",),
            state=JobState.PENDING if is_waiting else JobState.RUNNING,
            n_nodes=1,
            time_limit_s=mine.limits_s[0] if is_waiting else mine.limit_s,
            start_s=None if mine.start_s is None else EPOCH_S + mine.start_s,
            nodes=self.names(mine.at),
            pilot_id=mine.name,
            required_nodes=self.names(mine.node),
        )
