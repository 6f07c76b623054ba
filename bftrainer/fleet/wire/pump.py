"""Serves a ZeroMQ socket in the asyncio event loop by plain callbacks.

Used by all sockets of ``bftrainer.fleet.wire`` instead of ``zmq.asyncio``, because the order in
which sockets are drained matters (see ``router``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import zmq


class SocketPump:
    """Calls ``drain`` in the loop while ``socket`` has messages.

    ZeroMQ's file descriptor is edge-triggered and *any* call on the socket can consume the
    edge, so the state is checked again after each ``drain`` and, by ``poke``, after each send.
    """

    def __init__(self, socket: zmq.Socket[bytes], drain: Callable[[], None]) -> None:
        self._socket = socket
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._fd: int = _option(socket, zmq.FD)
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
    """Whether a message can be read at once."""
    return bool(_option(socket, zmq.EVENTS) & zmq.POLLIN)


def _option(socket: zmq.Socket[bytes], option: int) -> int:
    value: Any = socket.getsockopt(option)
    return int(value)
