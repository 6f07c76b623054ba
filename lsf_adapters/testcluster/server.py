"""The server of a stand-in cluster: answers its commands over a Unix socket.

Run by ``cluster`` as ``python -m lsf_adapters.testcluster.server DIRECTORY``. One thread, one
loop: a stopped server reads nothing, and what commands have sent meanwhile is read when it goes
on, as at LSF.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from lsf_adapters.testcluster import verbs
from lsf_adapters.testcluster.batch import Batch
from lsf_adapters.testcluster.config import LsfConfig
from lsf_adapters.testcluster.faults import Faults
from lsf_adapters.testcluster.request import Answer, Request

_TICK_S = 0.02  # with jobs that may end
_IDLE_S = 0.1
_MAX_HEAD = 64 << 20


@dataclass(slots=True, kw_only=True)
class _Connection:
    """One command."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unsent: memoryview | None = None
    answer_s: float = 0.0  # not before


class Server:
    """Serves one cluster until it is told to end."""

    def __init__(self, config: LsfConfig) -> None:
        self._batch = Batch(config)
        self._faults = Faults()
        self._selector = selectors.DefaultSelector()
        self._has_to_end = False
        self._delayed: list[_Connection] = []
        path = config.socket
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o777)
        self._listener.listen(4096)
        self._listener.setblocking(False)  # noqa: FBT003
        self._selector.register(self._listener, selectors.EVENT_READ)
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self._has_to_end = True

    def run(self) -> None:
        """Serve until SIGTERM; jobs go on."""
        while not self._has_to_end:
            self._batch.tick()
            self._send_delayed()
            timeout_s = _IDLE_S
            if self._batch.live or self._delayed:
                timeout_s = _TICK_S
            for key, _ in self._selector.select(timeout_s):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._serve(key.data)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            client, _ = self._listener.accept()
            client.setblocking(False)  # noqa: FBT003
            connection = _Connection(socket=client)
            self._selector.register(client, selectors.EVENT_READ, connection)

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.unsent is not None:
                self._send(connection)
                return
            chunk = connection.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)
            return
        connection.received += chunk
        if not chunk:
            self._close(connection)
        elif (request := _complete(connection)) is not None:
            self._answer(connection, request)

    def _answer(self, connection: _Connection, request: Request) -> None:
        answer = self._handle(request)
        self._batch.flush()
        connection.unsent = memoryview(answer.encode())
        self._selector.unregister(connection.socket)
        query_s, submission_s = self._batch.config.profile.answer_s
        answer_after_s = query_s
        if request.verb == "bsub":
            answer_after_s = submission_s
        connection.answer_s = time.monotonic() + answer_after_s
        self._delayed.append(connection)
        self._send_delayed()

    def _send_delayed(self) -> None:
        now_s = time.monotonic()
        due = [connection for connection in self._delayed if now_s >= connection.answer_s]
        self._delayed = [connection for connection in self._delayed if now_s < connection.answer_s]
        for connection in due:
            self._selector.register(connection.socket, selectors.EVENT_WRITE, connection)
            try:
                self._send(connection)
            except BlockingIOError:
                continue
            except OSError:
                self._close(connection)

    def _handle(self, request: Request) -> Answer:
        if request.verb == "_fault":
            if request.uid != os.geteuid():
                return Answer(status=255, err="not allowed\n")
            return self._faults.order(self._batch, request)
        if request.verb not in verbs.verbs(self._batch.config.dialect):
            return Answer(status=127, err=f"{request.verb}: command not found\n")
        return self._faults.spoil(verbs.answer(self._batch, request), request.verb)

    def _send(self, connection: _Connection) -> None:
        if connection.unsent is None:
            return
        n_sent = connection.socket.send(connection.unsent[: 1 << 20])
        connection.unsent = connection.unsent[n_sent:]
        if not connection.unsent:
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()


def _complete(connection: _Connection) -> Request | None:
    """Return the request once all of it is there."""
    line, newline, body = bytes(connection.received).partition(b"\n")
    if not newline:
        return None
    n_head, n_stdin = map(int, line.split())
    if n_head > _MAX_HEAD or len(body) < n_head + n_stdin:
        return None
    packed = connection.socket.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    _, uid, gid = struct.unpack("3i", packed)
    return Request.decode(body[:n_head], body[n_head : n_head + n_stdin], uid, gid)


def main() -> None:
    """Serve the cluster of a directory."""
    os.umask(0o022)
    # Jobs inherit it: one that was started in the background could not trap SIGINT.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    Server(LsfConfig.load(Path(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
