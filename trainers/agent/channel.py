"""One end of a local socket pair in the event loop, never blocking.

Sends bytes and descriptors; received bytes (or packets) and the end of the peer are reported by
callback. Used for the agent's sockets to templates and workers.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

READ_BYTES = 1 << 20  # also the longest packet
MAX_QUEUED_BYTES = 64 * 1024 * 1024


class Channel:
    """Owns ``sock`` and every descriptor handed to ``send``."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_data: Callable[[bytes], None],
        on_closed: Callable[[], None],
    ) -> None:
        sock.settimeout(0)
        self._socket = sock
        self._is_stream = sock.type == socket.SOCK_STREAM
        self._on_data = on_data
        self._on_closed = on_closed
        self._queue: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._queued_bytes = 0
        self._was_reset = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    def send(self, data: bytes, fds: Sequence[int] = ()) -> bool:
        """Send in order, queued if necessary; False when the peer no longer reads."""
        if self._socket.fileno() < 0 or self._queued_bytes + len(data) > MAX_QUEUED_BYTES:
            _close_all(fds)
            return False
        self._queue.append((data, tuple(fds)))
        self._queued_bytes += len(data)
        self._flush()
        return True

    def drain(self) -> None:
        """Deliver everything that has already arrived."""
        while self._read():
            pass

    def close(self) -> None:
        """Close at once; no callback runs afterwards."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for _, fds in self._queue:
            _close_all(fds)
        self._queue.clear()

    def _read(self) -> bool:
        if self._socket.fileno() < 0:
            return False
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            if not self._was_reset:
                # The peer ended without reading all we sent. The kernel reports that once,
                # before it returns the data that the peer had sent.
                self._was_reset = True
                return True
            data = b""
        if data:
            self._on_data(data)
        else:
            self.close()
            self._on_closed()
        return bool(data)

    def _flush(self) -> None:
        while self._queue:
            data, fds = self._queue[0]
            try:
                sent_bytes = socket.send_fds(self._socket, [data], fds) if fds else self._send(data)
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._flush)
                return
            except (BrokenPipeError, ConnectionResetError):
                sent_bytes = len(data)  # the peer is gone: reported by the next read
            _close_all(fds)
            self._queued_bytes -= sent_bytes
            if self._is_stream and sent_bytes < len(data):
                self._queue[0] = (data[sent_bytes:], ())
            else:
                self._queue.popleft()
        self._loop.remove_writer(self._socket)

    def _send(self, data: bytes) -> int:
        return self._socket.send(data)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
