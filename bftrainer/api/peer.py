"""Who is at the other end of a connection, as the kernel says.

A connected Unix socket comes in, a ``Peer`` goes out: nothing that the other side
writes can change it. Called by the HTTP protocol of the server.
"""

from __future__ import annotations

import functools
import pwd
import socket
import struct
from typing import Protocol

from bftrainer.api.service import Peer

_UCRED = struct.Struct("3i")  # pid, uid, gid


class HasPeer(Protocol):
    """A socket, or asyncio's wrapper of one."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """Read a socket option."""


def peer_of(connection: HasPeer) -> Peer:
    """Return the user and process that opened the connection."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return Peer(uid=uid, user=user_name(uid), pid=pid)


def user_name(uid: int) -> str:
    """Return the account's name, or its number when it has none."""
    try:
        return _account(uid)
    except KeyError:
        return str(uid)


@functools.lru_cache(maxsize=1024)
def _account(uid: int) -> str:
    # Remembered, because a directory service may take long; a failure is asked again.
    return pwd.getpwuid(uid).pw_name
