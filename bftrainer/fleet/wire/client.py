"""The agent's connection to the daemon; reconnects for ever.

The daemon's messages are delivered by callback; those of an earlier incarnation are refused.
Owned by ``trainers.agent.link``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from bftrainer.fleet.wire import messages
from bftrainer.fleet.wire.keys import KeyPair
from bftrainer.fleet.wire.router import (
    FRAME_OVERHEAD_BYTES,
    QUEUED_MESSAGES,
    RefusedMessages,
    SocketPump,
    come_back_soon,
    has_input,
)

LOG = logging.getLogger("bftrainer.wire")


class DaemonConnection:
    """A DEALER connected to the daemon, which is authenticated by its public key.

    ``on_up`` and ``on_down`` report the connection; ``on_message`` gets every message whose
    incarnation is not smaller than the greatest seen. All run in the event loop.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        daemon_public_key: str,
        keys: KeyPair,
        incarnation: int,
        timeout_s: float = 5.0,  # a path is dead after so long
        on_message: Callable[[messages.DaemonMessage], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self.incarnation = incarnation  # the greatest seen
        self._refusals = RefusedMessages(LOG)
        self.counts = self._refusals.counts
        self._endpoint = endpoint
        self._on_message = on_message
        self._on_up = on_up
        self._on_down = on_down
        self._pumps: list[SocketPump] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.set(zmq.LINGER, 0)
        self._dealer.set(zmq.SNDHWM, QUEUED_MESSAGES)
        self._dealer.set(zmq.IPV6, 1)  # as well
        self._dealer.set(zmq.MAXMSGSIZE, messages.MAX_MESSAGE_BYTES + FRAME_OVERHEAD_BYTES)
        come_back_soon(self._dealer, timeout_s)
        keys.prove(self._dealer, daemon_public_key)
        self._monitor = self._dealer.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )

    def start(self) -> None:
        """Start connecting; must run in the event loop."""
        self._dealer.connect(self._endpoint)
        self._pumps = [
            SocketPump(self._monitor, self._drain_monitor),
            SocketPump(self._dealer, self._drain),
        ]

    def move(self, endpoint: str) -> None:
        """Connect to another endpoint instead; the daemon there has the same key."""
        if endpoint != self._endpoint:
            LOG.info("the daemon is at %s now", endpoint)
            self._dealer.disconnect(self._endpoint)
            self._dealer.connect(endpoint)
            self._endpoint = endpoint

    def send(self, message: messages.AgentMessage) -> bool:
        """Send without waiting, stamped with the greatest incarnation seen."""
        stamped = message.model_copy(update={"incarnation": self.incarnation})
        try:
            self._dealer.send(messages.encode(stamped), flags=zmq.DONTWAIT)
        except zmq.Again:
            self.counts["unsent-full"] += 1
            return False
        finally:
            for pump in self._pumps[-1:]:
                pump.poke()
        return True

    def close(self, *, linger_ms: int = 0) -> None:
        """Close; wait at most ``linger_ms`` for messages to be sent."""
        for pump in self._pumps:
            pump.close()
        self._pumps = []
        if not self._dealer.closed:
            self._dealer.disable_monitor()
        self._monitor.close(linger=0)
        self._dealer.close(linger=linger_ms)
        self._context.term()

    def _drain_monitor(self) -> None:
        while not self._monitor.closed and has_input(self._monitor):
            event = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._on_up()
            elif event == zmq.EVENT_DISCONNECTED:
                self._on_down()
            else:
                self.counts["not-let-in"] += 1
                if self.counts["not-let-in"] == 1:
                    LOG.warning("BFT-1301: the daemon at %s does not know us", self._endpoint)

    def _drain(self) -> None:
        while not self._dealer.closed and has_input(self._dealer):
            parts = self._dealer.recv_multipart()
            try:
                message = messages.decode_to_agent(parts[-1])
            except messages.WireError as problem:
                self._refusals.refuse("malformed", "the daemon", problem)
                continue
            if message.incarnation < self.incarnation:
                why = f"{message.type} of incarnation {message.incarnation}, not {self.incarnation}"
                self._refusals.refuse("fenced", "the daemon", why)
                continue
            self.incarnation = message.incarnation
            self._on_message(message)
