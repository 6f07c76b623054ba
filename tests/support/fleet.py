"""Daemon and decision together on a clock of their own: real books, machines and decisions.

The batch system (``SimCluster``), agents and workers (``worker_model.World``) are models whose
workers take time to start. Used by the property test of starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from bftrainer.daemon.decider import input_of
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.fleet.generations.members import Kill, NodeOffer, StartWorkerOn, Tell
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.pilots.refusals import PilotRefusals
from bftrainer.fleet.trainers.trainers import TrainerBook
from bftrainer.fleet.wire.messages import DaemonMessage, KillWorker, StartWorker, TellWorker
from bftrainer.ground import protocol
from bftrainer.journal.journal import Journal
from bftrainer.model.decision import Memory, Plan, Settings
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from bftrainer.site.policy.model import SitePolicy
from tests.support.sim_cluster import SimCluster, SimJob
from tests.support.worker_model import World

TICK_S = 1.0
FOREVER_S = 1e9


class NoJournal:
    """Accepts what the books write, and keeps nothing."""

    def __init__(self) -> None:
        self._count = 0

    def trainers(self) -> tuple[TrainerRecord, ...]:
        return ()

    def pilots(self, *, active_only: bool) -> tuple[()]:
        del active_only
        return ()

    def submit_all(self, asked: Any, now_s: float) -> tuple[TrainerRecord, ...]:
        made = []
        for spec, waits_for in asked:
            self._count += 1
            one = TrainerRecord(
                trainer_id=f"t{self._count}", spec=spec, state=TrainerState.QUEUED,
                submitted_s=now_s, waits_for=waits_for,
            )  # fmt: skip
            made.append(one)
        return tuple(made)

    def note(self, *_given: object, **_records: object) -> None:
        pass

    append = note_large = note


@dataclass(slots=True, kw_only=True)
class Asked:
    """What is to happen to a trainer, and what did."""

    start_s: float  # of each of its workers
    steps: int  # it finishes after so many
    world: World = field(default_factory=World)
    born_s: dict[str, float] = field(default_factory=dict)  # worker -> forked
    submitted_s: float = 0.0
    first_step_s: float | None = None


class Fleet:
    """A site; ``pass_time`` lets everything happen that is due."""

    def __init__(
        self,
        n_nodes: int,
        *,
        policy: str = "milp",
        poll_s: float = 1.0,
        hello_s: float = 1.0,
        settings: Settings | None = None,
    ) -> None:
        self.cluster = SimCluster(types={f"n{k}": "cpu" for k in range(1, n_nodes + 1)})
        self.settings = replace(
            settings or Settings(reserve_nodes_per_type=0, min_gap_s=0.0), policy=policy
        )
        self.allocate = load_policy(policy)
        self.poll_s, self.hello_s, self._polled_s = poll_s, hello_s, -FOREVER_S
        journal = cast("Journal", NoJournal())
        site = SitePolicy(quarantine_s=0.0)
        self.book = TrainerBook(
            journal=journal, policy=site, incarnation=1, send=self._send, clock=self._clock,
            on_change=self._changed,
        )  # fmt: skip
        self.pilots = PilotBook(journal, cast("Any", None), "bft", self._clock)
        self.refusals = PilotRefusals()
        self.pilots.on_ended = lambda pilot: self.refusals.pilot_ended(pilot, self.book.records)
        self.asked: dict[str, Asked] = {}
        self.memory, self.plan = Memory(), cast("Plan", None)
        self.requested: Counter[str] = Counter()  # pilots, by the trainer that they were for
        self.released: list[tuple[float, str, str]] = []  # when, node, why
        self.trained_on: set[tuple[str, str]] = set()  # pilot and trainer: it made a first step
        self._number, self._wants_decision = 0, True

    def _clock(self) -> float:
        return self.cluster.now_s

    def _changed(self) -> None:
        self._wants_decision = True

    # ---- what users and the site do ------------------------------------------------------

    def submit(self, *, n_min: int, n_max: int, start_s: float, steps: int) -> str:
        spec = TrainerSpec(
            name="t", user="ada", script="/t.py", n_min=n_min, n_max=n_max,
            checkpoint_dir=f"/ck/{len(self.asked)}",
        )  # fmt: skip
        record = self.book.submit(spec)
        one = self.asked[record.trainer_id] = Asked(
            start_s=start_s, steps=steps, submitted_s=self._clock()
        )
        for pilot in self.cluster.pilots.values():
            if pilot.is_held:
                one.world.add_agent(pilot.pilot_id, pilot.node)
        return record.trainer_id

    def fail(self, trainer_id: str) -> None:
        """Let its first worker fail."""
        world = self.asked[trainer_id].world
        for worker_id in sorted(world.workers)[:1]:
            world.die(worker_id, 1)

    def take(self, node: str) -> None:
        """Let an ordinary job have the node until ``give``."""
        for pilot in [p for p in self.cluster.pilots.values() if p.node == node]:
            self._lose(pilot.pilot_id)
        if all(node not in job.nodes for job in self.cluster.jobs.values()):
            job_id = f"j{len(self.cluster.jobs)}-{self._number}-{node}"
            self.cluster.jobs[job_id] = SimJob(
                job_id=job_id, n_nodes=1, limit_s=FOREVER_S, start_s=self._clock(), nodes=(node,)
            )

    def give(self, node: str) -> None:
        """The ordinary job on the node has ended."""
        gone = [i for i, job in self.cluster.jobs.items() if node in job.nodes]
        for job_id in gone:
            del self.cluster.jobs[job_id]

    def open_trainers(self) -> list[str]:
        return [i for i, r in self.book.records.items() if not r.state.is_final]

    def sizes(self) -> Mapping[str, int]:
        return Counter(self.book.occupancy().training.values())

    # ---- time ----------------------------------------------------------------------------

    def pass_time(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass in ticks; stop early, and return True, when ``until`` holds."""
        end_s = self._clock() + seconds
        while self._clock() < end_s:
            if until():
                return True
            self.cluster.pass_time(TICK_S)
            self._schedule()
            self._agents()
            for trainer_id, one in self.asked.items():
                self._workers(trainer_id, one)
            self.book.tick()
            if self._clock() - self._polled_s >= self.poll_s:
                self._poll()
            elif self._wants_decision:
                self._decide(is_new=False)
        return until()

    def _schedule(self) -> None:
        """Start what can start, as a main scheduler does; backfill cycles are rarer."""
        cycled_s = self.cluster.cycle_ended_s
        self.cluster.cycle()
        if cycled_s is not None and self._clock() - cycled_s < self.settings.cycle_s:
            self.cluster.cycle_ended_s = cycled_s

    def _poll(self) -> None:
        self._polled_s = self._clock()
        self.seen = self.cluster.snapshot()
        for pilot_id in self.pilots.observe(self.seen, self._clock()):
            self._lose(pilot_id)
        self._decide(is_new=True)

    def _decide(self, *, is_new: bool) -> None:
        self._wants_decision = False
        held = {p.pilot_id for p in self.cluster.pilots.values() if p.is_held and not p.is_leaving}
        given = input_of(
            self.seen, self.book, self.pilots.views(held), self.refusals, self.settings,
            self.memory, now_s=self._clock(), is_new_snapshot=is_new, resting={},
        )  # fmt: skip
        self.plan = decide(given, self.allocate)
        self.memory = self.plan.memory
        self.pilots.release(self.plan.releases, held)
        for release in self.plan.releases:
            self.released.append((self._clock(), release.node, release.reason))
            if release.pilot_id in self.cluster.pilots:
                self.cluster.pilots[release.pilot_id].is_leaving = True
                self._agent_gone(release.pilot_id, "told")
        offers: dict[str, list[NodeOffer]] = {}
        by_node = {p.node: p for p in self.cluster.pilots.values() if p.pilot_id in held}
        for node, trainer_id in self.plan.assignment.items():
            if (pilot := by_node.get(node)) is not None and not pilot.is_leaving:
                offers.setdefault(trainer_id, []).append(_offer(node, pilot.pilot_id))
        self.book.set_targets(offers, self.plan.memory.replacing)
        self.book.drop(self.plan.dropped)
        self._claim()

    def _claim(self) -> None:
        for claim in self.refusals.tried(self.plan.claims, self.book.records):
            self._number += 1
            pilot_id = f"p{self._number:06d}"
            pilot = self.pilots.open(pilot_id, claim, "key")
            pilot.is_written = True
            self.pilots.launched(pilot, str(self._number))
            self.requested[claim.for_trainer] += 1
            self.cluster.add_pilot(pilot_id, claim.node, claim.time_limit_s)

    # ---- agents and workers ----------------------------------------------------------------

    def _agents(self) -> None:
        for pilot in self.cluster.pilots.values():
            is_due = pilot.start_s is not None and pilot.start_s + self.hello_s <= self._clock()
            if is_due and not (pilot.is_held or pilot.is_leaving):
                pilot.is_held = True
                for one in self.asked.values():
                    one.world.add_agent(pilot.pilot_id, pilot.node)
                self.pilots.agent_came(pilot.pilot_id)
                self.book.reconcile(pilot.pilot_id, ())
                self._wants_decision = True

    def _lose(self, pilot_id: str) -> None:
        """The pilot is gone, and all that ran there."""
        self._agent_gone(pilot_id, "signal")
        self.cluster.pilots.pop(pilot_id, None)

    def _agent_gone(self, pilot_id: str, why: str) -> None:
        is_known = False
        for one in self.asked.values():
            if pilot_id in one.world.channels:
                one.world.lose_agent(pilot_id)
                is_known = True
        if is_known:
            self.pilots.agent_left(pilot_id, why)
            self.book.on_agent_lost(pilot_id)
            self._wants_decision = True

    def _send(self, pilot_id: str, message: DaemonMessage, /) -> bool:
        """Pass a message to the model of its trainer's workers."""
        match message:
            case StartWorker():
                worker_id = str(message.config["worker_id"])
                said: Any = StartWorkerOn(
                    pilot_id=pilot_id, worker_id=worker_id, node="", address=""
                )
            case TellWorker(worker_id=worker_id):
                said = Tell(pilot_id=pilot_id, worker_id=worker_id, body=dict(message.body))
            case KillWorker(worker_id=worker_id):
                said = Kill(pilot_id=pilot_id, worker_id=worker_id, reason="")
            case _:
                return True
        self.asked[worker_id.partition("-")[0]].world.carry_out([said])
        return True

    def _workers(self, trainer_id: str, one: Asked) -> None:
        """Deliver messages and let workers move until nothing is left to do; then one step."""
        world, moved = one.world, True
        while moved:
            moved = self._deliver(world)
            for worker_id in world.workers.keys() - one.born_s.keys():
                one.born_s[worker_id] = self._clock()
            for what, worker_id in world.moves():
                is_due = self._clock() - one.born_s[worker_id] >= one.start_s
                if worker_id in world.workers and (what != "warm" or is_due):
                    world.move(what, worker_id)
                    moved = True
                    break
        self._train(trainer_id, one)

    def _deliver(self, world: World) -> bool:
        moved = False
        for pilot_id in list(world.channels):
            channel = world.channels.get(pilot_id)
            while channel is not None and (channel.to_agent or channel.to_daemon):
                moved = True
                if channel.to_agent:
                    world.deliver_to_agent(pilot_id)
                    continue
                worker_id, said = channel.to_daemon.popleft()
                if isinstance(said, int):
                    self.book.on_exit(pilot_id, worker_id, said, "")
                else:
                    self.book.on_body(pilot_id, worker_id, protocol.to_body(said))
        return moved

    def _train(self, trainer_id: str, one: Asked) -> None:
        world = one.world
        first = next((w for w in world.workers.values() if w.group is not None), None)
        if first is None or first.group is None or not world.train(first.worker_id):
            return
        for _ in first.group.members[1:]:  # throughput grows with the size
            world.train(first.worker_id)
        members = [world.workers[m.worker_id] for m in first.group.members]
        one.first_step_s = self._clock() if one.first_step_s is None else one.first_step_s
        self.trained_on.update((member.pilot_id, trainer_id) for member in members)
        if first.step >= one.steps:
            for member in members:
                world.finish(member.worker_id)
        self._deliver(world)


def _offer(node: str, pilot_id: str) -> NodeOffer:
    return NodeOffer(
        node=node, pilot_id=pilot_id, address=node, agent_endpoint="", agent_public_key=""
    )
