"""The agent's local sockets in an event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainers.agent.channel import MAX_QUEUED_BYTES, Channel

PACKETS, STREAM = socket.SOCK_SEQPACKET, socket.SOCK_STREAM


class Ends:
    """A channel, its peer as a plain socket, and what arrived."""

    def __init__(self, kind: socket.SocketKind) -> None:
        ours, self.peer = socket.socketpair(socket.AF_UNIX, kind)
        self.received: list[bytes] = []
        self.closings = 0
        self.channel = Channel(ours, on_data=self.received.append, on_closed=self._closed)

    def _closed(self) -> None:
        self.closings += 1


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", [PACKETS, STREAM])
def test_last_words_arrive_though_the_peer_read_nothing(kind: socket.SocketKind) -> None:
    async def scenario() -> None:
        ends = Ends(kind)
        ends.channel.send(b"never read")
        ends.peer.send(b"last words")
        ends.peer.close()
        await until(lambda: ends.closings)
        assert ends.received == [b"last words"]
        assert ends.closings == 1
        assert not ends.channel.send(b"too late")

    asyncio.run(scenario())


def test_much_is_sent_in_order_without_blocking() -> None:
    async def scenario() -> None:
        ends = Ends(STREAM)
        lines = [b"%d\n" % n * 1000 for n in range(500)]
        for line in lines:
            assert ends.channel.send(line)
        received = await asyncio.to_thread(_read_all, ends.peer, sum(map(len, lines)))
        assert received == b"".join(lines)
        assert not ends.channel.send(b"x" * (MAX_QUEUED_BYTES + 1))
        ends.peer.close()
        await until(lambda: ends.closings)

    asyncio.run(scenario())


def _read_all(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += sock.recv(1 << 16)
    return data


def test_descriptors_travel_and_are_closed_here(tmp_path: Path) -> None:
    async def scenario() -> None:
        ends = Ends(PACKETS)
        (tmp_path / "file").write_bytes(b"contents")
        for _ in range(2):
            fd = os.open(tmp_path / "file", os.O_RDONLY)
            assert ends.channel.send(b"take it", (fd,))
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(fd)
            data, fds, _, _ = socket.recv_fds(ends.peer, 100, 2)
            assert data == b"take it"
            assert os.pread(fds[0], 100, 0) == b"contents"
            os.close(fds[0])
        ends.channel.close()
        unsent = os.open(tmp_path / "file", os.O_RDONLY)
        assert not ends.channel.send(b"closed", (unsent,))
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(unsent)
        assert ends.closings == 0
        ends.peer.close()

    asyncio.run(scenario())
