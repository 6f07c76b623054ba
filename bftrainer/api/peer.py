"""The process at the other end of a connection, as reported by the kernel.

Nothing that the other side sends can change its ``Credentials``. Called where connections are
accepted; the account's name is looked up later, because that may take long.
"""

from __future__ import annotations

import pwd
import socket
import struct
from typing import NamedTuple, Protocol

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
