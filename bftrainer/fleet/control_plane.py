"""The control plane: agents, their connections, and the trainers that run on them.

Wires ``AgentServer`` (connections), ``AgentBook`` (what agents reported) and ``TrainerBook``
(generations): messages of agents go to trainers, connected agents become offers of nodes. The
daemon adds pilots and decisions; benchmarks add a plan of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from bftrainer.batch.awake import AwakeClock
from bftrainer.batch.clock import now_s
from bftrainer.fleet.generations.members import NodeOffer
from bftrainer.fleet.pilots.agents import AgentBook
from bftrainer.fleet.runtimes.base import template_of
from bftrainer.fleet.trainers.trainers import TrainerBook
from bftrainer.fleet.wire import messages
from bftrainer.fleet.wire.keys import KeyPair
from bftrainer.fleet.wire.server import MOST_ENDED, SILENT, UNREACHABLE, AgentServer
from bftrainer.journal.journal import Journal
from bftrainer.site.policy.model import SitePolicy

LOG = logging.getLogger("bftrainer.daemon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Callbacks from a control plane to its owner; all called in the event loop."""

    came: Callable[[str], object] = lambda _pilot_id: None  # before trainers hear of it
    # (pilot, why, its farewell if it sent one); before trainers hear of it
    gone: Callable[[str, str, messages.Leaving | None], object] = (
        lambda _pilot_id, _why, _farewell: None
    )
    ending: Callable[[str, float], object] = lambda _pilot_id, _grace_s: None
    changed: Callable[[], object] = lambda: None  # agents came or went, and trainers know
    # after it was processed
    received: Callable[[str, messages.AgentMessage], object] = lambda _pilot_id, _message: None


class ControlPlane:
    """One incarnation of it; ``start`` binds the port, ``stop`` closes all connections.

    Until ``adopt`` is called, workers that agents report are kept for it: a daemon that comes
    back first collects what still runs.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        policy: SitePolicy,
        pilots_dir: Path,
        incarnation: int,
        keys: KeyPair,
        listener: Listener,
        decide_soon: Callable[[], None] = lambda: None,
        leaving: Callable[[], Collection[str]] = tuple,  # pilots whose nodes are no offers
        user_of: Callable[[str], str] = lambda _pilot_id: "",  # whom a pilot runs as
        clock: Callable[[], float] = now_s,
        awake: AwakeClock | None = None,  # that the owner beats; None: an own one
    ) -> None:
        self.awake = awake or AwakeClock(shortest_s=policy.agent_timeout_s)
        self._stood_s = 0.0
        self._stands_since_s: float | None = None
        self._listener, self._leaving, self._user_of = listener, leaving, user_of
        self._journal = journal
        self.is_adopting = True
        self.agents = AgentBook(
            pilots_dir=pilots_dir, policy=policy, incarnation=incarnation, keys=keys
        )
        self.server = AgentServer(
            keys=keys,
            incarnation=incarnation,
            agent_timeout_s=policy.agent_timeout_s,
            on_message=self._on_message,
            on_lost=self._on_lost,
            awake=self.awake,
            on_missed=listener.changed,
        )
        self.trainers = TrainerBook(
            journal=journal,
            policy=policy,
            incarnation=incarnation,
            send=self.server.send,
            clock=clock,
            on_change=decide_soon,
            steady=self.steady,
            refusals=self.server.refusals,
        )
        self.trainers.on_broken = self.server.give_up
        self.trainers.agent_on = self.agents.endpoint_on
        self.trainers.connection_of = self.server.connection_of

    def steady(self) -> float:
        """Return the time of the trainers' machines, in seconds.

        It stands still while we sleep, and then until the agents that were there are back, or
        lost: their workers' words come with them.
        """
        now_s = self.awake() - self._stood_s
        if self.server.misses_agents:
            if self._stands_since_s is None:
                self._stands_since_s = now_s
            return self._stands_since_s
        if self._stands_since_s is not None:
            self._stood_s += now_s - self._stands_since_s
            now_s, self._stands_since_s = self._stands_since_s, None
        return now_s

    def adopt_policy(self, policy: SitePolicy) -> None:
        """Go by another policy from now on; connected agents hear of it as they need to."""
        self.agents.policy = policy
        self.trainers.adopt_policy(policy)

    async def start(self, host: str, port: int = 0, ports: str = "") -> str:
        """Listen for agents; return the endpoint (port 0: a free one, within ``ports``).

        Pilots may have ended for an earlier incarnation whose agents could not be told.
        """
        for pilot in self._journal.ended_pilots(MOST_ENDED):
            self.server.has_ended(pilot.pilot_id, pilot.public_key)
        self.agents.endpoint = await self.server.start(host, port, ports)
        return self.agents.endpoint

    async def stop(self) -> None:
        """Close all connections; agents and workers go on."""
        await self.server.stop()

    # ---- agents → trainers ---------------------------------------------------------------

    def _on_message(self, pilot_id: str, message: messages.AgentMessage) -> None:
        match message:
            case messages.Hello():
                self._on_hello(pilot_id, message)
            case messages.WorkerSaid(worker_id=worker_id, body=body):
                self.trainers.on_body(pilot_id, worker_id, body)
            case messages.WorkerExited(worker_id=worker_id, returncode=code, cause=cause):
                self.trainers.on_exit(pilot_id, worker_id, code, cause)
            case messages.Ending(grace_s=grace_s):
                self._listener.ending(pilot_id, grace_s)
            case messages.Leaving(reason=reason):
                self._listener.gone(pilot_id, reason, message)
                self._disconnect(pilot_id)
            case _:  # a sign of life
                pass
        self._listener.received(pilot_id, message)

    def _on_hello(self, pilot_id: str, hello: messages.Hello) -> None:
        self.agents.connected[pilot_id] = hello
        was_away = self.agents.away.pop(pilot_id, None) is not None
        self._listener.came(pilot_id)
        interpreters = self.interpreters(self._user_of(pilot_id))
        self.server.send(pilot_id, self.agents.welcome(interpreters))
        if self.is_adopting or was_away:
            self.trainers.reports.keep(pilot_id, hello.workers)
            self._reached()
        else:
            self.trainers.reconcile(pilot_id, hello.workers)
        self._listener.changed()

    def _on_lost(self, pilot_id: str, why: str) -> None:
        if why == UNREACHABLE:
            self._cannot_reach(pilot_id)
        elif pilot_id in self.agents.held:
            LOG.info("agent of pilot %s is lost: %s", pilot_id, why)
            self._listener.gone(pilot_id, why, None)
            self._disconnect(pilot_id)

    def _cannot_reach(self, pilot_id: str) -> None:
        if (hello := self.agents.connected.pop(pilot_id, None)) is None:
            return
        self._is_away(pilot_id, hello.node)
        self.trainers.cannot_reach(pilot_id)
        self._listener.changed()

    def _is_away(self, pilot_id: str, node: str) -> None:
        if not self.agents.away:
            LOG.warning("BFT-1330: cut off from most agents; trainers go on without the daemon")
        LOG.info("agent of pilot %s on %s cannot be reached", pilot_id, node)
        self.agents.away[pilot_id] = node

    def _reached(self) -> None:
        """Go on with the trainers that stood still, once no agent is away."""
        is_back = bool(self.trainers.standing or self.trainers.reports.pilots)
        if is_back and not (self.agents.away or self.is_adopting):
            LOG.info("no agent is cut off any more: trainers are taken over as they are")
            self.trainers.reached(self.offers())

    def _disconnect(self, pilot_id: str) -> None:
        self.agents.connected.pop(pilot_id, None)
        self.agents.away.pop(pilot_id, None)
        self.trainers.on_agent_lost(pilot_id)
        self._reached()
        self._listener.changed()

    # ---- trainers → agents ---------------------------------------------------------------

    def forget(self, pilot_id: str) -> None:
        """A pilot has ended: its agent may not connect again, and its secrets go."""
        if pilot_id in self.agents.connected:  # the batch system could not reach its node
            self.server.send(
                pilot_id, messages.Leave(reason="The batch system has ended its pilot.")
            )
        self.server.forget(pilot_id)
        if pilot_id in self.agents.held:
            self._disconnect(pilot_id)
        self.agents.forget(pilot_id)

    def offers(self) -> dict[str, NodeOffer]:
        """Return the nodes that trainers may use now, by pilot."""
        leaving, offers = set(self._leaving()), dict[str, NodeOffer]()
        for pilot_id in self.agents.connected:
            offer = self.agents.offer(pilot_id, self._user_of(pilot_id))
            if offer is not None and pilot_id not in leaving:
                offers[pilot_id] = offer
        return offers

    def adopt(self, missing: Collection[str] = ()) -> None:
        """Take over the workers that agents of an earlier incarnation have reported.

        The agents of ``missing`` pilots did not come in time: silent, unless we are cut off.
        """
        is_cut_off = self.server.begins_cut_off(missing)
        for pilot_id in sorted(missing):
            if is_cut_off:
                self._is_away(pilot_id, self.server.node_of(pilot_id))
            else:
                self._listener.gone(pilot_id, SILENT, None)
        self.trainers.adopt_all(self.offers(), self.agents.away)
        self.is_adopting = False

    def tick(self) -> None:
        """Let time pass for trainers; a few times a second."""
        if not self.is_adopting:
            self.trainers.tick()

    def send_signs_of_life(self) -> None:
        """Renew the leases of all agents."""
        by_user: dict[str, messages.Welcome] = {}
        for pilot_id in list(self.agents.connected):
            user = self._user_of(pilot_id)
            if user not in by_user:
                by_user[user] = self.agents.welcome(self.interpreters(user))
            self.server.send(pilot_id, by_user[user])

    def interpreters(self, user: str = "") -> list[str]:
        """Return the interpreters that agents should have templates of.

        Agents run them: one that serves a ``user`` alone is told none of anybody else's.
        """
        interpreters = set[str]()
        for record in self.trainers.waiting_and_running():
            if user in ("", record.spec.user):
                interpreters.add(template_of(record.spec))
        return sorted(interpreters - {""})
