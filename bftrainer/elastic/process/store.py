"""The key-value store through which the members of a generation find each other.

The first survivor opens a ``StoreServer``; every member uses a ``StoreClient``. It replaces
torch's ``TCPStore``, which resolves the host name of every connection it makes or accepts:
one lost DNS answer stopped all members for 5 s. Here addresses are used as given and nothing
is resolved. Standard library only, because members without torch use it too.

The port is open to the whole network of the nodes. So the server greets with a nonce and
reads nothing but a proof that the peer knows the generation's token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import secrets
import socket
import struct
import threading
from collections import defaultdict

from bftrainer.ground.ports import VARIABLE, listen_within
from bftrainer.ground.reception import Reception

# A request: operation, length of key, length of value; then both. A reply: length and value.
_REQUEST = struct.Struct("!BHI")
_REPLY = struct.Struct("!I")
_SET, _GET = 1, 2
MAX_VALUE_BYTES = 1 << 20
NONCE_BYTES = 16
PROOF_BYTES = hashlib.sha256().digest_size


def _proof(token: str, nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), nonce, "sha256")


class StoreServer(Reception[bytes]):
    """Stores values and answers each request as soon as its key is set.

    Nothing is served before ``expect`` has been called with the generation's token.
    """

    most_strangers = 512  # half of the usual limit on open files

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._values: dict[str, bytes] = {}
        self._set: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)  # by key
        self._token = ""
        self._expected = asyncio.Event()
        listener = listen_within(
            os.environ.get(VARIABLE, ""),
            lambda port: socket.create_server((address, port), family=family, backlog=1024),
        )
        super().__init__(listener, "bft-store")

    def expect(self, token: str) -> None:
        """Serve peers that prove that they know this token; later calls change nothing."""
        self._token = self._token or token
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._loop.call_soon_threadsafe(self._expected.set)

    async def _proof(self, connection: socket.socket) -> bytes | None:
        """Read nothing but a proof."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        await self._loop.sock_sendall(connection, nonce)
        proof = await self._read(connection, PROOF_BYTES)
        await self._expected.wait()
        if not hmac.compare_digest(proof, _proof(self._token, nonce)):
            return None
        return proof

    async def _attend(self, connection: socket.socket, _: bytes) -> None:
        while True:
            await self._answer(connection)

    async def _answer(self, connection: socket.socket) -> None:
        head = await self._read(connection, _REQUEST.size)
        operation, key_bytes, value_bytes = _REQUEST.unpack(head)
        if operation not in {_SET, _GET} or value_bytes > MAX_VALUE_BYTES:
            raise ConnectionError("not a request")
        name = (await self._read(connection, key_bytes)).decode(errors="replace")
        value = await self._read(connection, value_bytes)
        if operation == _SET:
            self._values[name] = value
            self._set[name].set()
        else:
            await self._set[name].wait()
            value = self._values[name]
            await self._loop.sock_sendall(connection, _REPLY.pack(len(value)) + value)


class StoreClient:
    """``set`` and ``get``. Failures are ``RuntimeError``s, as those of torch's own stores."""

    def __init__(self, host: str, port: int, token: str, timeout_s: float) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, bytes] = {}
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as problem:
            raise RuntimeError(f"the store of the generation is gone: {problem}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nonce = self._receive(NONCE_BYTES)
        try:
            self._socket.sendall(_proof(token, nonce))
        except OSError as problem:
            raise self._broken(problem) from None

    def set(self, key: str, value: bytes | str) -> None:
        """Set a value."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._lock:
            self._send(_SET, key, data)

    def get(self, key: str) -> bytes:
        """Return a value; blocks until a member has set it."""
        with self._lock:
            if key not in self._known:
                self._send(_GET, key)
                (length,) = _REPLY.unpack(self._receive(_REPLY.size))
                self._known[key] = self._receive(length)
            return self._known[key]

    def limit(self, timeout_s: float) -> None:
        """Set the timeout of later answers."""
        self._socket.settimeout(timeout_s)

    def _send(self, operation: int, key: str, value: bytes = b"") -> None:
        name = key.encode()
        try:
            self._socket.sendall(_REQUEST.pack(operation, len(name), len(value)) + name + value)
        except OSError as problem:
            raise self._broken(problem) from None

    def _receive(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            try:
                part = self._socket.recv(length - len(data))
            except OSError as problem:
                raise self._broken(problem) from None
            if not part:
                raise self._broken("it was closed")
            data += part
        return bytes(data)

    def _broken(self, why: object) -> RuntimeError:
        self._socket.close()  # a late reply would be taken for the next answer
        return RuntimeError(f"the store of the generation does not answer: {why}")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
