"""Connections of which nothing is proved yet, and the memory that they may take.

ZeroMQ reads frames of a listening socket's greatest length from everybody, so that without a key a
stranger could fill our memory until the time of a handshake is over. The kernel counts what each
connection has sent: while all newcomers together have sent too much, those go that sent most. A
client of ours sends a few hundred bytes and then its first message, with which it is proved. Owned
by ``router``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Final

LOOK_S: Final = 0.1  # between looks, while there are newcomers
LEAST_BYTES: Final = 64 << 20  # of all together
MESSAGES: Final = 64  # of the greatest length, likewise
MOST: Final = 4096  # newcomers; the oldest of more go
_BY_TCP: Final = (socket.AF_INET, socket.AF_INET6)
_RECEIVED: Final = struct.Struct("=128xQ")  # tcp_info, linux/tcp.h: tcpi_bytes_received


class Newcomers:
    """Newcomers by descriptor, which is ZeroMQ's; each is held by a duplicate of it.

    A number may be another file's by the time that its event is read. If that is a connection at
    our port, it is a newcomer, too, and proves itself, or ends, under the same number.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._most_bytes = max(LEAST_BYTES, MESSAGES * max_message_bytes)
        self._sockets: dict[int, socket.socket] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._sockets)

    def came(self, fd: int, port: int) -> None:
        """Watch a connection that was accepted at our port."""
        self.left(fd)
        here = _socket_at(fd)
        if here is None:
            return
        if here.family in _BY_TCP and here.getsockname()[1] == port:
            self._sockets[fd] = here
        else:
            here.close()

    def left(self, fd: int) -> None:
        """Forget one that has proved itself, or ended."""
        here = self._sockets.pop(fd, None)
        if here is not None:
            here.close()

    def end_excess(self) -> int:
        """End those that sent most, as long as all have sent too much; return how many."""
        count = max(0, len(self._sockets) - MOST)
        for fd in list(self._sockets)[:count]:
            self._end(fd)
        sent = {fd: _sent_bytes(here) for fd, here in self._sockets.items()}
        excess = sum(sent.values()) - self._most_bytes
        for fd in sorted(sent, key=lambda one: -sent[one]):
            if excess <= 0:
                break
            excess -= sent[fd]
            self._end(fd)
            count += 1
        return count

    def close(self) -> None:
        """Forget all."""
        for fd in list(self._sockets):
            self.left(fd)

    def _end(self, fd: int) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._sockets[fd].shutdown(socket.SHUT_RDWR)
        self.left(fd)


def _socket_at(fd: int) -> socket.socket | None:
    """Return a duplicate; None: it has ended, is no socket, or no descriptors are left."""
    try:
        duplicate = os.dup(fd)
    except OSError:
        return None
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return None


def _sent_bytes(here: socket.socket) -> int:
    """Return how many bytes the other end has sent; 0 where the kernel does not tell."""
    try:
        told = here.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        return int(_RECEIVED.unpack(told)[0])
    except (OSError, struct.error):
        return 0
