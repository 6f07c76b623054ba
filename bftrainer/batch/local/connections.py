"""The server's socket: non-blocking line-based connections.

Owned by ``server``; every complete line is passed to a handler.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from pathlib import Path

MAX_LINE_BYTES = 4 * 1024 * 1024

Handler = Callable[[bytes], bytes | None]


class Connections:
    """A listening Unix socket (mode 0600) and its clients; never blocks on any of them."""

    def __init__(self, path: Path, selector: selectors.BaseSelector, on_line: Handler) -> None:
        self._path = path
        self._selector = selector
        self._on_line = on_line
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        path.unlink(missing_ok=True)  # of a server that was killed; the lock is ours
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(128)
        self._clients: dict[socket.socket, _Client] = {}
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        connection.settimeout(0)
        client = _Client(connection, self)
        self._clients[connection] = client
        self._selector.register(connection, selectors.EVENT_READ, client.on_ready)

    def handle(self, line: bytes) -> bytes | None:
        """Return the answer to a line."""
        return self._on_line(line)

    def watch(self, connection: socket.socket, *, is_writing: bool) -> None:
        """Register the events that a client's connection waits for."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_writing else 0)
        self._selector.modify(connection, events, self._clients[connection].on_ready)

    def drop(self, connection: socket.socket) -> None:
        """Forget a client."""
        self._selector.unregister(connection)
        connection.close()
        del self._clients[connection]

    def close(self) -> None:
        """Close all connections and remove the socket."""
        for connection in list(self._clients):
            self.drop(connection)
        self._selector.unregister(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)


class _Client:
    """One connection, with its unfinished line and its unsent output."""

    def __init__(self, connection: socket.socket, owner: Connections) -> None:
        self._connection = connection
        self._owner = owner
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def on_ready(self) -> None:
        """Read what is there, answer complete lines, write what can be written."""
        try:
            self._read()
            if self._outgoing:
                del self._outgoing[: self._connection.send(self._outgoing)]
        except BlockingIOError:
            pass  # the rest goes when the client reads on
        except (OSError, EOFError):
            self._owner.drop(self._connection)
            return
        self._owner.watch(self._connection, is_writing=bool(self._outgoing))

    def _read(self) -> None:
        try:
            chunk = self._connection.recv(1 << 16)
        except BlockingIOError:
            return  # only writable
        if not chunk:
            raise EOFError
        self._incoming += chunk
        while (end := self._incoming.find(b"\n")) >= 0:
            line = bytes(self._incoming[:end])
            del self._incoming[: end + 1]
            self._outgoing += self._owner.handle(line) or b""
        if max(len(self._incoming), len(self._outgoing)) > MAX_LINE_BYTES:
            raise EOFError
