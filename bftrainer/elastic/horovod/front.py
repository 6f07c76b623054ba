"""Stands in for the HTTP rendezvous server of Horovod's gloo back end, one per process.

Horovod connects over the loopback device; its values are kept in the generation's store, as
those of PyTorch's back end are. A GET is answered when the value is set: Horovod's own server
answers 404, and its client then sleeps 10 ms, several times in every rescale. Paths begin with
the generation's token, so that other requests are refused (Horovod 0.28.1,
``horovod/common/gloo/http_store.cc``).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Protocol

HOST = "127.0.0.1"
PATIENCE_S = 30.0  # timeout of a connection
MAX_REQUEST_BYTES = 1 << 20
RANK_AND_SIZE = "rank_and_size"  # the scope of horovod/common/gloo/gloo_context.h
_OK, _FORBIDDEN, _NOT_FOUND = "200 OK", "403 Forbidden", "404 Not Found"


class Keeps(Protocol):
    """A key-value store."""

    def set(self, key: str, value: bytes | str) -> None:
        """Store a value."""

    def get(self, key: str) -> bytes:
        """Return a value, waiting for it; ``RuntimeError`` when it cannot come any more."""


class Kept:
    """The store of a single member."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes | str) -> None:
        """Store it."""
        self._values[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:
        """Return it; no other process can set it."""
        try:
            return self._values[key]
        except KeyError:
            raise RuntimeError(f"{key} was never set") from None


class Front:
    """Serves one Horovod context while it forms; requests come one after another."""

    def __init__(self, store: Keeps, *, prefix: str, token: str, place: str) -> None:
        self._store = store
        self._prefix = prefix
        self._start = f"/{token}:0/"  # Horovod appends the port to our token
        self._place = place
        self._listener = socket.create_server((HOST, 0))
        port = int(self._listener.getsockname()[1])
        self.address = f"{HOST}:{port}/{token}"
        threading.Thread(target=self._serve, name="bft-horovod-front", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        with contextlib.suppress(OSError):  # wakes accept(), which close() does not
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            with connection, contextlib.suppress(OSError, ValueError, RuntimeError):
                connection.settimeout(PATIENCE_S)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        method, path, body = _read(connection)
        status, value = _FORBIDDEN, b""
        if path.startswith(self._start):
            status, value = self._do(method, path.removeprefix(self._start), body)
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(value)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + value)

    def _do(self, method: str, key: str, body: bytes) -> tuple[str, bytes]:
        if method == "GET" and key.startswith(f"{RANK_AND_SIZE}/"):
            return _OK, self._place.encode()
        if method == "GET":
            return _OK, self._store.get(f"{self._prefix}/{key}")
        if method == "PUT":
            self._store.set(f"{self._prefix}/{key}", body)
            return _OK, b""
        # DELETE means that this rank is done; the store is dropped with its generation.
        return (_OK, b"") if method == "DELETE" else (_NOT_FOUND, b"")


def _read(connection: socket.socket) -> tuple[str, str, bytes]:
    """Return method, path and body of a request; raise ValueError if it is not one."""
    data = bytearray()
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _more(connection, data)
    first, *headers = bytes(data[:end]).decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    n_bytes = 0
    for line in headers:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length":
            n_bytes = int(value)
    start = end + 4
    while len(data) < start + n_bytes:
        data += _more(connection, data)
    return method, path, bytes(data[start : start + n_bytes])


def _more(connection: socket.socket, so_far: bytearray) -> bytes:
    chunk = connection.recv(1 << 16)
    if not chunk or len(so_far) > MAX_REQUEST_BYTES:
        raise ValueError("not a request")
    return chunk
