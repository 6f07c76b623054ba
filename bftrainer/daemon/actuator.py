"""Carries out plans: pilots are released and requested, trainers get the nodes of their agents.

It holds what a daemon has on the cluster: pilots, agents, trainers. ``incarnation`` gives it plans.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bftrainer.batch.awake import AWAKE
from bftrainer.batch.batch_system import BatchSystem
from bftrainer.daemon.adoption import Adoption
from bftrainer.daemon.agent_news import AgentNews
from bftrainer.daemon.harm.monitor import HarmMonitor
from bftrainer.daemon.kill_switch import Draining
from bftrainer.daemon.notifier import Notifier, own_user
from bftrainer.daemon.options import DaemonOptions
from bftrainer.daemon.pilot_traffic import PilotTraffic
from bftrainer.daemon.state import InForce
from bftrainer.fleet.control_plane import ControlPlane
from bftrainer.fleet.generations.members import NodeOffer
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.pilots.strays import StrayPilots
from bftrainer.fleet.pilots.vain import LateAgents
from bftrainer.fleet.release import LOOK_EVERY_S
from bftrainer.fleet.wire.endpoint import remember, remembered_port
from bftrainer.fleet.wire.keys import KeyPair
from bftrainer.fleet.wire.listener import offered_at
from bftrainer.fleet.wire.messages import Leave
from bftrainer.journal.journal import Journal
from bftrainer.journal.projection import PilotState
from bftrainer.model.decision import Plan, Replacing
from bftrainer.model.lookups import by_node
from bftrainer.site.policy.model import SitePolicy

LOG = logging.getLogger("bftrainer.daemon")
ENDPOINT_NAME: Final = "endpoint"
KEPT_PILOT_DIRECTORIES: Final = 50
UNHEEDED_LIMIT_S: Final = 5.0  # then for jobs whose agents are not heard; they are killed at 2 s
LEAVE_LIMIT_S: Final = 10.0  # for agents, when the daemon ends with its nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What an actuator asks of the daemon's loops."""

    decide_soon: Callable[[], None]
    poll_soon: Callable[[], None]


class Actuator:
    """The pilots, agents and trainers of one daemon; used in the event loop."""

    def __init__(
        self,
        *,
        options: DaemonOptions,
        in_force: InForce,
        system: BatchSystem,
        journal: Journal,
        incarnation: int,
        keys: KeyPair,
        harm: HarmMonitor,
        clock: Callable[[], float],
        hooks: Hooks,
    ) -> None:
        self.adoption = Adoption(AWAKE)
        policy = in_force.policy
        pilots_dir = Path(policy.pilots_dir or options.state_dir / "pilots")
        pilots = _pilot_book(journal, system, policy, clock)
        system.pilots_are_in(pilots_dir)
        strays = StrayPilots(pilots_dir, pilots.pilots, believes_names=not policy.is_for_all)
        news = AgentNews(
            in_force=in_force,
            pilots=pilots,
            adoption=self.adoption,
            harm=harm,
            dismiss=self._dismiss,
            decide_soon=hooks.decide_soon,
            poll_soon=hooks.poll_soon,
        )
        self.plane = ControlPlane(
            journal=journal,
            policy=policy,
            pilots_dir=pilots_dir,
            incarnation=incarnation,
            keys=keys,
            listener=news.listener(),
            decide_soon=hooks.decide_soon,
            leaving=pilots.leaving,
            user_of=pilots.user_of,
            clock=clock,
            awake=AWAKE,
        )
        self.late = LateAgents(pilots, self.plane.agents, clock)
        self.traffic = PilotTraffic(
            journal=journal,
            pilots=pilots,
            strays=strays,
            plane=self.plane,
            agent_address=options.agent_address,
            on_ended=self._pilot_ended,
            poll_soon=hooks.poll_soon,
        )
        self.plane.trainers.on_ended = Notifier(lambda: is_on_disk(journal)).ended
        self.draining = Draining(
            journal=journal,
            pilots=pilots,
            plane=self.plane,
            ends=self.traffic.ends,
            decide_soon=hooks.decide_soon,
            clock=clock,
        )

    @property
    def pilots(self) -> PilotBook:
        """The daemon's pilots."""
        return self.traffic.pilots

    async def open(self, options: DaemonOptions, policy: SitePolicy) -> tuple[str, ...]:
        """Listen for agents; those of an earlier incarnation reconnect at the same port.

        Returns:
            The endpoints that agents are told.
        """
        running = []
        for pilot_id, pilot in self.pilots.pilots.items():
            self.plane.server.register(pilot_id, pilot.record.public_key, pilot.record.node)
            if pilot.record.state is PilotState.RUNNING:
                running.append(pilot_id)
        file = options.state_dir / ENDPOINT_NAME
        ports = policy.ports or ""
        endpoint = await self.plane.start(options.bind_host, remembered_port(file, ports), ports)
        offered = offered_at(options.offered, endpoint)
        remember(file, *offered)
        shared_file = None
        if options.may_be_shared:
            shared_file = file
        self.plane.agents.offer_ourselves(offered, shared_file)
        self.adoption.begin(running, policy.agent_timeout_s)
        return offered

    def adopt(self) -> Mapping[str, str]:
        """Take over the trainers that agents reported; return node -> trainer, as observed."""
        self.plane.adopt(self.adoption.awaited)
        trainers = self.plane.trainers
        observed = trainers.occupancy().training
        nodes: dict[str, str] = {}
        for trainer_id in trainers.trainers:
            for part in trainers.nodes_of(trainer_id):
                nodes.update(dict.fromkeys(part, trainer_id))
        self._assign(nodes, None)  # until the first plan; without nodes trainers would park
        return observed

    def adopt_policy(self, policy: SitePolicy) -> None:
        """Go by another policy from now on."""
        self.plane.adopt_policy(policy)
        self.pilots.unreachable_s = policy.unreachable_s

    def carry_out(self, plan: Plan) -> None:
        """Release and request pilots, and give trainers their nodes."""
        self.traffic.ends.release(plan.releases)
        self._assign(plan.assignment, plan.memory.replacing)
        self.plane.trainers.drop(plan.dropped)
        self.traffic.request(plan)

    def tick(self) -> None:
        """Do what time asks for; several times a second."""
        self.plane.tick()
        if not self.plane.is_adopting:
            self.draining.tick()

    async def give_all_back(self, reason: str, save_s: float) -> None:
        """Give all nodes back because the daemon ends; return when the agents have left.

        Args:
            reason: for the agents.
            save_s: the time that workers have for their last checkpoints.
        """
        self.draining.end_daemon(reason, save_s)
        deadline_s = AWAKE() + save_s + LEAVE_LIMIT_S
        agents = self.plane.agents
        while agents.connected and AWAKE() < deadline_s:  # noqa: ASYNC110 - no event
            await asyncio.sleep(LOOK_EVERY_S)
        if agents.connected:
            pilot_ids = sorted(agents.connected)
            LOG.warning("pilots %s did not leave; they are cancelled", ", ".join(pilot_ids))
            self.traffic.ends.cancel(self.pilots.job_ids(pilot_ids))
        await self.traffic.ends.end_unheeded(UNHEEDED_LIMIT_S)

    async def close(self) -> None:
        """Close all connections; pilots, agents and workers go on."""
        await self.plane.stop()

    def _dismiss(self, pilot_id: str, why: str) -> None:
        self.plane.server.send(pilot_id, Leave(reason=why))

    def _pilot_ended(self, pilot_id: str) -> None:
        self.plane.forget(pilot_id)
        self.plane.agents.remove_old(KEPT_PILOT_DIRECTORIES)
        self.adoption.settled(pilot_id)

    def _assign(
        self, assignment: Mapping[str, str], replacing: Mapping[str, Replacing] | None
    ) -> None:
        """Give each trainer those of its nodes whose agents are connected."""
        offers = by_node(self.plane.offers().values())
        targets: dict[str, list[NodeOffer]] = {}
        for node, trainer_id in assignment.items():
            if node in offers:
                targets.setdefault(trainer_id, []).append(offers[node])
        self.plane.trainers.set_targets(targets, replacing)


def _pilot_book(
    journal: Journal, system: BatchSystem, policy: SitePolicy, clock: Callable[[], float]
) -> PilotBook:
    pilots = PilotBook(journal, system, own_user(), clock, AWAKE, as_submitter=policy.is_for_all)
    pilots.unreachable_s = policy.unreachable_s
    return pilots


def is_on_disk(journal: Journal) -> bool:
    """Wait until the journal is, in any thread; False: it cannot be written."""
    journal.flush()
    return journal.trouble is None
