"""HTTP over a Unix socket: uvicorn with peer credentials and firm limits.

The application and listening sockets come in from ``server``; each request reaches the
application with its ``Peer`` in the scope. Idle, slow and surplus connections are
dropped here, so that no client can hold the daemon's loop or its file descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bftrainer.api.peer import peer_of

PEER_KEY = "bftrainer.peer"
MAX_CONNECTIONS = 256
MAX_CONCURRENT = 128
CONNECTION_LIMIT_S = 60.0  # every request of ours is one short exchange
SHUTDOWN_LIMIT_S = 2


class PeerProtocol(H11Protocol):
    """One connection: knows its peer and ends after a while, whatever it does."""

    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Read the peer's credentials once, before the first byte."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        peer = peer_of(transport.get_extra_info("socket"))
        inner: Any = self.app

        async def with_peer(scope: Scope, receive: Receive, send: Send) -> None:
            scope[PEER_KEY] = peer
            await inner(scope, receive, send)

        self.app = with_peer
        self._end = asyncio.get_running_loop().call_later(CONNECTION_LIMIT_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and its time limit."""
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)


class EmbeddedServer(uvicorn.Server):
    """A uvicorn server inside somebody else's loop: it takes no signals."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=PeerProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                limit_concurrency=MAX_CONCURRENT,
                timeout_graceful_shutdown=SHUTDOWN_LIMIT_S,
            )
        )
        self.is_ready = asyncio.Event()
        self._is_over = asyncio.Event()

    def leave(self) -> None:
        """Ask the server to answer what it has begun and end."""
        self.should_exit = True
        self._is_over.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
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
