"""Who may come in: connections are accepted here, and each user has a share of the places.

A listening socket comes in; connections with the user that the kernel names go out to
``receive``. What is above a user's share gets one prepared answer and is closed, which costs
so little that a flood of it keeps nobody else waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import Callable
from typing import Final, Protocol

from bftrainer.api.documents import error_document
from bftrainer.api.peer import Credentials, credentials_of
from bftrainer.errors import BftError, ExitCode

LOG = logging.getLogger("bftrainer.api")
PLACES: Final = 256  # of all users together, but for the owners
PLACES_OF_USER: Final = 32
PLACES_OF_OWNER: Final = 256  # root's, and the daemon's own user's
ACCEPTS_PER_TURN: Final = 64  # then the loop has other work
_LOG_EVERY_S: Final = 10.0
_PAUSE_S: Final = 0.1  # while the process has no file descriptors left


class Guest(Protocol):
    """A connection that has a place."""

    def send_away(self) -> None:
        """Close the connection now."""


class Places:
    """Guests by user, oldest first; ``owners`` have places that nobody else can take."""

    def __init__(self, owners: frozenset[int]) -> None:
        self._owners = owners
        self._of: dict[int, dict[Guest, None]] = {}

    def make_room(self, uid: int) -> bool:
        """Tell whether one more may come; if need be, a user who has more gives one up."""
        n_own = len(self._of.get(uid, ()))
        if uid in self._owners:
            return n_own < PLACES_OF_OWNER
        if n_own >= PLACES_OF_USER:
            return False
        others = {uid: own for uid, own in self._of.items() if uid not in self._owners}
        if sum(map(len, others.values())) < PLACES:
            return True
        greediest = max(others, key=lambda uid: len(others[uid]))
        if len(others[greediest]) <= n_own + 1:
            return False
        oldest = next(iter(others[greediest]))
        self.leave(greediest, oldest)
        oldest.send_away()
        return True

    def enter(self, uid: int, guest: Guest) -> None:
        """Give a guest a place."""
        self._of.setdefault(uid, {})[guest] = None

    def leave(self, uid: int, guest: Guest) -> None:
        """Take the place back; harmless when it was."""
        own = self._of.get(uid, {})
        own.pop(guest, None)
        if not own:
            self._of.pop(uid, None)


class Doorman:
    """Accepts connections while it is open."""

    def __init__(
        self,
        listener: socket.socket,
        places: Places,
        receive: Callable[[socket.socket, Credentials], None],
    ) -> None:
        self._listener, self._places, self._receive = listener, places, receive
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._refused, self._said_s = 0, -_LOG_EVERY_S

    def open(self) -> None:
        """Begin to accept."""
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._accept_some)

    def close(self) -> None:
        """Accept no more."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())

    def _accept_some(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptors: who waits is accepted when some are free
                self.close()
                self._pause = self._loop.call_later(_PAUSE_S, self.open)
                return
            connection.settimeout(0)
            who = credentials_of(connection)
            if self._places.make_room(who.uid):
                self._receive(connection, who)
            else:
                self._refuse(connection, who.uid)

    def _refuse(self, connection: socket.socket, uid: int) -> None:
        with connection, contextlib.suppress(OSError):
            connection.send(_FULL, socket.MSG_NOSIGNAL)
        self._refused += 1
        now_s = time.monotonic()
        if now_s - self._said_s >= _LOG_EVERY_S:  # a flood must not fill the disk
            self._said_s = now_s
            LOG.warning(
                "BFT-1107: a connection of uid %d refused, %d so far of all", uid, self._refused
            )


def _full() -> bytes:
    error = BftError(
        "BFT-1107",
        "You, or all users together, have as many connections to the daemon as are allowed.",
        "Try again in a moment; end programs of yours that keep connections open.",
        exit_code=ExitCode.TIMEOUT,
    )
    body = json.dumps(error_document(error)).encode()
    return (
        b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )


_FULL: Final = _full()
