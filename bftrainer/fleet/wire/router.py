"""A CURVE-protected ROUTER socket in the asyncio event loop.

A path that loses all packets breaks no TCP connection: what is unacknowledged is sent again after
ever longer times (RFC 6298, 5.5), so a connection that survives a cut is silent for about as long
again. Heartbeats of ZMTP (RFC 37, PING and PONG) are answered by the other process' network thread,
however busy it is; without an answer the connection is closed, and its client makes another.

``SocketPump`` is used by all sockets of ``bftrainer.fleet.wire`` instead of ``zmq.asyncio``,
because the order in which sockets are drained matters.

``CurveRouter`` is the base of the daemon's server and the agents' peer sockets: ``is_allowed``
decides which public keys may connect; authenticated frames are delivered to ``on_frame``, broken
connections to ``on_gone``. Frames of unknown keys are dropped.

``RefusedMessages`` is used wherever messages are received: by the daemon's server (and the parts
that judge agents' reports), agents' peer sockets and copy holders, and their sockets to workers.
``/metrics`` shows the daemon's ``counts``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import zmq
import zmq.utils.z85
from zmq.utils.monitor import parse_monitor_message

from bftrainer.batch.addresses import ANY, endpoint_at, numeric
from bftrainer.fleet import open_files
from bftrainer.fleet.wire import newcomers
from bftrainer.fleet.wire.keys import KeyPair
from bftrainer.ground.fields import in_one_line
from bftrainer.ground.ports import listen_within
from bftrainer.model.errors import BftError

RECONNECT_MS = 100
RECONNECT_MAX_MS = 1000
# A lost SYN is sent again after 1 s, then after 2, 4, 8, ... more (tcp(7), tcp_syn_retries).
CONNECT_LIMIT_MS = 2000
HANDSHAKE_LIMIT_MS = 5000
MOST_OVER = 16384  # connections that have ended of which late frames are known
LOG_EVERY_S = 10.0  # a flood must not fill the disk
LOG = logging.getLogger("bftrainer.wire")
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
TURN_S = 0.02  # longest time of handling messages before other work of the loop
# Longest delay of a loss, for frames sent before it: of our own work, as a busy machine may let us
# do none meanwhile.
GONE_LIMIT_S = 0.05
QUEUED_MESSAGES = 10_000  # per connection and direction, before sends are refused
FRAME_OVERHEAD_BYTES = 64  # what CURVE adds to a message
_FAILED_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def close_when_dead(socket: zmq.Socket[bytes], after_s: float) -> None:
    """Close connections of which nothing was heard for 0.8 to 1 times ``after_s``."""
    after_ms = max(10, round(1000 * after_s))
    socket.set(zmq.HEARTBEAT_IVL, max(1, after_ms // 5))
    socket.set(zmq.HEARTBEAT_TIMEOUT, after_ms * 4 // 5)


def come_back_soon(dealer: zmq.Socket[bytes], after_s: float) -> None:
    """Have a client notice a dead path within ``after_s``, and a mended one within about 2 s."""
    close_when_dead(dealer, after_s)
    dealer.set(zmq.RECONNECT_IVL, RECONNECT_MS)
    dealer.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    dealer.set(zmq.CONNECT_TIMEOUT, CONNECT_LIMIT_MS)
    dealer.set(zmq.HANDSHAKE_IVL, HANDSHAKE_LIMIT_MS)


class SocketPump:
    """Calls ``drain`` in the loop while ``socket`` has messages.

    ZeroMQ's file descriptor is edge-triggered and *any* call on the socket can consume the
    edge, so the state is checked again after each ``drain`` and, by ``poke``, after each send.
    """

    def __init__(self, socket: zmq.Socket[bytes], drain: Callable[[], None]) -> None:
        self._socket = socket
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._again: asyncio.Handle | None = None
        self._loop.add_reader(self._fd, self._wake)
        self.poke()

    def poke(self) -> None:
        """Schedule ``drain`` if messages are waiting; call this after every send."""
        if self._again is None and has_input(self._socket):
            self._again = self._loop.call_soon(self._wake)

    def close(self) -> None:
        """Stop watching; does not close the socket."""
        self._loop.remove_reader(self._fd)
        if self._again is not None:
            self._again.cancel()

    def _wake(self) -> None:
        self._again = None
        if self._socket.closed:
            return
        try:
            self._drain()
        finally:  # an error in a callback must not lose the edge
            if not self._socket.closed:
                self.poke()


def has_input(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message can be read at once."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


class RefusedMessages:
    """Counters; logs at most one line per kind in ``LOG_EVERY_S``. Thread-safe."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._log = log
        self._clock = clock
        self._logged_s: dict[str, float] = {}

    def refuse(
        self,
        kind: str,
        whom: str,
        why: object,
        *,
        code: str = "BFT-1301",
        level: int = logging.WARNING,
        has_traceback: bool = False,
    ) -> None:
        """Count a refused message by its kind, a label of the metric; ``why`` may quote it."""
        self.counts[kind] += 1
        now_s = self._clock()
        if now_s - self._logged_s.get(kind, now_s - LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged_s[kind] = now_s
            self._log.log(
                level, "%s: message from %s dropped (%s, %d so far): %s",
                code, whom, kind, self.counts[kind], in_one_line(str(why)),
                exc_info=has_traceback,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origin:
    """The authenticated sender of a frame."""

    route: bytes  # identifies the connection; never reused
    public_key: str  # proven by the CURVE handshake


class CurveRouter:
    """One listening socket with its authentication and its connection monitor.

    ``refusals`` counts what was refused or dropped, by reason. ``dead_after_s``: close
    connections that are silent for so long; None: those that TCP gives up alone.
    """

    def __init__(
        self,
        *,
        keys: KeyPair,
        max_message_bytes: int,
        is_allowed: Callable[[str], bool],
        on_frame: Callable[[Origin, bytes], None],
        on_gone: Callable[[Collection[bytes]], None] | None = None,
        refusals: RefusedMessages | None = None,
        dead_after_s: float | None = None,
    ) -> None:
        self._keys = keys
        self._max_message_bytes = max_message_bytes
        self._is_allowed = is_allowed
        self._on_frame = on_frame
        self._on_gone = on_gone
        self._route_by_fd: dict[int, bytes] = {}
        self._over: dict[bytes, None] = {}  # reported as gone, oldest first; never used again
        self._gone: dict[bytes, float] = {}  # route -> when noticed, in time of this thread
        self._pumps: list[SocketPump] = []
        self._port = 0
        self._newcomers = newcomers.Newcomers(max_message_bytes)
        self._looking: asyncio.TimerHandle | None = None
        self.refusals = refusals or RefusedMessages(LOG)
        self._open_sockets()
        if dead_after_s is not None:
            close_when_dead(self._router, dead_after_s)

    def _open_sockets(self) -> None:
        open_files.raise_limit()
        # A context of our own: a ZAP handler is global to its context.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind(ZAP_ENDPOINT)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set(zmq.LINGER, 0)
        self._router.set(zmq.SNDHWM, QUEUED_MESSAGES)
        self._router.set(zmq.ROUTER_MANDATORY, 1)  # fail when a peer is unknown
        self._router.set(zmq.MAXMSGSIZE, self._max_message_bytes + FRAME_OVERHEAD_BYTES)
        self._router.set(zmq.HANDSHAKE_IVL, HANDSHAKE_LIMIT_MS)
        self._router.set(zmq.CURVE_SERVER, 1)
        self._router.set(zmq.CURVE_SECRETKEY, self._keys.secret.encode("ascii"))
        self._router.set(zmq.ZAP_DOMAIN, b"bftrainer")
        self._monitor = self._router.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _FAILED_HANDSHAKES
        )

    def start(self, host: str, port: int, ports: str = "") -> str:
        """Listen and return the endpoint; host "*": all addresses, port 0: a free one of ``ports``.

        ``BftError`` BFT-1306 if it cannot listen on the address.
        """
        try:
            address = host if host == ANY else numeric(host)
            # With it, ANY includes IPv4 (zmq_setsockopt(3)).
            self._router.set(zmq.IPV6, int(address == ANY or ":" in address))
            if port:
                self._router.bind(endpoint_at(address, port))
            else:
                listen_within(ports, lambda free: self._router.bind(endpoint_at(address, free)))
        except (zmq.ZMQError, OSError, ValueError) as problem:
            raise BftError(
                "BFT-1306",
                f"Cannot listen on {host}:{port or ports or 'any port'}: {problem}.",
                "Choose a free port and an address of this host.",
            ) from problem
        self._pumps = [
            SocketPump(self._zap, self._drain_zap),
            SocketPump(self._monitor, self._drain_router),
            SocketPump(self._router, self._drain_router),
        ]
        endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._port = int(endpoint.rpartition(":")[2])
        return endpoint

    def send(self, route: bytes, frame: bytes) -> bool:
        """Send without waiting; False (and counted) if that is impossible."""
        try:
            self._router.send_multipart([route, frame], flags=zmq.DONTWAIT)
        except zmq.ZMQError as problem:
            self.refusals.counts[
                "unsent-full" if problem.errno == zmq.EAGAIN else "unsent-gone"
            ] += 1
            return False
        finally:
            if self._pumps:
                self._pumps[-1].poke()
        return True

    def drain(self) -> None:
        """Receive waiting messages, before silence is judged.

        ZeroMQ serves connections in turn, so one message per connection covers all of them.
        """
        for _ in range(len(self._route_by_fd) + 1):
            if self._router.closed or not has_input(self._router):
                return
            self._receive()

    def close(self) -> None:
        """Stop listening and drop all connections."""
        for pump in self._pumps:
            pump.close()
        self._pumps = []
        if self._looking is not None:
            self._looking.cancel()
        self._newcomers.close()
        if not self._router.closed:
            self._router.disable_monitor()
        for socket in (self._router, self._monitor, self._zap):
            socket.close(linger=0)
        self._context.term()

    # -- authentication: the ZeroMQ authentication protocol, RFC 27 -------------------

    def _drain_zap(self) -> None:
        while has_input(self._zap):
            parts = self._zap.recv_multipart()
            version, request_id = [*parts, b"", b""][:2]
            key = _curve_key(parts)
            allowed = key is not None and self._is_allowed(key)
            if not allowed:
                self.refusals.counts["stranger"] += 1
            status, text = (b"200", b"OK") if allowed else (b"400", b"unknown key")
            user_id = key.encode("ascii") if allowed and key else b""
            self._zap.send_multipart([version, request_id, status, text, user_id, b""])

    # -- frames and broken connections -------------------------------------------------

    def _drain_router(self) -> None:
        ends_s = time.monotonic() + TURN_S
        while time.monotonic() < ends_s:
            if not has_input(self._router):
                self._note_disconnects()
                if not has_input(self._router):
                    self._report_gone(time.thread_time())
                    return
            self._receive()
            if self._router.closed:  # by the callback
                return
        self._report_gone(time.thread_time() - GONE_LIMIT_S)  # never empty under load
        self._pumps[-1].poke()

    def _receive(self) -> None:
        parts = self._router.recv_multipart(copy=False)
        # Disconnects first: the descriptor of a closed connection may already be reused by this
        # frame's. Frames sent before a connection broke are still delivered; only then is it
        # reported as gone.
        self._note_disconnects()
        route, frame = parts[0].bytes, parts[-1]
        if route in self._over:
            # Read late, under load: its descriptor may be another connection's, and a Hello of it
            # would take the place of a later one.
            self.refusals.counts["superseded"] += 1
            return
        try:
            key = frame.get("User-Id")
            fd = frame.get(zmq.SRCFD)
        except (zmq.ZMQError, ValueError):
            self.refusals.counts["stranger"] += 1
            return
        if not isinstance(key, str) or not isinstance(fd, int):
            self.refusals.counts["stranger"] += 1
            return
        self._newcomers.left(fd)
        if route not in self._gone:
            before = self._route_by_fd.get(fd, route)
            if before != route:
                self._gone[before] = time.thread_time()
            self._route_by_fd[fd] = route
        if len(parts) != 2:
            self.refusals.counts["malformed"] += 1
            return
        self._on_frame(Origin(route, key), frame.bytes)

    def _note_disconnects(self) -> None:
        while has_input(self._monitor):
            event = parse_monitor_message(self._monitor.recv_multipart())
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._newcomers.came(event["value"], self._port)
                if self._looking is None:
                    self._look_later()
            elif event["event"] == zmq.EVENT_DISCONNECTED:
                self._newcomers.left(event["value"])
                route = self._route_by_fd.pop(event["value"], None)
                if route is not None:
                    self._gone[route] = time.thread_time()
            else:
                self.refusals.counts["handshake-failed"] += 1

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(newcomers.LOOK_S, self._look_at_newcomers)

    def _look_at_newcomers(self) -> None:
        self._looking = None
        if ended := self._newcomers.end_excess():
            self.refusals.counts["stranger"] += ended
        if self._newcomers:
            self._look_later()

    def _report_gone(self, noticed_before_s: float) -> None:
        due = [route for route, at_s in self._gone.items() if at_s <= noticed_before_s]
        for route in due:
            del self._gone[route]
            self._over[route] = None
        for route in list(self._over)[: max(0, len(self._over) - MOST_OVER)]:
            del self._over[route]
        if due and self._on_gone is not None:
            self._on_gone(due)


def _curve_key(parts: list[bytes]) -> str | None:
    """Return the key in a request to authenticate (ZeroMQ RFC 27); None: there is none."""
    if len(parts) != 7:
        return None
    *_, mechanism, key = parts
    if mechanism != b"CURVE":
        return None
    with contextlib.suppress(ValueError):  # no key at all
        return zmq.utils.z85.encode(key).decode("ascii")
    return None
