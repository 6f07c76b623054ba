"""The daemon's server for agents: receives their messages and detects losses.

Two callbacks deliver validated messages, with the sender's *authenticated* pilot id, and losses.
Owned by the daemon.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from bftrainer.batch.awake import AwakeClock
from bftrainer.fleet.wire import messages
from bftrainer.fleet.wire.keys import KeyPair
from bftrainer.fleet.wire.peers import QUIET, Reach
from bftrainer.fleet.wire.router import CurveRouter, Origin, RefusedMessages
from bftrainer.model.errors import BftError

LOG = logging.getLogger("bftrainer.wire")
DEAD_TIMES = 2.5  # of it: then a connection is closed whose agent was called silent before
MOST_ENDED = 1000  # pilots that have ended whose agents are still told so
ENDED = "The batch system has ended its pilot."
SILENT, UNREACHABLE = "silent", "unreachable"  # why an agent is lost, or only not heard
CHECKS_PER_TIMEOUT = 16  # a loss is detected at most 1/16 of the timeout late


class _Registered(NamedTuple):
    """What the agent of a pilot is known by."""

    public_key: str = ""
    node: str = ""


@dataclass(slots=True, kw_only=True)
class _Connection:
    """An agent that has sent Hello and is not lost."""

    pilot_id: str
    process: str  # peer key of the agent: it makes a new one when it starts
    route: bytes
    number: int  # of the first Hello on it
    heard_s: float  # of the server's clock
    has_left: bool = False  # it said that it leaves
    is_broken: bool = False  # its end says nothing of the agent, which may come back


class AgentServer:
    """Serves the agents of registered pilots; other connections get no answer.

    ``on_message(pilot_id, message)``: the first message of every connection is a
    ``Hello``; nothing is delivered before it, nor after a loss until the next one.
    ``on_lost(pilot_id, why)``: at once when the agent's connection breaks ("disconnected",
    also after its ``Leaving``, and always before the ``Hello`` of its next connection),
    or after ``agent_timeout_s`` without a message ("silent"). An agent that connects again
    before is not lost. If most are silent, the daemon is cut off (``wire.reach``): they are
    "unreachable", and lost, which is reported then, only if they do not come back with the others.
    A broken connection is silence, too, where it says more of us than of the agent, which closes
    a path that it takes for dead: soon after we slept, when most break at once, and when nothing
    was heard for a while before. Ages are times of ``awake``.
    Both run in the event loop. ``refusals`` counts what was refused or dropped.

    Agents of pilots that have ended are told to leave.

    If ``on_message`` raises an unexpected error, the sender's agent is lost ("failed") and no
    other; a ``BftError`` is passed on to the daemon.
    """

    def __init__(
        self,
        *,
        keys: KeyPair,
        incarnation: int,
        agent_timeout_s: float,
        on_message: Callable[[str, messages.AgentMessage], None],
        on_lost: Callable[[str, str], None],
        awake: AwakeClock | None = None,  # that the owner of the loop beats; None: an own one
        on_missed: Callable[[], object] = lambda: None,  # connections broke, agents may live
    ) -> None:
        self._awake = awake or AwakeClock(shortest_s=agent_timeout_s)
        self._wakings, self._on_missed = self._awake.sleeps, on_missed
        self._incarnation = incarnation
        self._timeout_s = agent_timeout_s
        self._on_message = on_message
        self._on_lost = on_lost
        self._pilot_by_key: dict[str, str] = {}
        self._registered: dict[str, _Registered] = {}  # by pilot
        self._ended: dict[str, str] = {}  # key -> pilot, oldest first
        self.reach = Reach(timeout_s=agent_timeout_s)
        self._by_pilot: dict[str, _Connection] = {}
        self._by_route: dict[bytes, _Connection] = {}
        self._missed: set[str] = set()  # pilots whose agents were there before we slept
        self._order: dict[bytes, int] = {}  # of connections, by their first Hello
        self._numbers = itertools.count()
        self._checker: asyncio.TimerHandle | None = None
        self.refusals = RefusedMessages(LOG)
        self.counts = self.refusals.counts
        self._router = CurveRouter(
            keys=keys,
            max_message_bytes=messages.MAX_MESSAGE_BYTES,
            is_allowed=lambda key: key in self._pilot_by_key or key in self._ended,
            on_frame=self._receive,
            on_gone=self._gone,
            refusals=self.refusals,
            dead_after_s=DEAD_TIMES * agent_timeout_s,
        )

    async def start(self, bind_host: str, port: int = 0, ports: str = "") -> str:
        """Listen and return the endpoint; BFT-1306 when that is impossible.

        Register known pilots first: a refused agent retries only after its reconnection
        interval.
        """
        endpoint = self._router.start(bind_host, port, ports)
        self._schedule_check()
        return endpoint

    def register(self, pilot_id: str, public_key: str, node: str = "") -> None:
        """Accept the agent of this pilot; replaces an earlier key.

        ``node``: the agent must report this one; "": any.
        """
        if self._registered.get(pilot_id, _Registered()).public_key != public_key:
            self.forget(pilot_id)
            self._registered[pilot_id] = _Registered(public_key, node)
            self._pilot_by_key[public_key] = pilot_id

    def forget(self, pilot_id: str) -> None:
        """Tell the agent of this pilot to leave if it is heard again."""
        key = self._registered.pop(pilot_id, _Registered()).public_key
        if self._pilot_by_key.pop(key, None) is not None:
            self.has_ended(pilot_id, key)
        self.reach.drop([pilot_id])
        self._drop(self._by_pilot.get(pilot_id))

    def has_ended(self, pilot_id: str, public_key: str) -> None:
        """Remember, of the latest, that the agent with this key has to leave."""
        while len(self._ended) >= MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        self._ended[public_key] = pilot_id

    def give_up(self, pilot_ids: Collection[str]) -> None:
        """Count agents that cannot be reached as lost."""
        away_ids = sorted(self.reach.away.intersection(pilot_ids))
        self.reach.drop(away_ids)
        for pilot_id in away_ids:
            self._on_lost(pilot_id, SILENT)

    def begins_cut_off(self, awaited: Collection[str]) -> bool:
        """Return whether agents of an earlier daemon are not there because most are not."""
        now = self._awake()
        unheard_s = [self._timeout_s] * len(awaited)
        if not self.reach.is_cut_off([*self._ages_s(now), *unheard_s]):
            return False
        for pilot_id in awaited:
            self.reach.left(pilot_id, now - self._timeout_s)
        return True

    def node_of(self, pilot_id: str) -> str:
        """Return the node that a pilot was registered for."""
        return self._registered.get(pilot_id, _Registered()).node

    def is_connected(self, pilot_id: str) -> bool:
        """Return whether the agent has sent Hello and is not lost."""
        return pilot_id in self._by_pilot

    def connection_of(self, pilot_id: str) -> int:
        """Return the number of an agent's connection, greater for each next one; -1: none."""
        connection = self._by_pilot.get(pilot_id)
        if connection is None:
            return -1
        return connection.number

    @property
    def misses_agents(self) -> bool:
        """Return whether agents that were there before we slept have not come back yet."""
        self._look()
        return bool(self._missed)

    def send(self, pilot_id: str, message: messages.DaemonMessage) -> bool:
        """Send without waiting, stamped with our incarnation.

        False, and counted, when the agent is not connected or its queue is full.
        """
        connection = self._by_pilot.get(pilot_id)
        if connection is None:
            self.counts["unsent-unknown"] += 1
            return False
        if connection.is_broken:
            self.counts["unsent-gone"] += 1
            return False
        return self._send(connection.route, message)

    async def stop(self) -> None:
        """Close all connections; no callback runs afterwards."""
        if self._checker is not None:
            self._checker.cancel()
        self._awake.rest()
        self._router.close()
        self._by_pilot.clear()
        self._by_route.clear()
        self._order.clear()

    def _send(self, route: bytes, message: messages.DaemonMessage) -> bool:
        stamped = message.model_copy(update={"incarnation": self._incarnation})
        return self._router.send(route, messages.encode(stamped))

    # -- messages of agents ------------------------------------------------------------

    def _receive(self, origin: Origin, frame: bytes) -> None:
        pilot_id = self._pilot_by_key.get(origin.public_key)
        if pilot_id is None:
            if origin.public_key in self._ended:
                self.counts["ended"] += 1
                self._send(origin.route, messages.Leave(reason=ENDED))
            else:  # forgotten while connected
                self.counts["stranger"] += 1
            return
        try:
            message = messages.decode_from_agent(frame, len(self._pilot_by_key))
        except messages.WireError as problem:
            self._refuse("malformed", pilot_id, str(problem))
            if isinstance(problem, messages.LongHelloError):
                self._send(origin.route, messages.Refused(reason=f"BFT-1301: {problem}"))
            return
        claimed = (
            message.pilot_id
            if isinstance(message, messages.Hello | messages.Heartbeat | messages.Leaving)
            else pilot_id
        )
        if claimed != pilot_id:
            self._refuse("impostor", pilot_id, f"it claims to be {claimed!r}")
            if isinstance(message, messages.Hello):
                self._send(origin.route, messages.Refused(reason=f"this key is not {claimed}'s"))
            return
        if isinstance(message, messages.Hello):
            node = self.node_of(pilot_id) or message.node
            if message.node != node:
                self._refuse("impostor", pilot_id, f"it is on {node}, not on {message.node}")
                return
            self._greet(pilot_id, origin.route, message)
            return
        connection = self._by_route.get(origin.route)
        if connection is None:
            self.counts["before-hello"] += 1
        elif message.incarnation < self._incarnation:
            self._refuse("fenced", pilot_id, f"its incarnation {message.incarnation} is over")
        else:
            connection.heard_s = self._awake()
            connection.has_left |= isinstance(message, messages.Leaving)
            self._deliver(connection, message)

    def _greet(self, pilot_id: str, route: bytes, hello: messages.Hello) -> None:
        if hello.incarnation > self._incarnation:
            # It has served a later daemon: we are outdated.
            self._refuse("later", pilot_id, f"it has seen incarnation {hello.incarnation}")
            return
        before = self._by_pilot.get(pilot_id)
        order = self._order.setdefault(route, next(self._numbers))
        if before is not None and order < before.number:
            # TCP delivers after a cut what an agent wrote to a connection that it gave up since.
            self.counts["superseded"] += 1
            return
        process = hello.peer_public_key
        if before is not None and before.route != route and before.process != process:
            self._lose(before, "disconnected")  # its disconnect is about to be reported
        self._drop(before)
        self.reach.drop([pilot_id])
        connection = _Connection(
            pilot_id=pilot_id,
            process=process,
            route=route,
            number=order,
            heard_s=self._awake(),
        )
        self._by_pilot[pilot_id] = self._by_route[route] = connection
        self._deliver(connection, hello)

    def _refuse(self, kind: str, pilot_id: str, why: str) -> None:
        self.refusals.refuse(kind, pilot_id, why)

    def _deliver(self, connection: _Connection, message: messages.AgentMessage) -> None:
        try:
            self._on_message(connection.pilot_id, message)
        except BftError:
            raise
        except Exception as problem:  # noqa: BLE001  # must not affect other agents
            why = f"{message.type}: {type(problem).__name__}: {problem}"
            self.refusals.refuse(
                "failed", connection.pilot_id, why,
                code="BFT-1309", level=logging.ERROR, has_traceback=True,
            )  # fmt: skip
            self._lose(connection, "failed")

    # -- losses --------------------------------------------------------------------------

    def _drop(self, connection: _Connection | None) -> None:
        if connection is not None:
            self._by_route.pop(connection.route, None)
            if self._by_pilot.get(connection.pilot_id) is connection:
                del self._by_pilot[connection.pilot_id]
                self._missed.discard(connection.pilot_id)

    def _gone(self, routes: Collection[bytes]) -> None:
        """These connections have ended, noticed together."""
        self._look()
        ended, broken = list[_Connection](), list[_Connection]()
        for route in routes:
            self._order.pop(route, None)
            connection = self._by_route.get(route)
            if connection is None:
                continue
            if connection.has_left:
                ended.append(connection)
            else:
                broken.append(connection)
        for connection in ended:
            self._lose(connection, "disconnected")
        for connection in self._not_blamed(broken):
            self._lose(connection, "disconnected")

    def _not_blamed(self, broken: list[_Connection]) -> list[_Connection]:
        """Wait for agents whose connections did not end by their own doing; return the others."""
        has_slept = self._awake.woke_within(self._timeout_s)
        n_all = sum(not connection.has_left for connection in self._by_pilot.values())
        are_most = len(broken) >= 2 and 2 * len(broken) > n_all
        quiet_s, blamed = self._awake() - QUIET * self._timeout_s, list[_Connection]()
        for connection in broken:
            if not (has_slept or are_most or connection.heard_s < quiet_s):
                blamed.append(connection)
                continue
            connection.is_broken = True
            self._by_route.pop(connection.route, None)
            if has_slept:
                connection.heard_s = self._fresh_s()
                self._missed.add(connection.pilot_id)
        n_awaited = len(broken) - len(blamed)
        if n_awaited:
            LOG.info("%d connections of agents ended that may come back", n_awaited)
            self._on_missed()
        return blamed

    def _lose(self, connection: _Connection | None, why: str) -> None:
        if connection is not None:
            self._drop(connection)
            self._on_lost(connection.pilot_id, why)

    def _schedule_check(self) -> None:
        interval_s = self._timeout_s / CHECKS_PER_TIMEOUT
        self._look(interval_s)
        self._checker = asyncio.get_running_loop().call_later(interval_s, self._check_silent)

    def _look(self, promise_s: float | None = None) -> None:
        """Note whether we slept; whatever runs first in the loop may be the first to see it.

        Agents have most of the timeout from then on, so that one that died meanwhile is found
        within the timeout, with the clock's pause and the interval of checks.
        """
        self._awake.beat(promise_s)
        if self._wakings != self._awake.sleeps:
            self._wakings = self._awake.sleeps
            heard_s = self._fresh_s()
            for connection in self._by_pilot.values():
                connection.heard_s = max(connection.heard_s, heard_s)

    def _fresh_s(self) -> float:
        """Return when an agent was heard that has most of its time from now on."""
        return self._awake() - 2 * self._timeout_s / CHECKS_PER_TIMEOUT

    def _check_silent(self) -> None:
        self._schedule_check()
        self._router.drain()
        now = self._awake()
        is_cut_off = self.reach.is_cut_off(self._ages_s(now))
        for connection in list(self._by_pilot.values()):
            if now - connection.heard_s <= self._timeout_s:
                continue
            if is_cut_off:
                self.reach.left(connection.pilot_id, connection.heard_s)
            self._lose(connection, UNREACHABLE if is_cut_off else SILENT)
        self.give_up(self.reach.lost(self._ages_s(now), now))

    def _ages_s(self, now: float) -> list[float]:
        """Return how long ago each connected agent was heard."""
        return [now - connection.heard_s for connection in self._by_pilot.values()]
