"""HTTP over a Unix socket: uvicorn with peer credentials and strict limits.

Each request reaches the application with its sender's ``Credentials`` in the scope. A connection is
one request and its answer. Idle and slow connections are dropped here, surplus ones by ``doorman``,
so that no client can exhaust the daemon's event loop or file descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from bftrainer.api.doorman import Credentials, Doorman, Places

PEER_KEY = "bftrainer.peer"
HEAD_LIMIT_S = 5.0  # from the connection until the last line of the header
REQUEST_LIMIT_S = 15.0  # until the last byte of the body
CONNECTION_LIMIT_S = 60.0  # until the answer has been read
SHUTDOWN_LIMIT_S = 2


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

    def _check_time(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None:
            limit_s = HEAD_LIMIT_S
        elif cycle.more_body and not cycle.response_complete:
            limit_s = REQUEST_LIMIT_S
        else:
            limit_s = CONNECTION_LIMIT_S
        left_s = self._came_s + limit_s - self.loop.time()
        if left_s > 0:
            self._look_again = self.loop.call_later(left_s, self._check_time)
        else:
            self.send_away()


class EmbeddedServer(uvicorn.Server):
    """A uvicorn server inside another event loop: it handles no signals."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=PeerProtocol,
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
        self.is_ready = asyncio.Event()
        self._is_over = asyncio.Event()
        self._places = Places(frozenset({0, os.geteuid()}))
        self._doormen: list[Doorman] = []
        self._arriving: set[asyncio.Task[Any]] = set()

    def leave(self) -> None:
        """Ask the server to finish the answers under way and end."""
        self.should_exit = True
        self._is_over.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then set ``is_ready``."""
        await super().startup(sockets=[])
        self._doormen = [Doorman(each, self._places, self._receive) for each in sockets or ()]
        for doorman in self._doormen:
            doorman.open()
        self.is_ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and finish the answers under way."""
        for doorman in self._doormen:
            doorman.close()
        await super().shutdown(sockets=sockets)

    async def main_loop(self) -> None:
        """Wait for ``leave``; uvicorn's own loop would wake the daemon ten times a second."""
        await self.on_tick(0)
        await self._is_over.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the daemon."""
        yield

    def _receive(self, connection: socket.socket, who: Credentials) -> None:
        def leave(protocol: PeerProtocol) -> None:
            self._places.leave(who.uid, protocol)

        protocol = PeerProtocol(self.config, self.server_state, who, leave)
        self._places.enter(who.uid, protocol)
        task = asyncio.get_running_loop().create_task(_arrive(protocol, connection))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)


async def _arrive(protocol: PeerProtocol, connection: socket.socket) -> None:
    try:
        await protocol.loop.connect_accepted_socket(lambda: protocol, connection)
    except OSError as problem:  # closed before it was set up
        connection.close()
        protocol.connection_lost(problem)
