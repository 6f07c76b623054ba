"""The small store through which the members of one generation find each other.

The first survivor opens a ``StoreServer``; every member talks to it by a
``StoreClient``. Used instead of torch's ``TCPStore``, which asks the name service for
the host name of every connection it makes or takes: one lost answer stopped all members
for 5 s. Addresses are used as they are here, and nothing is looked up. Standard library
only: members that know no torch meet here, too.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading

# A request: what, length of key, length of value; then both. A reply: length and value.
_REQUEST = struct.Struct("!BHI")
_REPLY = struct.Struct("!I")
_SET, _GET = 1, 2
MAX_VALUE_BYTES = 1 << 20


class _Peer:
    """A connection as the server sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.unread = bytearray()
        self.unsent = bytearray()
        self.awaited: list[str] = []  # keys asked for that nobody has set yet


class StoreServer:
    """Keeps what members set and hands it to those who ask, as soon as it is there."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=1024)
        self.port = int(self._listener.getsockname()[1])
        self._wake, self._woken = socket.socketpair()
        self._values: dict[str, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._listener.settimeout(0.0)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        threading.Thread(target=self._serve, name="bft-store", daemon=True).start()

    def close(self) -> None:
        """Stop serving; members that still ask see their connections close."""
        self._wake.close()

    def _serve(self) -> None:
        peers: dict[int, _Peer] = {}
        is_open = True
        while is_open:
            for key, events in self._selector.select():
                if key.fileobj is self._woken:
                    is_open = False
                elif key.fileobj is self._listener:
                    self._welcome(peers)
                elif not self._attend(peers, key.data, events):
                    self._selector.unregister(key.data.connection)
                    del peers[key.fd]
                    key.data.connection.close()
        self._selector.close()
        for end in (self._listener, self._woken, *(peer.connection for peer in peers.values())):
            end.close()

    def _welcome(self, peers: dict[int, _Peer]) -> None:
        with contextlib.suppress(OSError):  # gone again, or no descriptors left
            connection, _ = self._listener.accept()
            connection.settimeout(0.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = peers[connection.fileno()] = _Peer(connection)
            self._selector.register(connection, selectors.EVENT_READ, peer)

    def _attend(self, peers: dict[int, _Peer], peer: _Peer, events: int) -> bool:
        """Read and write what is possible; False when the peer has to go."""
        try:
            if events & selectors.EVENT_READ:
                data = peer.connection.recv(1 << 16)
                if not data:
                    return False
                peer.unread += data
                if not self._obey(peers, peer):
                    return False
            self._flush(peer)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _obey(self, peers: dict[int, _Peer], peer: _Peer) -> bool:
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
                for other in peers.values():
                    if name in other.awaited:
                        self._answer(other)
            else:
                peer.awaited.append(name)
                self._answer(peer)
        return True

    def _answer(self, peer: _Peer) -> None:
        """Reply in the order of the questions, as far as the answers are known."""
        while peer.awaited and peer.awaited[0] in self._values:
            value = self._values[peer.awaited.pop(0)]
            peer.unsent += _REPLY.pack(len(value)) + value
        with contextlib.suppress(OSError):  # its own turn finds out
            self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        with contextlib.suppress(BlockingIOError):
            while peer.unsent:
                del peer.unsent[: peer.connection.send(peer.unsent)]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        self._selector.modify(peer.connection, wanted, peer)


class StoreClient:
    """``set`` and ``get``. Failures are ``RuntimeError``s, as those of torch's own stores."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, bytes] = {}
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as problem:
            raise RuntimeError(f"the store of the generation is gone: {problem}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def set(self, key: str, value: bytes | str) -> None:
        """Tell the others."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._lock:
            self._send(_SET, key, data)

    def get(self, key: str) -> bytes:
        """Return what a member has set, waiting for it."""
        with self._lock:
            if key not in self._known:
                self._send(_GET, key)
                (length,) = _REPLY.unpack(self._receive(_REPLY.size))
                self._known[key] = self._receive(length)
            return self._known[key]

    def limit(self, timeout_s: float) -> None:
        """Wait no longer than this for an answer from now on."""
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
        self._socket.close()  # what comes late would be taken for the next answer
        return RuntimeError(f"the store of the generation does not answer: {why}")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
