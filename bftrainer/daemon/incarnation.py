"""One run of the daemon on its journal: poll -> decide -> carry out -> tell.

Each step is a part with a name: ``lookout`` and ``poller`` look, ``decision_stage`` decides,
``actuator`` carries out, ``chronicle`` tells. The parts do not know each other; what one of them
has to say is passed on here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.awake import AWAKE
from bftrainer.batch.batch_system import BatchSystem
from bftrainer.batch.clock import STEADY
from bftrainer.daemon.actuator import Actuator, Hooks
from bftrainer.daemon.awakenings import Awakenings
from bftrainer.daemon.chronicle import Chronicle
from bftrainer.daemon.decider import Observed, TakenDecision, input_of
from bftrainer.daemon.decision_stage import DecisionKind, DecisionStage
from bftrainer.daemon.harm.ledger import HarmRecords
from bftrainer.daemon.harm.monitor import HarmMonitor
from bftrainer.daemon.lookout import Lookout
from bftrainer.daemon.metrics import MetricsRegistry
from bftrainer.daemon.options import DaemonOptions
from bftrainer.daemon.poller import Poller
from bftrainer.daemon.reload import KIND as POLICY
from bftrainer.daemon.reload import PolicyChanged, Reloading, memory_under
from bftrainer.daemon.state import DaemonState, InForce
from bftrainer.daemon.systemd import ServiceManager
from bftrainer.decide import cycles, end_cost
from bftrainer.fleet.trainers.takeover import remembered
from bftrainer.fleet.wire.keys import KeyPair
from bftrainer.journal.journal import Journal
from bftrainer.model.cluster import Snapshot
from bftrainer.model.decision import DecisionInput
from bftrainer.model.parts import as_lent
from bftrainer.site.policy.calendar import next_blackout
from bftrainer.site.policy.model import settings_of

LOG = logging.getLogger("bftrainer.daemon")
DAY_S: Final = 86_400.0
TICK_S: Final = 0.1
SIGN_OF_LIFE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What an incarnation stands on: it is there before, and stays."""

    options: DaemonOptions
    in_force: InForce
    system: BatchSystem
    manager: ServiceManager
    reloading: Reloading
    clock: Callable[[], float]  # seconds since the epoch


class Incarnation:
    """Composes the parts and runs the loops; all in one event loop."""

    def __init__(self, ground: Ground, journal: Journal, keys: KeyPair) -> None:
        """Go on where the journal ends; ``open`` has to follow."""
        self.ground, self.journal = ground, journal
        self.started_s = ground.clock()
        self.number = journal.begin_incarnation()
        policy = ground.in_force.policy
        journal.write_beside(keep_s=DAY_S * policy.journal_days)
        self.seen = Observed()
        self.deciding = DecisionStage(ground.in_force)
        self.lookout = Lookout(
            ground.system,
            Awakenings(AWAKE, ground.clock),
            ground.clock,
            self._look_into,
        )
        self.poller = Poller(
            ground.system,
            policy,
            look=self.poll_once,
            hear=self.on_announced,
            waits_for_cycle=self._waits_for_cycle,
        )
        metrics = MetricsRegistry()
        self.harm = HarmMonitor(
            journal, policy, ground.clock, lambda records: _measure(metrics, records, self.harm)
        )
        self.actuator = Actuator(
            options=ground.options,
            in_force=ground.in_force,
            system=ground.system,
            journal=journal,
            incarnation=self.number,
            keys=keys,
            harm=self.harm,
            clock=ground.clock,
            hooks=Hooks(decide_soon=self.deciding.due.soon, poll_soon=self.poller.changed),
        )
        self.chronicle = Chronicle(
            journal=journal,
            incarnation=self.number,
            state_dir=ground.options.state_dir,
            in_force=ground.in_force,
            seen=self.seen,
            pilots=self.actuator.pilots,
            trainers=self.actuator.plane.trainers,
            metrics=metrics,
            clock=ground.clock,
        )
        ground.reloading.on_read = self.deciding.due.soon

    def state(self, keys: KeyPair) -> DaemonState:
        """Return what views may read: the books themselves, no copies, so once is enough."""
        ground, actuator, chronicle = self.ground, self.actuator, self.chronicle
        return DaemonState(
            incarnation=self.number,
            started_s=self.started_s,
            batch_system=ground.system.name,
            public_key=keys.public,
            in_force=ground.in_force,
            seen=self.seen,
            journal=self.journal,
            plane=actuator.plane,
            pilots=actuator.pilots,
            refusals=actuator.traffic.refusals,
            late=actuator.late,
            harm=self.harm,
            accountant=chronicle.accountant,
            volume=chronicle.volume,
            disk=chronicle.disk,
            draining=actuator.draining,
            poller=self.poller,
            metrics=chronicle.metrics,
            failures=self.deciding.failures,
            policy_notes=ground.reloading.notes,
            policy_files=ground.options.policy_files,
            batch_pairs=ground.options.batch_pairs,
            uses=chronicle.uses,
            idle_watch=chronicle.idle_watch,
            awakenings=self.lookout.awakenings,
        )

    # ---- life ------------------------------------------------------------------------

    async def open(self) -> None:
        """Listen for agents."""
        offered = await self.actuator.open(self.ground.options, self.ground.in_force.policy)
        LOG.info("incarnation %d listens on %s", self.number, ", ".join(offered))

    async def warn_of_settings(self) -> None:
        """Log the batch system's settings that cost nodes or time."""
        figures = end_cost.measured(self.seen.memory, self.ground.in_force.settings)
        await self.lookout.warn_of_settings(figures)

    async def tick_loop(self) -> None:
        """Do what time asks for, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            if self.lookout.awakenings.look(TICK_S):
                self._woke()
            self.actuator.tick()
            plane = self.actuator.plane
            has_waited = plane.trainers.waiting.has_begun()
            is_time = self.seen.is_to_wake(self.ground.clock()) or has_waited
            if is_time and not plane.is_adopting:
                self.deciding.due.soon()

    async def life_loop(self) -> None:
        """Give signs of life, and write down what has changed, until cancelled."""
        plane = self.actuator.plane
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_S)
            STEADY.look()
            self.journal.catch_up()
            if self.poller.has_hook:
                self.deciding.due.soon()  # polls are rare then, but decisions depend on time, too
            plane.send_signs_of_life()
            self.actuator.late.look()
            self.chronicle.look()
            if not plane.is_adopting:
                self.chronicle.accountant.look()

    def _woke(self) -> None:
        """Have what was measured or heard across a sleep not count, and see what is now."""
        self.actuator.plane.trainers.measure_anew()
        self.lookout.woke()
        self.actuator.late.woke_s = self.ground.clock()
        self.poller.call(0.0)

    def close(self) -> None:
        """Wait for what is under way in threads."""
        self.lookout.close()
        self.deciding.close()
        self.actuator.traffic.close()

    # ---- look ----------------------------------------------------------------------------

    def on_announced(self, announcements: tuple[Announcement, ...]) -> None:
        """Release nodes for an announced job before any poll shows it."""
        snapshot = self.lookout.hear(announcements, self.seen.snapshot)
        if snapshot is not None:
            self.seen.snapshot = snapshot
            self.deciding.due.for_announced()

    def _look_into(self, snapshot: Snapshot) -> Snapshot:
        """Show what of the nodes the policy in force lends (in the polling thread)."""
        lend = self.ground.in_force.settings.lend
        return self.deciding.decider.look_into(as_lent(snapshot, lend, self.seen.snapshot))

    async def poll_once(self, *, wants_cycle: bool) -> None:
        """Poll the batch system and process the snapshot."""
        traffic = self.actuator.traffic
        poll = await self.lookout.poll(wants_cycle=wants_cycle)
        snapshot = traffic.recognised(poll.snapshot)
        self.seen.snapshot = self.lookout.completed(snapshot, poll, self.seen.snapshot)
        is_unshown, owes_node = self.lookout.is_unshown, self.harm.owes_node
        traffic.observe(snapshot, poll.began_s)
        self.poller.saw(
            snapshot,
            is_unshown=is_unshown,
            owes_node=owes_node,
            awaits_end=traffic.pilots.awaits_end,
        )
        # Before the next decision, which measures what ordinary jobs noticed.
        tellers = (self.chronicle.accountant.heard, self.harm.ended)
        await traffic.explain(self.lookout.thread, tellers, self.harm.ended)
        traffic.cancel_leftovers(snapshot)
        self.lookout.awakenings.saw(poll.sleeps)
        is_whole = snapshot.nodes is not None and snapshot.jobs is not None
        self.deciding.due.soon(is_new_snapshot=is_whole)
        took_s = AWAKE() - poll.began_s
        n_connected = len(self.actuator.plane.agents.connected)
        self.ground.manager.polled(took_s, n_connected, snapshot.failures)
        self.chronicle.metrics.polled(took_s)

    def _waits_for_cycle(self) -> bool:
        pilots = self.actuator.pilots.views(self.actuator.plane.agents.held)
        return cycles.is_awaited(self.seen.memory, pilots)

    # ---- decide --------------------------------------------------------------------------

    async def decide_loop(self) -> None:
        """Take the decisions that are due, until cancelled."""
        while True:
            await self.deciding.due.wait()
            self._put_in_force()
            if not self._can_decide():
                self.ground.manager.turned()
                await asyncio.sleep(TICK_S)
                self.deciding.due.soon()
                continue
            if self.seen.snapshot is not None:
                await self._decide(self.seen.snapshot)
            self.ground.manager.turned()

    def _can_decide(self) -> bool:
        """Return whether all awaited agents are there, and a poll has shown what is now."""
        if self.actuator.plane.is_adopting:
            if not self.actuator.adoption.is_over:
                return False
            observed = self.actuator.adopt()
            settings = self.ground.in_force.settings
            self.seen.memory = remembered(self.journal, settings, observed)
        return not self.lookout.awakenings.is_dazed

    async def _decide(self, snapshot: Snapshot) -> None:
        """Take a decision, and carry it out unless the daemon slept meanwhile."""
        sleeps, kind = self.lookout.awakenings.number(), self.deciding.due.next_kind()
        decision = await self.deciding.take(self._situation(snapshot, kind))
        if sleeps != self.lookout.awakenings.number():
            self.deciding.due.put_off(kind)
            return
        self.deciding.due.taken(kind, decision.took_s)
        if decision.plan.releases or not kind.gives_back_only:
            self._carry_out(decision)

    def _situation(self, snapshot: Snapshot, kind: DecisionKind) -> DecisionInput:
        """Collect the present state; changes from now on belong to the next decision."""
        in_force, actuator = self.ground.in_force, self.actuator
        policy = in_force.policy
        # The batch system knows its cycle length only after a first request.
        in_force.settings = self.harm.applied(settings_of(policy, self.ground.system))
        now_s, ahead_s = self.ground.clock(), STEADY.calendar_ahead_s()
        return input_of(
            snapshot,
            actuator.plane.trainers,
            actuator.pilots.views(actuator.plane.agents.held),
            actuator.traffic.refusals,
            in_force.settings,
            self.seen.memory,
            now_s=now_s,
            is_new_snapshot=kind.is_new_snapshot,
            gives_back_only=kind.gives_back_only,
            may_claim=self.journal.trouble is None and not actuator.draining.is_on,
            resting=self.harm.cooling(now_s),
            blackout=next_blackout(policy.blackouts, policy.time_zone, now_s, ahead_s),
            slept=self.lookout.awakenings.slept,
        )

    def _carry_out(self, decision: TakenDecision) -> None:
        """Act on a plan; the state may have changed since its input was collected."""
        situation, plan = decision.input, decision.plan
        self.deciding.failures.left_out(plan.memory.left_out)
        if self.journal.trouble is not None:
            plan = plan.without_taking(situation.memory)
        is_to_be_noted = self.seen.is_news(decision.plan)
        self.seen.follow(situation, plan)
        self.actuator.carry_out(plan)  # first: jobs may be waiting for it
        event = self.seen.event_of(situation)
        if event or is_to_be_noted:
            self.seen.count(decision)
            self.deciding.decider.note(self.journal, decision, event=event)
        self.harm.decided(situation, plan, decision.took_s)
        self.chronicle.decided(situation, plan, decision.took_s)

    def _put_in_force(self) -> None:
        """Go by the policy that was read last, if it is another one."""
        change = self.ground.reloading.put_in_force()
        if change is not None:
            self._adopt_policy(change)

    def _adopt_policy(self, changed: PolicyChanged) -> None:
        in_force = self.ground.in_force
        policy = in_force.policy
        self.journal.note(POLICY, changed)
        self.deciding.adopt_policy(in_force)
        self.poller.adopt_policy(policy)
        self.harm.adopt_policy(policy)
        self.chronicle.adopt_policy(policy)
        self.actuator.adopt_policy(policy)
        self.journal.keep(DAY_S * policy.journal_days)
        self.ground.manager.ready(policy)  # polls may be further apart now
        logging.getLogger("bftrainer").setLevel(policy.log_level.upper())
        self.seen.memory = memory_under(self.seen.memory, policy, changed)
        LOG.info("policy %s is in force", in_force.policy_hash[:12])


def _measure(metrics: MetricsRegistry, records: HarmRecords, harm: HarmMonitor) -> None:
    metrics.settled(records, harm.rule.limit_s)
