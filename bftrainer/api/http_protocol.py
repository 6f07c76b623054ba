"""Connections of the API: accepted with a limit for each user, served as HTTP within time limits.

The ``Doorman`` passes connections on with the user that the kernel reports; nothing that the other
side sends can change these ``Credentials``. A connection above its user's share gets one prepared
answer and is closed, which is cheap enough that a flood does not delay other users. Each request
reaches the application with its sender's credentials in the scope. A connection is one request and
its answer; idle and slow ones are dropped, so that no client can exhaust the daemon's event loop or
file descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from bftrainer.api.documents import error_document
from bftrainer.model.errors import BftError, ExitCode

_UCRED = struct.Struct("3i")  # pid, uid, gid
LOG = logging.getLogger("bftrainer.api")
PLACES: Final = 256  # of all users together, except the owners
PLACES_OF_USER: Final = 32
PLACES_OF_OWNER: Final = 256  # root and the daemon's own user
ACCEPTS_PER_TURN: Final = 64  # then the event loop does other work
_LOG_EVERY_S: Final = 10.0
_PAUSE_S: Final = 0.1  # while the process has no file descriptors left
PEER_KEY = "bftrainer.peer"
HEAD_LIMIT_S = 5.0  # from the connection until the last line of the header
REQUEST_LIMIT_S = 15.0  # until the last byte of the body
CONNECTION_LIMIT_S = 60.0  # until the answer has been read
SHUTDOWN_LIMIT_S = 2


class HasPeer(Protocol):
    """A socket, or asyncio's wrapper of one."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """Read a socket option."""


class Credentials(NamedTuple):
    """The user and process that opened a connection."""

    uid: int
    pid: int


def credentials_of(connection: HasPeer) -> Credentials:
    """Return the credentials of the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return Credentials(uid=uid, pid=pid)


class Guest(Protocol):
    """A connection that has a place."""

    def send_away(self) -> None:
        """Close the connection now."""


class Places:
    """Connections by user, oldest first; ``owners`` have places of their own."""

    def __init__(self, owners: frozenset[int]) -> None:
        self._owners = owners
        self._of: dict[int, dict[Guest, None]] = {}

    def make_room(self, uid: int) -> bool:
        """Return whether one more is accepted; may close one of the user with most connections."""
        n_own = len(self._of.get(uid, ()))
        if uid in self._owners:
            return n_own < PLACES_OF_OWNER
        if n_own >= PLACES_OF_USER:
            return False
        of_others = {uid: guests for uid, guests in self._of.items() if uid not in self._owners}
        if sum(map(len, of_others.values())) < PLACES:
            return True
        greediest = max(of_others, key=lambda uid: len(of_others[uid]))
        if len(of_others[greediest]) <= n_own + 1:
            return False
        oldest = next(iter(of_others[greediest]))
        self.leave(greediest, oldest)
        oldest.send_away()
        return True

    def enter(self, uid: int, guest: Guest) -> None:
        """Give a connection a place."""
        self._of.setdefault(uid, {})[guest] = None

    def leave(self, uid: int, guest: Guest) -> None:
        """Free the place; harmless if it is free."""
        guests = self._of.get(uid, {})
        guests.pop(guest, None)
        if not guests:
            self._of.pop(uid, None)


class Desk:
    """Says who comes, and what is answered to those for whom there is no place."""

    def __init__(self) -> None:
        self._refused, self._said_s = 0, -_LOG_EVERY_S

    def identify(self, connection: socket.socket) -> Credentials:
        """Return who opened a connection."""
        return credentials_of(connection)

    def refusal(self, who: Credentials) -> bytes:
        """Return the answer to a connection above its user's share, and log it once in a while."""
        self._refused += 1
        now_s = time.monotonic()
        if now_s - self._said_s >= _LOG_EVERY_S:  # a flood must not fill the disk
            self._said_s = now_s
            LOG.warning(
                "BFT-1107: a connection of uid %d refused, %d so far of all", who.uid, self._refused
            )
        return _full()


class Doorman:
    """Accepts connections while it is open."""

    def __init__(
        self,
        listener: socket.socket,
        desk: Desk,
        places: Places,
        receive: Callable[[socket.socket, Credentials], None],
    ) -> None:
        self._listener, self._desk = listener, desk
        self._places, self._receive = places, receive
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Start accepting."""
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._accept_some)

    def close(self) -> None:
        """Stop accepting."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())

    def _accept_some(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors: waiting connections are accepted later
                self.close()
                self._pause = self._loop.call_later(_PAUSE_S, self.open)
                return
            connection.settimeout(0)
            visitor = self._desk.identify(connection)
            if self._places.make_room(visitor.uid):
                self._receive(connection, visitor)
            else:
                with connection, contextlib.suppress(OSError):
                    connection.send(self._desk.refusal(visitor), socket.MSG_NOSIGNAL)


@functools.cache
def _full() -> bytes:
    error = BftError(
        "BFT-1107",
        "You, or all users together, have the maximum number of connections to the daemon.",
        "Try again in a moment; end your programs that keep connections open.",
        exit_code=ExitCode.TIMEOUT,
    )
    return too_many(error)


def too_many(error: BftError) -> bytes:
    """Return the whole answer to a connection that is one too many."""
    body = json.dumps(error_document(error)).encode()
    return (
        b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )


class PeerProtocol(H11Protocol):
    """One connection: knows its peer, and ends after a time limit whatever it does."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        who: Credentials,
        on_end: Callable[[PeerProtocol], None],
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self._came_s = self.loop.time()
        self._on_end = on_end
        inner: Any = self.app

        async def with_peer(scope: Scope, receive: Receive, send: Send) -> None:
            scope[PEER_KEY] = who
            await inner(scope, receive, send)

        self.app = with_peer
        self._look_again = self.loop.call_later(HEAD_LIMIT_S, self._check_time)

    def data_received(self, data: bytes) -> None:
        """Process received data; end the connection if it is not HTTP after the answer began."""
        try:
            super().data_received(data)
        except h11.ProtocolError:
            self.send_away()

    def send_400_response(self, msg: str) -> None:
        """Answer data that is not HTTP; a request already begun is cancelled."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the connection and its time limits."""
        self._look_again.cancel()
        self._on_end(self)
        super().connection_lost(exc)

    def send_away(self) -> None:
        """Close the connection now."""
        if self in self.connections:  # else it is still being set up, and ends by its time limit
            self.transport.abort()

    def limit_s(self) -> float:
        """Return how long the connection may last, as far as it has come; may be infinite."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None:
            return HEAD_LIMIT_S
        if cycle.more_body and not cycle.response_complete:
            return REQUEST_LIMIT_S
        return CONNECTION_LIMIT_S

    def _check_time(self) -> None:
        left_s = self._came_s + self.limit_s() - self.loop.time()
        if left_s > 0:
            again_s = min(left_s, CONNECTION_LIMIT_S)
            self._look_again = self.loop.call_later(again_s, self._check_time)
        else:
            self.send_away()


class GuardedServer(uvicorn.Server):
    """A uvicorn server that serves connections which have a place."""

    def __init__(
        self, app: ASGIApp, desk: Desk, protocol: type[PeerProtocol] = PeerProtocol
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # clients' errors are not logged
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                headers=[("connection", "close")],
                timeout_graceful_shutdown=SHUTDOWN_LIMIT_S,
            )
        )
        self._desk, self._protocol = desk, protocol
        self._places = Places(frozenset({0, os.geteuid()}))
        self._doormen: list[Doorman] = []
        self._arriving: set[asyncio.Task[Any]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting."""
        await super().startup(sockets=[])
        self._doormen = [
            Doorman(listener, self._desk, self._places, self._receive) for listener in sockets or ()
        ]
        for doorman in self._doormen:
            doorman.open()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and finish the answers under way."""
        for doorman in self._doormen:
            doorman.close()
        await super().shutdown(sockets=sockets)

    def _receive(self, connection: socket.socket, who: Credentials) -> None:
        def leave(protocol: PeerProtocol) -> None:
            self._places.leave(who.uid, protocol)

        protocol = self._protocol(self.config, self.server_state, who, leave)
        self._places.enter(who.uid, protocol)
        task = asyncio.get_running_loop().create_task(_arrive(protocol, connection))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)


class EmbeddedServer(GuardedServer):
    """A server inside another event loop: it handles no signals."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app, Desk())
        self.is_ready = asyncio.Event()
        self._is_over = asyncio.Event()

    def leave(self) -> None:
        """Ask the server to finish the answers under way and end."""
        self.should_exit = True
        self._is_over.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting, then set ``is_ready``."""
        await super().startup(sockets=sockets)
        self.is_ready.set()

    async def main_loop(self) -> None:
        """Wait for ``leave``; uvicorn's own loop would wake the daemon ten times a second."""
        await self.on_tick(0)
        await self._is_over.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the daemon."""
        yield


async def _arrive(protocol: PeerProtocol, connection: socket.socket) -> None:
    try:
        await protocol.loop.connect_accepted_socket(lambda: protocol, connection)
    except OSError as problem:  # closed before it was set up
        connection.close()
        protocol.connection_lost(problem)
