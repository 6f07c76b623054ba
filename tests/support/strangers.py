"""Processes of others that connect to our ports: idle, garbage, floods, slow drips, half-closed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bftrainer.ground.reception import Reception

GARBAGE = (
    b"GET /v1/status HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n\r\n",
    b"\x01" + bytes(7),  # as a rank says hello to gloo
    b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + bytes(48),  # as ZMTP begins
    b"\xff" * 4096,
    b"PUT /none:0/global/0 HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
)
KEPT = 40  # connections of each kind that stay open
PATIENCE_S = 5.0
TURN_S = 0.005


def _idle(_: socket.socket) -> None:
    pass


def _garbage(stranger: socket.socket) -> None:
    stranger.sendall(GARBAGE[stranger.fileno() % len(GARBAGE)])


def _half_closed(stranger: socket.socket) -> None:
    stranger.sendall(b"G")
    stranger.shutdown(socket.SHUT_WR)


def _flood(stranger: socket.socket) -> None:
    stranger.close()


KINDS: dict[str, Callable[[socket.socket], None]] = {
    "idle": _idle, "garbage": _garbage, "half-closed": _half_closed, "flood": _flood, "drip": _idle,
}  # fmt: skip


class Strangers:
    """Connects to the given ports, in one thread for each kind, until the context ends."""

    def __init__(
        self, ports: Callable[[], Iterable[int]], kinds: Iterable[str] = tuple(KINDS)
    ) -> None:
        self._ports = ports
        self.came = Counter[str]()  # connections made, by kind
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._attack, args=(kind,), name=kind) for kind in kinds
        ]

    def are_there(self, most: int = 3) -> bool:
        """Return whether some of every kind have come."""
        return all(self.came[thread.name] >= most for thread in self._threads)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[Strangers]:
        """Attack."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            for thread in self._threads:
                thread.join()

    def _attack(self, kind: str) -> None:
        kept: deque[socket.socket] = deque()
        while not self._is_over.wait(TURN_S):
            for port in tuple(self._ports()):
                with contextlib.suppress(OSError):
                    kept.append(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
                    self.came[kind] += 1
                    KINDS[kind](kept[-1])
            for stranger in kept if kind == "drip" else ():
                with contextlib.suppress(OSError):
                    stranger.sendall(b"G")
            while len(kept) > KEPT:
                kept.popleft().close()
        for stranger in kept:
            stranger.close()


def listening(*pids: int) -> set[tuple[str, int]]:
    """Return the addresses at which these processes listen by IPv4."""
    inodes = {inode for pid in pids for inode in _sockets_of(pid)}
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and inode in inodes:  # listening, proc(5)
            number, _, port = local.partition(":")
            found.add((socket.inet_ntoa(bytes.fromhex(number)[::-1]), int(port, 16)))
    return found


def _sockets_of(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]


def say_to(server: Reception[Any], thread: str, raw: bytes, *, greeting_bytes: int = 0) -> None:
    """Say ``raw`` to a server as a stranger, then close it; its thread must outlive the stranger.

    ``thread``: the name of that thread. ``greeting_bytes``: read before anything is said.
    """
    threads = [t for t in threading.enumerate() if t.name == thread]
    try:
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as stranger:
            stranger.recv(greeting_bytes, socket.MSG_WAITALL)
            with contextlib.suppress(OSError):
                stranger.sendall(raw)
                stranger.shutdown(socket.SHUT_WR)
                stranger.recv(1)
        assert threads
        assert all(t.is_alive() for t in threads)
    finally:
        server.close()
        for one in threads:
            one.join(PATIENCE_S)
