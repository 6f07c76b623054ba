"""Accepts connections to the API, with a limit per user.

Connections go to ``receive`` with the user that the kernel reports. A connection above its user's
share gets one prepared answer and is closed, which is cheap enough that a flood does not delay
other users.

Nothing that the other side sends can change its ``Credentials``. The account's name is looked up
after a connection is accepted, because that may take long.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import pwd
import socket
import struct
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from bftrainer.api.documents import error_document
from bftrainer.model.errors import BftError, ExitCode

_UCRED = struct.Struct("3i")  # pid, uid, gid


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


def user_name(uid: int) -> str:
    """Return the account's name, or its number if it has none; may take long."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


LOG = logging.getLogger("bftrainer.api")
PLACES: Final = 256  # of all users together, except the owners
PLACES_OF_USER: Final = 32
PLACES_OF_OWNER: Final = 256  # root and the daemon's own user
ACCEPTS_PER_TURN: Final = 64  # then the event loop does other work
_LOG_EVERY_S: Final = 10.0
_PAUSE_S: Final = 0.1  # while the process has no file descriptors left


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
        """Give a connection a place."""
        self._of.setdefault(uid, {})[guest] = None

    def leave(self, uid: int, guest: Guest) -> None:
        """Free the place; harmless if it is free."""
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
        "You, or all users together, have the maximum number of connections to the daemon.",
        "Try again in a moment; end your programs that keep connections open.",
        exit_code=ExitCode.TIMEOUT,
    )
    body = json.dumps(error_document(error)).encode()
    return (
        b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )


_FULL: Final = _full()
