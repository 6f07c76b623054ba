"""The agent's connection to the daemon: Hello, heartbeats, lease.

Reports are held back until a daemon has sent Welcome; its orders, and the reason to leave, are
delivered by callback. Owned by ``trainers.agent.main``.

After every reconnection, and when the daemon has been silent for a while, Hello is sent again
with all workers' newest bodies, until Welcome arrives. Then the held-back reports follow and the
recent worker ends once more: the daemon may get a report twice, but none is lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from bftrainer.fleet.wire import messages
from bftrainer.fleet.wire.client import DaemonConnection
from bftrainer.fleet.wire.endpoint import AgentConfig, endpoints_in, first_answering
from bftrainer.fleet.wire.keys import KeyPair
from trainers.agent.pacer import Pacer
from trainers.agent.workers import Said

LOG = logging.getLogger("bftrainer.agent")
MAX_TICK_S = 0.5
FIRST_LOOK_S = 1.0  # without an answer of the first endpoint: whether another one answers
LOOK_EVERY_S = 5.0  # where a daemon may be that is away
LOOK_LIMIT_S = 4.0
SILENT_HEARTBEATS = 3  # without a message: send Hello again
LEAVING_LINGER_MS = 20
_REPEATED = frozenset({"Progress", "TrainingLoss", "GpusInUse", "Unreachable"})


class DaemonLink:
    """Connection to the daemon; calls ``on_expired(reason)`` when the agent has to leave."""

    def __init__(
        self,
        config: AgentConfig,
        keys: KeyPair,
        *,
        hello: Callable[[], messages.Hello],
        worker_ids: Callable[[], list[str]],
        ends: Callable[[], list[Said]],
        on_order: Callable[[messages.DaemonMessage], None],
        on_expired: Callable[[str], None],
        on_down: Callable[[], None],
    ) -> None:
        self._config = config
        self._heartbeat_s = config.heartbeat_s
        self._lease_s = config.lease_s
        self._make_hello = hello
        self._worker_ids = worker_ids
        self._ends = ends
        self._on_order = on_order
        self._on_expired = on_expired
        self._on_down = on_down
        self.is_up = self._is_welcome = False  # a daemon that is silent is up, too
        # Whether the daemon sent messages until the connection broke. If it stopped before, it may
        # have counted us as lost, and the trainer may go on without us.
        self.was_in_touch = False
        self._grace_end_s: float | None = None  # when the batch system ends the pilot
        self._held_back: list[Said] = []
        self._pacer = Pacer(self._send)
        self.endpoint = config.daemon_endpoint  # of the daemon, or of the last one
        self._searching: asyncio.Task[None] | None = None
        self._heard_s = self._hello_s = self._heartbeat_sent_s = time.monotonic()
        self._look_s = self._heard_s + FIRST_LOOK_S  # when to look next where the daemon is
        self._keys = keys
        # Converted to the monotonic clock, because the wall clock may be set meanwhile.
        self._end_s: float | None = None
        if config.end_s is not None:
            self._end_s = self._heard_s + config.end_s - config.end_margin_s - time.time()
        self._connection = DaemonConnection(
            endpoint=config.daemon_endpoint,
            daemon_public_key=config.daemon_public_key,
            keys=keys,
            incarnation=config.incarnation,
            timeout_s=config.agent_timeout_s,
            on_message=self._heard,
            on_up=self._greet,
            on_down=self._down,
        )

    def start(self) -> None:
        """Connect and start the timer."""
        self._connection.start()
        self._tick()

    def report(self, message: Said) -> None:
        """Send to the daemon, at once, at the workers' pace or after its Welcome."""
        if self._is_welcome:
            self._pacer.pass_on(message)
            return
        if isinstance(message, messages.WorkerExited):
            return  # sent with ``ends``
        if isinstance(message, messages.WorkerSaid) and message.body["type"] in _REPEATED:
            return  # the next comes soon
        if isinstance(message, messages.WorkerSaid) and message.body["type"] == "Reported":
            # The newest repeats the others.
            kind = (message.worker_id, message.body["type"])
            self._held_back = [
                m
                for m in self._held_back
                if not isinstance(m, messages.WorkerSaid) or (m.worker_id, m.body["type"]) != kind
            ]
        self._held_back.append(message)

    def ending(self, grace_s: float) -> None:
        """Tell the daemon, at once and after each Hello, that the batch system ends the pilot."""
        self._grace_end_s = time.monotonic() + grace_s
        self._say_ending()

    def _say_ending(self) -> None:
        if self._grace_end_s is not None:
            grace_s = max(0.0, self._grace_end_s - time.monotonic())
            self._send(messages.Ending(pilot_id=self._config.pilot_id, grace_s=grace_s))

    def last_words(self, reason: str, told_s: float) -> None:
        """Send ``Leaving``; wait at most ``LEAVING_LINGER_MS`` for its delivery."""
        self._pacer.release()
        self._send(
            messages.Leaving(
                pilot_id=self._config.pilot_id, reason=reason, told_s=told_s, left_s=time.time()
            )
        )
        self._connection.close(linger_ms=LEAVING_LINGER_MS)

    def _send(self, message: messages.AgentMessage) -> None:
        try:
            self._connection.send(message)
        except messages.WireError as problem:
            LOG.warning("BFT-1301: not sent: %s", problem)

    def _down(self) -> None:
        if self._is_welcome:
            self.was_in_touch = time.monotonic() - self._heard_s <= self._patience_s
        self.is_up = self._is_welcome = False
        self._hold_back()
        self._look_s = time.monotonic() + FIRST_LOOK_S  # it may be back at once
        LOG.info("connection to the daemon lost")
        self._on_down()

    def _hold_back(self) -> None:
        """Keep what waits for its turn until the next Welcome."""
        for message in self._pacer.take():
            self.report(message)

    def _greet(self) -> None:
        self.is_up, self._is_welcome = True, False
        self._hold_back()
        self._hello_s = time.monotonic()
        self._send(self._make_hello())
        self._say_ending()

    def _heard(self, message: messages.DaemonMessage) -> None:
        self._heard_s = time.monotonic()
        if isinstance(message, messages.Welcome):
            self._heartbeat_s = max(message.heartbeat_s, 0.01)
            self._lease_s = message.lease_s
            if not self._is_welcome:
                self._is_welcome = True
                held_back, self._held_back = self._held_back, []
                for report in [*held_back, *self._ends()]:
                    self._send(report)
        self._on_order(message)

    @property
    def _patience_s(self) -> float:
        return SILENT_HEARTBEATS * max(self._heartbeat_s, 1.0)

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._heard_s > self._lease_s:
            self._on_expired("lease")
            return
        if self._end_s is not None and now > self._end_s:
            self._on_expired("time-limit")
            return
        if self._is_welcome and now - self._heartbeat_sent_s >= self._heartbeat_s * 0.9:
            self._heartbeat_sent_s = now
            ids = self._worker_ids()
            self._send(messages.Heartbeat(pilot_id=self._config.pilot_id, workers=ids))
        if self.is_up and now - max(self._heard_s, self._hello_s) > self._patience_s:
            LOG.info("no message from the daemon for %.1f s, repeating Hello", now - self._heard_s)
            self._greet()
        if not self.is_up and now >= self._look_s:
            self._look_s = now + LOOK_EVERY_S
            self._searching = asyncio.get_running_loop().create_task(self._look())
        delay_s = min(MAX_TICK_S, self._heartbeat_s, self._lease_s / 4)
        asyncio.get_running_loop().call_later(delay_s, self._tick)

    async def _look(self) -> None:
        endpoint = await asyncio.to_thread(self._search)
        if endpoint and not self.is_up:
            self.endpoint = endpoint
            self._connection.move(endpoint)

    def _search(self) -> str:
        config, file = self._config, self._config.endpoint_file
        candidates = [self.endpoint, config.daemon_endpoint, *config.endpoints]
        if file:  # what it says is newer than all that we were told before
            candidates = [*endpoints_in(file), *candidates]
        endpoints = tuple(dict.fromkeys(candidates))
        if endpoints == (self.endpoint,):
            return ""
        return first_answering(
            endpoints, server_key=config.daemon_public_key, keys=self._keys, limit_s=LOOK_LIMIT_S
        )
