"""The daemon: connects poll -> events -> decide -> fleet, and journals everything.

One asyncio event loop, and one background thread each for polling, cancelling, claiming, deciding
and writing the journal. None of them waits for another (docs/adr/0016).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bftrainer.api.address import already_running
from bftrainer.api.server import ApiServer
from bftrainer.api.service import Service
from bftrainer.batch.announcer import Announcement, UnseenAnnouncements
from bftrainer.batch.awake import AWAKE
from bftrainer.batch.batch_system import BatchSystem
from bftrainer.batch.clock import CLOCK_NAME, STEADY
from bftrainer.daemon.accounts import Accountant
from bftrainer.daemon.awakenings import Awakenings
from bftrainer.daemon.decider import MS_PER_S, Observed, TakenDecision, input_of
from bftrainer.daemon.decision_stage import DecisionKind, DecisionStage
from bftrainer.daemon.harm.ledger import HarmRecords
from bftrainer.daemon.harm.monitor import HarmMonitor
from bftrainer.daemon.idle_watch import IdleWatch
from bftrainer.daemon.kill_switch import Draining
from bftrainer.daemon.metrics import MetricsRegistry
from bftrainer.daemon.notifier import Notifier, own_user
from bftrainer.daemon.poller import Poller
from bftrainer.daemon.reload import Reloading
from bftrainer.daemon.remote import FarDaemon, refuse_second
from bftrainer.daemon.state import DaemonState, InForce
from bftrainer.daemon.systemd import ServiceManager
from bftrainer.daemon.uses import CURVES, FILE_NAME, UsesOfNodes
from bftrainer.daemon.uses import KIND as USES
from bftrainer.decide import cycles, end_cost
from bftrainer.decide.observation import event_between, situation_of
from bftrainer.fleet.background import Background, ready_threads
from bftrainer.fleet.control_plane import ControlPlane, Listener
from bftrainer.fleet.generations.members import NodeOffer
from bftrainer.fleet.logs import SaidOnce
from bftrainer.fleet.pilots.pilots import PilotBook, StrayPilots
from bftrainer.fleet.pilots.refusals import PilotRefusals
from bftrainer.fleet.pilots.requests import Claiming
from bftrainer.fleet.pilots.vain import LateAgents
from bftrainer.fleet.release import PilotEnds
from bftrainer.fleet.trainers.takeover import remembered
from bftrainer.fleet.wire.endpoint import remember, remembered_port
from bftrainer.fleet.wire.keys import load_or_create_pair
from bftrainer.fleet.wire.listener import offered_at
from bftrainer.fleet.wire.messages import Leave, Leaving
from bftrainer.journal.journal import Journal
from bftrainer.journal.lock import InstanceLock
from bftrainer.journal.mark import MARK_NAME
from bftrainer.model.cluster import Snapshot
from bftrainer.model.decision import DecisionInput, Event, Plan, Replacing
from bftrainer.site.policy.calendar import next_blackout
from bftrainer.site.policy.model import SitePolicy, settings_of

LOG = logging.getLogger("bftrainer.daemon")
TICK_S: Final = 0.1
SAVE_LIMIT_S: Final = 60.0  # for the last checkpoints, when the daemon ends with its nodes
LEAVE_LIMIT_S: Final = 10.0  # then for the agents
SIGN_OF_LIFE_S: Final = 1.0
KEPT_PILOT_DIRECTORIES: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """The command-line options at start."""

    state_dir: Path
    socket: Path | None = None  # None: in the state directory
    bind_host: str = "127.0.0.1"
    offered: tuple[str, ...] = ()  # addresses that others are told; (): the bound one
    agent_address: str = ""  # data-plane address of agents; "": each finds its own
    journal_url: str = ""  # "": SQLite in the state directory
    accepted_loss: int | None = None  # the last journal entry whose loss is accepted
    may_be_shared: bool = False  # the state directory, with other hosts
    policy_files: tuple[str, ...] = ()  # absolute paths; of several the later counts
    batch_pairs: tuple[str, ...] = ()  # KEY=VALUE, before the batch_options of these files


class Daemon:
    """Builds the stages and runs the loops."""

    def __init__(
        self,
        options: DaemonOptions,
        policy: SitePolicy,
        system: BatchSystem,
        *,
        serve: Callable[[Daemon], Service],
        reread: Callable[[], SitePolicy] | None = None,
        clock: Callable[[], float] = STEADY,
    ) -> None:
        self._serve = serve  # makes the users' view of our state
        self.options, self.system, self._clock = options, system, clock
        self.in_force = InForce.of(policy, system)
        self.seen = Observed()
        self.metrics = MetricsRegistry()
        self.manager = ServiceManager()
        self.deciding = DecisionStage(self.in_force)
        self._looking = ready_threads(1, "look")
        self._announced = UnseenAnnouncements()
        self.poller = Poller(
            system,
            policy,
            look=self.poll_once,
            hear=self.on_announced,
            waits_for_cycle=self._waits_for_cycle,
        )
        self._stopping = asyncio.Event()
        self.reloading = Reloading(self, reread)
        self._far: FarDaemon | None = None
        self._expected_agents: set[str] = set()
        self.background = Background()
        self.refusals, self._trouble = PilotRefusals(), SaidOnce()
        self.uses = UsesOfNodes(
            lambda: self.in_force.policy.time_zone,
            lambda note: self.journal.note(USES, note),
            lambda note: self.journal.note(CURVES, note),
        )
        self.idle_watch = IdleWatch()

    # ---- life ------------------------------------------------------------------------

    async def run(self, on_ready: Callable[[], object] = lambda: None) -> None:
        """Start, and serve until ``stop``; trainers and pilots continue without us."""
        state_dir = self.options.state_dir
        if self.options.may_be_shared:
            refuse_second(state_dir)
        url = self.options.journal_url or str(state_dir / "journal.db")
        with (
            contextlib.ExitStack() as at_end,
            InstanceLock.acquire(state_dir, may_be_shared=self.options.may_be_shared),
            contextlib.closing(
                Journal.open(
                    url,
                    clock=self._clock,
                    mark_file=state_dir / MARK_NAME,
                    accepted_loss=self.options.accepted_loss,
                )
            ) as journal,
        ):
            at_end.callback(AWAKE.rest)  # also of a daemon that does not start
            AWAKE.judges(self.in_force.policy.agent_timeout_s)
            self.awakenings = Awakenings(AWAKE, self._clock)
            await self._start(journal)
            self.state = self._for_views()
            api = ApiServer(
                self._serve(self),
                self.options.socket or state_dir / "daemon.sock",
                mode=0o666 if self.in_force.policy.is_for_all else 0o600,
                visibility=lambda: self.in_force.policy.visibility,
            )
            await api.start()
            if self.options.may_be_shared:
                self._far = FarDaemon(state_dir, api, self.keys, self.in_force.policy.ports or "")
                self._far.start(self.options.bind_host, self.options.offered)
            AWAKE.rest()  # what a start takes is no sleep
            AWAKE.beat(TICK_S)
            loops = [
                asyncio.create_task(loop())
                for loop in (self.poller.run, self._decide_loop, self._tick_loop, self._life_loop)
            ]
            self.background.run(self._warn_of_settings())
            try:
                on_ready()
                await self._until_stopped(loops)
            finally:
                for task in loops:
                    task.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
                self.accountant.close()
                if self._far is not None:
                    await self._far.stop()
                self._look_at_trainers()
                self.uses.close(state_dir / FILE_NAME)
                self.trainers.news.close()
                await api.stop()
                await self.plane.stop()
                self._looking.shutdown(wait=True, cancel_futures=True)
                self.deciding.close()
                self.ends.close()
                self.claiming.close()
                self.system.close()

    def stop(self) -> None:
        """Ask ``run`` to return."""
        self.manager.stopping()
        self._stopping.set()

    def end_with_nodes(self, *, saves: bool) -> None:
        """Release all nodes, then stop; ``saves``: after last checkpoints."""
        self.background.run(self._end_with_nodes(SAVE_LIMIT_S if saves else 0.0))

    async def _end_with_nodes(self, save_s: float) -> None:
        self.draining.end_daemon("The daemon ends (bftrainer down).", save_s)
        deadline = AWAKE() + save_s + LEAVE_LIMIT_S
        while self.agents.connected and AWAKE() < deadline:  # noqa: ASYNC110 - no event
            await asyncio.sleep(TICK_S)
        if left := sorted(self.agents.connected):
            LOG.warning("pilots %s did not leave; they are cancelled", ", ".join(left))
            self.ends.cancel(self.pilots.job_ids(left))
        self.stop()

    async def _until_stopped(self, loops: list[asyncio.Task[None]]) -> None:
        """Fail if any loop ends: that is a bug, and half a daemon must not live on."""
        stopping = asyncio.create_task(self._stopping.wait())
        done, _ = await asyncio.wait({stopping, *loops}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in done - {stopping}:
            task.result()

    async def _start(self, journal: Journal) -> None:
        STEADY.keep_in(self.options.state_dir / CLOCK_NAME)
        self.journal, self.started_s = journal, self._clock()
        self.incarnation = self.uses.incarnation = journal.begin_incarnation()
        self.uses.take_over(self.options.state_dir / FILE_NAME, self._clock())
        journal.write_beside(keep_s=86_400.0 * self.in_force.policy.journal_days)
        self.keys = load_or_create_pair(self.options.state_dir / "daemon.key")
        pilots_dir = Path(self.in_force.policy.pilots_dir or self.options.state_dir / "pilots")
        is_for_all = self.in_force.policy.is_for_all
        ours = (journal, self.system, own_user(), self._clock, AWAKE)
        self.pilots = PilotBook(*ours, as_submitter=is_for_all)
        self.pilots.unreachable_s = self.in_force.policy.unreachable_s
        self.refusals.as_submitter = is_for_all
        self.system.pilots_are_in(pilots_dir)
        self.strays = StrayPilots(pilots_dir, self.pilots.pilots, believes_names=not is_for_all)
        self.harm = HarmMonitor(journal, self.in_force.policy, self._clock, self._settled)
        self.plane = ControlPlane(
            journal=journal,
            policy=self.in_force.policy,
            pilots_dir=pilots_dir,
            incarnation=self.incarnation,
            keys=self.keys,
            listener=Listener(
                came=self._agent_came,
                gone=self._agent_gone,
                ending=self._agent_ending,
                changed=self._agents_changed,
            ),
            decide_soon=self.decide_soon,
            leaving=self.pilots.leaving,
            user_of=self.pilots.user_of,
            clock=self._clock,
            awake=AWAKE,
        )
        self.agents, self.trainers = self.plane.agents, self.plane.trainers
        self.late = LateAgents(self.pilots, self.agents, self._clock)
        books = (journal, self.pilots, self.trainers, self.seen, self._clock)
        self.accountant = Accountant(*books, lambda: self.in_force.policy)
        self.trainers.on_ended = Notifier(self._is_on_disk).ended
        self.refusals.follow(self.pilots, self.trainers.records)
        self.ends = PilotEnds(self.pilots, self.plane, self.background)
        self.draining = Draining(
            journal=journal,
            pilots=self.pilots,
            plane=self.plane,
            ends=self.ends,
            decide_soon=self.decide_soon,
            clock=self._clock,
        )
        self.claiming = Claiming(
            pilots=self.pilots,
            agents=self.agents,
            refusals=self.refusals,
            address=self.options.agent_address,
            register=self.plane.server.register,
            on_gone=self._pilot_ended,
            cancel=self.ends.cancel,
        )
        self.pilots.on_absent = lambda one: self.background.run(self.claiming.forget(one))
        await self._listen()

    def _for_views(self) -> DaemonState:
        return DaemonState(
            incarnation=self.incarnation,
            started_s=self.started_s,
            batch_system=self.system.name,
            in_force=self.in_force,
            seen=self.seen,
            journal=self.journal,
            plane=self.plane,
            pilots=self.pilots,
            refusals=self.refusals,
            late=self.late,
            harm=self.harm,
            accountant=self.accountant,
            draining=self.draining,
            poller=self.poller,
            metrics=self.metrics,
            failures=self.deciding.failures,
            policy_notes=self.reloading.notes,
            policy_files=self.options.policy_files,
            batch_pairs=self.options.batch_pairs,
            uses=self.uses,
            idle_watch=self.idle_watch,
            awakenings=self.awakenings,
        )

    async def _listen(self) -> None:
        """Listen for agents; those of an earlier incarnation reconnect at the same port."""
        for pilot_id, pilot in self.pilots.pilots.items():
            self.plane.server.register(pilot_id, pilot.record.public_key, pilot.record.node)
            if pilot.record.state.value == "running":
                self._expected_agents.add(pilot_id)
        file = self.options.state_dir / "endpoint"
        ports = self.in_force.policy.ports or ""
        port = remembered_port(file, ports)
        endpoint = await self.plane.start(self.options.bind_host, port, ports)
        offered = offered_at(self.options.offered, endpoint)
        remember(file, *offered)
        self.agents.offer_ourselves(offered, file if self.options.may_be_shared else None)
        self.adopt_deadline_s = AWAKE() + self.in_force.policy.agent_timeout_s
        LOG.info("incarnation %d listens on %s", self.incarnation, ", ".join(offered))

    def _is_on_disk(self) -> bool:
        """Wait until the journal is, in any thread; False: it cannot be written."""
        self.journal.flush()
        return self.journal.trouble is None

    # ---- agents → -----------------------------------------------------------------------

    def _agent_came(self, pilot_id: str) -> None:
        self._expected_agents.discard(pilot_id)
        if why := self.pilots.agent_came(pilot_id):
            self.plane.server.send(pilot_id, Leave(reason=why))

    def _agent_gone(self, pilot_id: str, why: str, farewell: Leaving | None) -> None:
        pilot = self.pilots.pilots.get(pilot_id)
        if farewell is not None and pilot is not None:
            waited_s = AWAKE.waited_s(self.in_force.policy.agent_timeout_s)
            self.harm.left(pilot_id, pilot.record.node, farewell, waited_s)
        self.pilots.agent_left(pilot_id, why)

    def _agent_ending(self, pilot_id: str, grace_s: float) -> None:
        self.pilots.agent_ends(pilot_id, grace_s)
        self.decide_soon()

    def _agents_changed(self) -> None:
        self.poller.changed()  # the node may be idle, or have jobs; no announcement says so
        self.decide_soon()

    # ---- poll ----------------------------------------------------------------------------

    def _waits_for_cycle(self) -> bool:
        return cycles.is_awaited(self.seen.memory, self.pilots.views(self.agents.held))

    async def _warn_of_settings(self) -> None:
        loop, known = (
            asyncio.get_running_loop(),
            end_cost.measured(self.seen.memory, self.in_force.settings),
        )
        for found in await loop.run_in_executor(self._looking, self.system.findings, known):
            LOG.warning("%s %s: %s", found.code, found.setting, found.cost)

    def on_announced(self, announcements: tuple[Announcement, ...]) -> None:
        """Release nodes for an announced job before any poll shows it."""
        known = self.seen.snapshot
        if self._announced.hear(announcements) and known is not None:
            self.seen.snapshot = self._announced.add_to(known)
            if self.seen.snapshot is not known:  # the end of a pilot changes nothing
                self.deciding.due.for_announced()

    async def poll_once(self, *, wants_cycle: bool) -> None:
        """Poll the batch system and process the snapshot."""
        number = self.awakenings.number()
        looked_s, began = AWAKE(), self._announced.look_begins()
        snapshot = await asyncio.get_running_loop().run_in_executor(
            self._looking,
            lambda: self.deciding.decider.look_into(self._taken(wants_cycle=wants_cycle)),
        )
        if new := self._trouble.new(snapshot.failures):
            LOG.warning("batch system: %s", "; ".join(new))
        elif not snapshot.failures and self._trouble.is_over():
            LOG.info("batch system: it answers again")
        self.refusals.polled(snapshot.closed)
        snapshot = self.pilots.recognised(snapshot)
        known = snapshot.with_last_known(self.seen.snapshot)
        self.seen.snapshot = self._announced.add_to(known, began)
        is_unshown, owes_node = self._announced.is_unshown, self.harm.owes_node
        self.poller.saw(snapshot, is_unshown=is_unshown, owes_node=owes_node)
        for pilot_id in self.pilots.observe(snapshot, looked_s):
            self._pilot_ended(pilot_id)
        # Before the next decision, which measures what ordinary jobs noticed.
        tellers = (self.accountant.heard, self.harm.ended)
        await self.ends.explain(self._looking, tellers, self.harm.ended)
        if overdue := self.pilots.overdue():
            self.ends.cancel(overdue, force=True)
        if strays := self.strays.to_cancel(snapshot, self.pilots.pilots):
            self.ends.cancel(strays)
        self.awakenings.saw(number)
        self.decide_soon(is_new_snapshot=None not in (snapshot.nodes, snapshot.jobs))
        took_s = AWAKE() - looked_s
        self.manager.polled(took_s, len(self.agents.connected), snapshot.failures)
        self.metrics.polled(took_s)

    def _taken(self, *, wants_cycle: bool) -> Snapshot:
        began_s = self._clock()
        snapshot = self.system.snapshot(wants_cycle=wants_cycle)
        return snapshot.taken_between(began_s, self._clock())

    def _pilot_ended(self, pilot_id: str) -> None:
        self.plane.forget(pilot_id)
        self.agents.remove_old(KEPT_PILOT_DIRECTORIES)
        self._expected_agents.discard(pilot_id)

    # ---- decide --------------------------------------------------------------------------

    def decide_soon(self, *, is_new_snapshot: bool = False) -> None:
        """Request a decision; requests in one turn of the event loop are merged."""
        self.deciding.due.soon(is_new_snapshot=is_new_snapshot)

    async def _decide_loop(self) -> None:
        while True:
            await self.deciding.due.wait()
            self.reloading.put_in_force()
            if not self._can_decide():
                self.manager.turned()
                await asyncio.sleep(TICK_S)
                self.decide_soon()
                continue
            if self.seen.snapshot is not None:
                await self._decide(self.seen.snapshot)
            self.manager.turned()

    def _can_decide(self) -> bool:
        """Return whether all agents are there that are waited for, and a poll has shown what is."""
        if self.plane.is_adopting and not self._finish_adopting():
            return False
        return not self.awakenings.is_dazed

    async def _decide(self, snapshot: Snapshot) -> None:
        """Take the decision that is due, and carry it out unless the daemon slept meanwhile."""
        sleeps, kind = self.awakenings.number(), self.deciding.due.next_kind()
        decision = await self.deciding.take(self._situation(snapshot, kind))
        if sleeps != self.awakenings.number():
            self.deciding.due.put_off(kind)
            return
        self.deciding.due.taken(kind, decision.took_s)
        if decision.plan.releases or not kind.gives_back_only:
            self._carry_out(decision)

    def _finish_adopting(self) -> bool:
        """Wait for the agents of an earlier incarnation, with a time limit."""
        if self._expected_agents and AWAKE() < self.adopt_deadline_s:
            return False
        self.plane.adopt(self._expected_agents)
        observed = self.trainers.occupancy().training
        ours = self.trainers
        nodes = {n: i for i in ours.trainers for part in ours.nodes_of(i) for n in part}
        self._assign(nodes)  # until the first plan; without nodes trainers would park
        self.seen.memory = remembered(self.journal, self.in_force.settings, observed)
        return True

    def _situation(self, snapshot: Snapshot, kind: DecisionKind) -> DecisionInput:
        """Collect the present state; changes from now on belong to the next decision."""
        force, policy = self.in_force, self.in_force.policy
        # The batch system knows its cycle length only after a first request.
        force.settings = self.harm.applied(settings_of(policy, self.system))
        now_s, ahead_s = self._clock(), STEADY.calendar_ahead_s()
        is_open = self.journal.trouble is None and not self.draining.is_on
        return input_of(
            snapshot,
            self.trainers,
            self.pilots.views(self.agents.held),
            self.refusals,
            force.settings,
            self.seen.memory,
            now_s=now_s,
            is_new_snapshot=kind.is_new_snapshot,
            gives_back_only=kind.gives_back_only,
            may_claim=is_open,
            resting=self.harm.cooling(now_s),
            blackout=next_blackout(policy.blackouts, policy.time_zone, now_s, ahead_s),
            slept=self.awakenings.slept,
        )

    def _carry_out(self, decision: TakenDecision) -> None:
        """Act on a plan; the state may have changed since its input was collected."""
        situation, plan = decision.input, decision.plan
        self.deciding.failures.left_out(plan.memory.left_out)
        done, before = plan, self.seen.plan
        if self.journal.trouble is not None:
            done = plan.without_taking(situation.memory)
        self.seen.memory = done.memory
        if not situation.gives_back_only or before is None:
            self.seen.plan, self.seen.given = done, situation
        self._actuate(done)  # first: jobs may be waiting for it
        event = self._event(situation)
        changed = before is None or plan.assignment != before.assignment
        if event or changed or plan.claims or plan.releases:
            self.seen.decisions += 1
            self.seen.decision_ms = MS_PER_S * decision.took_s
            self.seen.decided_s = situation.now_s
            self.deciding.decider.note(self.journal, decision, event=event)
        self.metrics.decided(decision.took_s)
        self.harm.decided(situation, done, decision.took_s)
        self.uses.saw(situation, done, (self.pilots.give_backs, self.pilots.preemptions))
        self.idle_watch.saw(situation, done)

    def _settled(self, found: HarmRecords) -> None:
        self.metrics.settled(found, self.harm.rule.limit_s)

    def _event(self, given: DecisionInput) -> Event | None:
        ours = [p.node for p in given.pilots if not p.is_leaving]
        trainers = [r.trainer_id for r in given.trainers]
        held = [p.pilot_id for p in given.pilots if p.is_held]
        after = situation_of(given.snapshot, ours, trainers, held)
        before, self.seen.situation = self.seen.situation, after
        return None if before is None else event_between(before, after, given.now_s)

    # ---- actuate -------------------------------------------------------------------------

    def _actuate(self, plan: Plan) -> None:
        self.ends.release(plan.releases)
        self._assign(plan.assignment, plan.memory.replacing)
        self.trainers.drop(plan.dropped)
        if plan.claims:
            pilot_ids = self.journal.next_pilot_ids(len(plan.claims), above=self.strays.greatest)
            requests = self.claiming.open(plan, pilot_ids, self.trainers.records)
            self.background.run(self.claiming.ask(requests))

    def _assign(
        self, assignment: Mapping[str, str], replacing: Mapping[str, Replacing] | None = None
    ) -> None:
        """Give each trainer those of its nodes whose agents are connected."""
        targets: dict[str, list[NodeOffer]] = {}
        by_node = {offer.node: offer for offer in self.plane.offers().values()}
        for node, trainer_id in assignment.items():
            if node in by_node:
                targets.setdefault(trainer_id, []).append(by_node[node])
        self.trainers.set_targets(targets, replacing)

    # ---- time ----------------------------------------------------------------------------

    async def _tick_loop(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self.awakenings.look(TICK_S):
                self._woke()
            self.plane.tick()
            if not self.plane.is_adopting:
                self.draining.tick()
            now_s = self._clock()
            is_time = self.seen.is_to_wake(now_s) or self.trainers.waiting.has_begun()
            if is_time and not self.plane.is_adopting:
                self.decide_soon()

    def _woke(self) -> None:
        """Have what was measured or heard across a sleep not count, and see what is now."""
        self.trainers.measure_anew()
        self._announced.slept()
        self.late.woke_s = self._clock()
        self.poller.call(0.0)

    def _look_at_trainers(self) -> None:
        self.uses.look(self.trainers.touched, self._clock(), self.trainers.records.values())

    async def _life_loop(self) -> None:
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_S)
            STEADY.look()
            self.journal.catch_up()
            if self.poller.has_hook:
                self.decide_soon()  # polls are rare then, but decisions depend on time, too
            self.plane.send_signs_of_life()
            self.late.look()
            self._look_at_trainers()
            if not self.plane.is_adopting:
                self.accountant.look()
            if self._far is not None and (other := self._far.successor()):
                raise already_running(self.options.state_dir, other)
