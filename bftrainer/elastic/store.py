"""The key-value store through which the members of a generation find each other.

The first survivor opens a ``StoreServer``; every member uses a ``StoreClient``. It replaces
torch's ``TCPStore``, which resolves the host name of every connection it makes or accepts:
one lost DNS answer stopped all members for 5 s. Here addresses are used as given and nothing
is resolved. Standard library only, because members without torch use it too.

The port is open to the whole network of the nodes. So the server greets with a nonce and
reads nothing but a proof that the peer knows the generation's token.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import selectors
import socket
import struct
import threading
import time

from bftrainer.elastic.ports import VARIABLE, listen_within

# A request: what, length of key, length of value; then both. A reply: length and value.
_REQUEST = struct.Struct("!BHI")
_REPLY = struct.Struct("!I")
_SET, _GET = 1, 2
MAX_VALUE_BYTES = 1 << 20
NONCE_BYTES = 16
PROOF_BYTES = hashlib.sha256().digest_size
PROOF_S = 10.0  # generous: a member may learn the token before the server does
MAX_UNPROVEN = 512  # connections at once; half of the usual limit on open files
PAUSE_S = 0.05
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def _proof(token: str, nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), nonce, "sha256")


class _Peer:
    """A connection of the server."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.come_s = time.monotonic()
        self.unread = bytearray()
        self.unsent = bytearray()
        self.awaited: list[str] = []  # requested keys that are not set yet


class StoreServer:
    """Stores values and answers each request as soon as its key is set.

    Nothing is served before ``expect`` has been called with the generation's token.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = listen_within(
            os.environ.get(VARIABLE, ""),
            lambda port: socket.create_server((address, port), family=family, backlog=1024),
        )
        self.port = int(self._listener.getsockname()[1])
        self._wake, self._woken = socket.socketpair()
        self._values: dict[str, bytes] = {}
        self._peers: dict[int, _Peer] = {}
        self._strangers: dict[int, _Peer] = {}  # not authenticated yet, oldest first
        self._token: str | None = None
        self._selector = selectors.DefaultSelector()
        self._listener.settimeout(0.0)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        threading.Thread(target=self._serve, name="bft-store", daemon=True).start()

    def expect(self, token: str) -> None:
        """Serve peers that prove that they know this token; later calls change nothing."""
        if self._token is None:
            self._token = token
            with contextlib.suppress(OSError):  # closed meanwhile
                self._wake.send(b"!")

    def close(self) -> None:
        """Stop serving and close all connections."""
        self._wake.close()

    def _serve(self) -> None:
        is_open = True
        while is_open:
            for key, events in self._selector.select(1.0 if self._strangers else None):
                if key.fileobj is self._woken:
                    is_open = bool(self._woken.recv(1))
                    for stranger in list(self._strangers.values()):
                        self._judge(stranger)
                elif key.fileobj is self._listener:
                    self._welcome()
                else:
                    self._turn_to(key.data, key.fd, events)
            self._send_away_strangers()
        self._selector.close()
        peers = (*self._peers.values(), *self._strangers.values())
        for end in (self._listener, self._woken, *(peer.connection for peer in peers)):
            end.close()

    def _welcome(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as problem:
            if problem.errno in _NO_DESCRIPTORS:  # the listener stays readable: do not spin
                time.sleep(PAUSE_S)
            return  # else it is gone again
        peer = _Peer(connection)
        try:
            connection.settimeout(0.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._strangers[connection.fileno()] = peer
            self._selector.register(connection, selectors.EVENT_READ, peer)
            connection.send(peer.nonce)
        except OSError:
            self._dismiss(peer)

    def _turn_to(self, peer: _Peer, fd: int, events: int) -> None:
        if self._strangers.get(fd) is peer:
            self._hear(peer)
        elif self._peers.get(fd) is peer and not self._attend(peer, events):
            self._dismiss(peer)

    def _hear(self, stranger: _Peer) -> None:
        """Read a proof, and no byte beyond it."""
        try:
            data = stranger.connection.recv(PROOF_BYTES - len(stranger.unread))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        stranger.unread += data
        if not data:
            self._dismiss(stranger)
        elif len(stranger.unread) == PROOF_BYTES:
            self._selector.unregister(stranger.connection)  # what follows waits in the kernel
            self._judge(stranger)

    def _judge(self, stranger: _Peer) -> None:
        """Admit a peer whose proof is right, dismiss one whose proof is wrong."""
        if self._token is None or len(stranger.unread) < PROOF_BYTES:
            return
        if hmac.compare_digest(stranger.unread, _proof(self._token, stranger.nonce)):
            stranger.unread.clear()
            del self._strangers[stranger.connection.fileno()]
            self._peers[stranger.connection.fileno()] = stranger
            self._selector.register(stranger.connection, selectors.EVENT_READ, stranger)
        else:
            self._dismiss(stranger)

    def _send_away_strangers(self) -> None:
        """Dismiss peers without a proof in time, and the oldest if there are too many."""
        too_old_s, surplus = time.monotonic() - PROOF_S, len(self._strangers) - MAX_UNPROVEN
        for number, stranger in enumerate(list(self._strangers.values())):
            if number >= surplus and stranger.come_s >= too_old_s:
                break
            self._dismiss(stranger)

    def _dismiss(self, peer: _Peer) -> None:
        with contextlib.suppress(KeyError):  # unregistered since it sent its proof
            self._selector.unregister(peer.connection)
        for peers in (self._peers, self._strangers):
            peers.pop(peer.connection.fileno(), None)
        peer.connection.close()

    def _attend(self, peer: _Peer, events: int) -> bool:
        """Read and write without blocking; False when the peer must be dismissed."""
        try:
            if events & selectors.EVENT_READ:
                data = peer.connection.recv(1 << 16)
                if not data:
                    return False
                peer.unread += data
                if not self._obey(peer):
                    return False
            self._flush(peer)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _obey(self, peer: _Peer) -> bool:
        while len(peer.unread) >= _REQUEST.size:
            what, key_bytes, value_bytes = _REQUEST.unpack_from(peer.unread)
            if what not in {_SET, _GET} or value_bytes > MAX_VALUE_BYTES:
                return False
            end = _REQUEST.size + key_bytes + value_bytes
            if len(peer.unread) < end:
                break
            name = bytes(peer.unread[_REQUEST.size : _REQUEST.size + key_bytes]).decode(
                errors="replace"
            )
            value = bytes(peer.unread[_REQUEST.size + key_bytes : end])
            del peer.unread[:end]
            if what == _SET:
                self._values[name] = value
                for other in self._peers.values():
                    if name in other.awaited:
                        self._answer(other)
            else:
                peer.awaited.append(name)
                self._answer(peer)
        return True

    def _answer(self, peer: _Peer) -> None:
        """Reply in the order of the requests, up to the first key that is not set."""
        while peer.awaited and peer.awaited[0] in self._values:
            value = self._values[peer.awaited.pop(0)]
            peer.unsent += _REPLY.pack(len(value)) + value
        with contextlib.suppress(OSError):  # found when its socket is served
            self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        with contextlib.suppress(BlockingIOError):
            while peer.unsent:
                del peer.unsent[: peer.connection.send(peer.unsent)]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        self._selector.modify(peer.connection, wanted, peer)


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

    def _send(self, what: int, key: str, value: bytes = b"") -> None:
        name = key.encode()
        try:
            self._socket.sendall(_REQUEST.pack(what, len(name), len(value)) + name + value)
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
