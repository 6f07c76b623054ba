"""Connections of browsers: limits for each user and in time, as at the daemon's socket.

The page's own user and root have places of their own: root because it can do everything anyway, and
sshd connects as the user whose tunnel it is. Another user of the host has 32 places, and all others
together 256 (``http_protocol``), which is enough for a proxy or a portal that runs as a user of its
own, and takes no place from the page's user. Another host counts as one user.

A connection is one request and its answer, and ends by the time limits of the daemon's socket. A
browser with cookie and key may hear events, or wait for an answer, for as long as it likes.
"""

from __future__ import annotations

import asyncio
import functools
import math
import socket
from typing import Final

from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from bftrainer.api.http_protocol import (
    Credentials,
    Desk,
    GuardedServer,
    PeerProtocol,
    credentials_of,
    too_many,
)
from bftrainer.api.page.peers import Peers
from bftrainer.fleet import open_files
from bftrainer.model.errors import BftError, ExitCode

LET_IN: Final = "bftrainer.let_in"  # in the scope of a request: its browser has cookie and key


class PageDesk(Desk):
    """Says who comes to the page; writes nothing to its user's terminal."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__()
        self._peers = None if listener.family == socket.AF_UNIX else Peers(listener)

    def identify(self, connection: socket.socket) -> Credentials:
        """Return who opened a connection; another host is a user below zero."""
        if self._peers is None:
            return credentials_of(connection)
        return self._peers.identify(connection)

    def refusal(self, who: Credentials) -> bytes:
        """Return the answer to a connection above its user's share."""
        del who
        return _full()


@functools.cache
def _full() -> bytes:
    return too_many(
        BftError(
            "BFT-1088",
            "You, or all users together, have the maximum number of connections to the page.",
            "Try again in a moment; close tabs, or programs that keep connections to it open.",
            exit_code=ExitCode.TIMEOUT,
        )
    )


class PageProtocol(PeerProtocol):
    """One connection of a browser."""

    @property
    def is_let_in(self) -> bool:
        """Whether its browser has proved itself with a whole request."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.more_body and bool(cycle.scope.get(LET_IN))

    def limit_s(self) -> float:
        """Return how long the connection may last, as far as it has come."""
        if self.is_let_in:
            return math.inf
        return super().limit_s()


class PageServer(GuardedServer):
    """Serves the page; at its end the streams of events end first, which would go on for ever."""

    def __init__(self, app: Starlette, listener: socket.socket, ended: asyncio.Event) -> None:
        """``listener``: one of the sockets that it will serve."""
        super().__init__(app, PageDesk(listener), PageProtocol)
        self._ended = ended

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting."""
        open_files.raise_limit()
        await super().startup(sockets=sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drop those who have not proved themselves, and finish the other answers."""
        self._ended.set()
        for connection in list(self.server_state.connections):
            if isinstance(connection, PageProtocol) and not connection.is_let_in:
                connection.send_away()
        await super().shutdown(sockets=sockets)
