"""bftrainer beside a simulated machine: its polls, announcements, decisions and orders in time.

The only module here that uses bftrainer's own code. A ``Machine`` goes in as the snapshot the Slurm
adapter would have made of it, what the hook announces goes through the daemon's own
``UnseenAnnouncements``, the times of polls through its own ``PollRateLimiter``.

The times are the daemon's own on a real cluster (measured at 9896483a): a line of the
hook is read within 0.02 s, a look takes 0.1 s, an agent that is told to leave is gone 0.05 s
later, ``sbatch`` and ``scancel`` take 0.05 s each, one after the other. A daemon with a hook
decides at every event and once a second; here at every event, ``AFTER_S`` after the last one,
and ``RECHECK_S`` apart, which decides the same but for that much time.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from bftrainer.batch.announcer import UNSEEN_S, Announcement, UnseenAnnouncements
from bftrainer.batch.rate_limit import PollRateLimiter
from bftrainer.daemon.poller import rules_of
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.site.looks import EPOCH_S, ORDINARY, MachineLooks
from bftrainer.lab.site.losses import HELD, PASSED, QUEUED, RELEASED, STARTING, Causes, cause_of
from bftrainer.lab.site.machine import (
    Machine,
    Neighbour,
    Preemptable,
    SiteJob,
)
from bftrainer.lab.site.occupancy import SiteTimeline
from bftrainer.lab.site.scheduler import queue_of, startable
from bftrainer.lab.site.sharing import Share
from bftrainer.lab.site.timeline import positions
from bftrainer.model.cluster import PART_MARK, STAND_IN, Node, Snapshot, node_of
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Plan
from bftrainer.model.parts import Lend, NodePart, as_lent
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from bftrainer.site.policy.model import SitePolicy, settings_on

TRAINER = "t1"
POLL_INTERVALS = ("poll_interval_s", "poll_interval_with_hook_s")
UNSHOWN_S = UNSEEN_S  # after an announcement that a look did not show
HEARD_S, LOOK_S, LEAVE_S, ORDER_S = 0.02, 0.1, 0.05, 0.05
CHANGED_S = 0.3  # from what nobody announces to the look that it calls for
LOOK_REQUESTS = 3
AFTER_S = (1.0, 3.1)  # a pass of the main scheduler, and one of its longest
RECHECK_S = 5.0
MAIN_PASS_S = 3.0  # who knew so long before a cycle could have made room for it


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class SitePilot:
    """A pilot as the daemon sees it."""

    name: str
    node: int
    part: NodePart | None = None  # of its node; None: all of it
    size: float = 1.0  # of what it has, in nodes
    limit_s: float
    requested_s: float
    submitted_s: float | None = None
    is_held: bool = False
    held_since_s: float = 0.0
    is_leaving: bool = False
    end_s: float | None = None  # once a look has shown it running
    has_trained: bool = False
    view: PilotView | None = None  # what the decision is told, until something of it changes


class PilotOrder(NamedTuple):
    """A pilot to be submitted."""

    node: int
    limit_s: float
    part: NodePart | None  # None: all of the node


Orders = tuple[list[str], list[PilotOrder]]


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
        confirmations = 1
        if policy.idle_confirmations is not None:
            confirmations = policy.idle_confirmations
        cycle_s = machine.settings.bf_interval_s
        settings = settings_on(policy, idle_confirmations=confirmations, cycle_s=cycle_s)
        self.settings = replace(settings, lend=lend)
        self.pace = PollRateLimiter(rules_of(policy, has_hook=True))
        self._announced = UnseenAnnouncements(lambda: machine.now_s)
        self._policy = load_policy(policy.policy)
        self._memory = Memory()
        self.snapshot: Snapshot | None = None
        self.not_used: Mapping[str, str] = {}  # of the last decision
        self.given_back: set[str] = set()  # pilots that were released for a job
        self.cpu_s, self.n_decisions = 0.0, 0
        self.cycle: tuple[float, float] | None = None  # the last whole one, as sdiag tells
        self._looks = MachineLooks(machine, shows_gpus=lend is not Lend.NODES, lending=lending)
        self._lent: Snapshot | None = None
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
    def n_parts(self) -> int:
        """Return how many workers could run on all of the machine: one a node, or one a GPU."""
        settings = self._machine.settings
        if self.lend is Lend.NODES or not settings.capacities:
            return settings.n_nodes
        return sum(max(1, capacity.n_gpus) for capacity in settings.capacities)

    # ---- what is seen --------------------------------------------------------------------

    def look(self) -> Snapshot:
        """Return what a look at the machine shows now."""
        self._lent = as_lent(self._looks.look(self.cycle), self.lend, self._lent)
        return self._lent

    def take(self, snapshot: Snapshot, began_s: float) -> bool:
        """Take a look over; whether it left out a job that was announced."""
        self.snapshot = self._announced.add_to(snapshot, began_s)
        return bool(self._announced.is_unshown)

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

    def running_pilots(self, snapshot: Snapshot) -> Mapping[str, float | None]:
        """Return the pilots in a look: when their limit strikes, None: they wait."""
        ends_s: dict[str, float | None] = {}
        for job in snapshot.jobs or ():
            if job.pilot_id is None:
                continue
            ends_s[job.pilot_id] = None
            if job.start_s is not None and job.time_limit_s is not None:
                ends_s[job.pilot_id] = job.start_s + job.time_limit_s - EPOCH_S
        return ends_s

    # ---- what is decided -----------------------------------------------------------------

    def decide(self, pilots: Iterable[SitePilot], *, is_new: bool) -> Orders:
        """Decide now; return the pilots to release, and those to submit.

        Limits are in whole minutes, as the adapter submits them.
        """
        if self.snapshot is None:
            raise RuntimeError("a decision before the first look")
        pilots = tuple(pilots)
        views = tuple(map(self._view, pilots))
        training = self._training({v.node for v in views if v.is_held and not v.is_leaving})
        for pilot, view in zip(pilots, views, strict=True):
            pilot.has_trained = pilot.has_trained or view.node in training
        facts = DecisionInput(
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
        plan = decide(facts, self._policy)
        self.cpu_s += time.process_time() - began_s
        self.n_decisions += 1
        self._memory, self.not_used = plan.memory, plan.not_used
        self.given_back.update(r.pilot_id for r in plan.releases if r.for_job)
        self._follow(plan)
        orders: list[PilotOrder] = []
        for claim in plan.claims:
            limit_s = math.floor(claim.time_limit_s / 60.0) * 60.0
            if limit_s:
                orders.append(PilotOrder(int(node_of(claim.node)[1:]), limit_s, claim.part))
        return [r.pilot_id for r in plan.releases], orders

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

    def _follow(self, plan: Plan) -> None:
        """Let trainers do what is planned; this one needs no telling."""

    def _view(self, pilot: SitePilot) -> PilotView:
        if pilot.view is None:
            node = f"n{pilot.node:05d}"
            if pilot.part is not None:
                node = pilot.part.name
            pilot.view = PilotView(
                pilot_id=pilot.name,
                node=node,
                part=pilot.part,
                requested_s=EPOCH_S + pilot.requested_s,
                is_held=pilot.is_held,
                is_leaving=pilot.is_leaving,
                end_s=None if pilot.end_s is None else EPOCH_S + pilot.end_s,
            )
        return pilot.view


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
        self._pilots: dict[str, SitePilot] = {}
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
        if pilot.is_held is is_held:
            return
        self.count()
        sign = 1 if is_held else -1
        self._held += sign * pilot.size
        self._held_gpus += sign * self._gpus_of(pilot)
        if pilot.part is None:
            self.causes.note(self._machine.now_s, pilot.node, HELD if is_held else RELEASED)
        pilot.is_held, pilot.view = is_held, None
        if is_held:
            pilot.held_since_s = self._machine.now_s
        else:
            began_s = pilot.held_since_s + self.core.start_s
            self.trained_s += pilot.size * max(0.0, self._machine.now_s - began_s)

    def _gpus_of(self, pilot: SitePilot) -> int:
        if pilot.part is not None:
            return pilot.part.gpus
        return self._n_gpus[pilot.node] if self._n_gpus else 0

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
        queue_look = QueueLook(now_s + LOOK_S, queue_of(machine), machine.timeline_later())
        looked = partial(self._looked, self.core.look(), queue_look, is_called=is_called)
        machine.at(now_s + LOOK_S, looked)

    def _looked(self, snapshot: Snapshot, queue_look: QueueLook, *, is_called: bool) -> None:
        now_s, pace = self._machine.now_s, self.core.pace
        self._is_looking = False
        pace.looked(now_s - LOOK_S, now_s, LOOK_REQUESTS, is_called=is_called)
        if self.core.take(snapshot, now_s - LOOK_S):
            self._call(UNSHOWN_S)
        ends_s = self.core.running_pilots(snapshot)
        for pilot in list(self._pilots.values()):
            if pilot.name in ends_s:
                if ends_s[pilot.name] != pilot.end_s:
                    pilot.end_s, pilot.view = ends_s[pilot.name], None
            elif pilot.submitted_s is not None and pilot.submitted_s < now_s - LOOK_S:
                self._hold(pilot, is_held=False)
                del self._pilots[pilot.name]
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
        releases, claims = self.core.decide(self._pilots.values(), is_new=is_new)
        self._stepped.update(pilot.name for pilot in self._pilots.values() if pilot.has_trained)
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
        for node, limit_s, part in claims:
            self._number += 1
            name = f"p{self._number:07d}"
            self.requested.add(name)
            size = 1.0 if part is None else part.gpus / self._n_gpus[node]
            self._pilots[name] = SitePilot(
                name=name, node=node, part=part, size=size, limit_s=limit_s, requested_s=now_s
            )
            self._machine.at(self._order_s(), partial(self._submit, name))
        self._note_causes()

    def _note_causes(self) -> None:
        """Note why nodes without an ordinary job are not held."""
        machine, not_used = self._machine, self.core.not_used
        whole: dict[int, SitePilot] = {}
        parted = defaultdict[int, list[SitePilot]](list)
        for pilot in self._pilots.values():
            if pilot.part is None:
                whole[pilot.node] = pilot
            else:
                parted[pilot.node].append(pilot)
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

    def _note_parts(self, node: int, pilots: Iterable[SitePilot], whys: Sequence[str]) -> None:
        """Note the causes of each GPU of a node; ``whys``: of those without a pilot."""
        causes = {k: cause_of(why) for k, why in enumerate(whys)}
        unnumbered = dict.fromkeys(causes)
        for pilot in pilots:
            number = 0
            if pilot.part is not None:
                _, _, digits = pilot.part.name.rpartition(PART_MARK)
                number = int(digits)
            for k in (number, *unnumbered)[: 1 + len(unnumbered)]:
                if k in unnumbered:
                    del unnumbered[k]
                    causes[k] = self._cause_of(pilot)
                    break
        for k, cause in causes.items():
            self.causes.note_part(self._machine.now_s, node, k, cause)

    def _cause_of(self, pilot: SitePilot) -> str:
        if pilot.is_leaving:
            return RELEASED
        if pilot.is_held:
            return HELD
        mine = self._machine.preemptable.get(pilot.name)
        if mine is not None and mine.start_s is not None:
            return STARTING
        asked_s, cycle = pilot.submitted_s, self.last_cycle()
        if asked_s is not None and cycle is not None:
            cycle_begin_s, _ = cycle
            if asked_s < cycle_begin_s:
                return PASSED
        return QUEUED

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
            share: Share | None = None
            if pilot.part is not None:
                share = share_of(pilot.part)
            node = 1 << pilot.node
            mine = Preemptable(name=name, limit_s=pilot.limit_s, node=node, share=share)
            self._machine.submit_preemptable(mine)

    def _leave(self, name: str) -> None:
        mine = self._machine.preemptable.get(name)
        if mine is not None:
            self._machine.cancel_preemptable(mine)


def share_of(part: NodePart) -> Share:
    """Return what a pilot with this part asks of its node."""
    _, _, gpu_type = part.gpu_type.partition(":")
    return Share(cpus=part.cores, memory_mb=part.memory_mb, gpus=part.gpus, gpu_type=gpu_type)
