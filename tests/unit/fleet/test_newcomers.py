"""What strangers at a port with CURVE send before a handshake fails does not fill our memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from bftrainer.fleet.wire import newcomers, router
from bftrainer.fleet.wire.keys import generate_pair
from tests.support.far_attacker import greeting
from tests.support.waiting import wait_for

STRANGERS = 40
SENT = b"\x06" + (150_000).to_bytes(8, "big") + bytes(100_000)  # of a command that has no end


@pytest.fixture(autouse=True)
def is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No handshake is over in time here."""
    monkeypatch.setattr(router, "HANDSHAKE_LIMIT_MS", 600_000)
    monkeypatch.setattr(newcomers, "MESSAGES", 0)


@contextlib.contextmanager
def _strangers(port: int, text: bytes) -> Iterator[Callable[[], list[int]]]:
    """Connect and send; yield what says which of them were ended."""
    with contextlib.ExitStack() as stack:
        every = []
        for _ in range(STRANGERS):
            stranger = socket.create_connection(("127.0.0.1", port), 60)
            every.append(stack.enter_context(stranger))
            with contextlib.suppress(OSError):
                stranger.sendall(text)
            stranger.settimeout(0)

        def ended() -> list[int]:
            return [number for number, stranger in enumerate(every) if _is_over(stranger)]

        yield ended


def _is_over(stranger: socket.socket) -> bool:
    try:
        while stranger.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _attacked(work: Callable[[int], None]) -> list[bytes]:
    """Let ``work`` use the port of a router that knows one key, in a thread; what it heard."""
    ours, friend, heard = generate_pair(), generate_pair(), list[bytes]()

    async def serve() -> None:
        is_heard = asyncio.Event()

        def hear(_: router.Origin, frame: bytes) -> None:
            heard.append(frame)
            is_heard.set()

        listening = router.CurveRouter(
            keys=ours,
            max_message_bytes=200_000,
            is_allowed=friend.public.__eq__,
            on_frame=hear,
        )
        try:
            port = int(listening.start("127.0.0.1", 0).rpartition(":")[2])
            with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
                dealer.set(zmq.LINGER, 0)
                friend.prove(dealer, ours.public)
                dealer.connect(f"tcp://127.0.0.1:{port}")
                await asyncio.to_thread(work, port)
                dealer.send(bytes(150_000))
                await is_heard.wait()
        finally:
            listening.close()

    asyncio.run(asyncio.wait_for(serve(), 120))
    return heard


def test_who_has_sent_too_much_without_a_key_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomers, "LEAST_BYTES", 1 << 20)

    def attack(port: int) -> None:
        with _strangers(port, greeting(b"CURVE") + SENT) as ended:
            wait_for(lambda: len(ended()) >= STRANGERS - 10, what="most of them are ended")
            assert len(ended()) < STRANGERS, "the others have not sent much"

    assert _attacked(attack) == [bytes(150_000)]


def test_the_oldest_of_too_many_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomers, "MOST", 10)

    def attack(port: int) -> None:
        with _strangers(port, b"\xff") as ended:
            wait_for(lambda: len(ended()) >= STRANGERS - 10, what="most of them are ended")
            assert STRANGERS - 1 not in ended(), "the newest stays"

    assert _attacked(attack) == [bytes(150_000)]


def test_a_number_that_is_another_file_s_by_now_is_left_alone(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    watched = newcomers.Newcomers(1000)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as unix,
        (tmp_path / "file").open("w") as file,
    ):
        before = descriptors()
        for number in (unix.fileno(), file.fileno(), server.fileno(), 10_000, -1):
            watched.came(number, server.getsockname()[1] + 1)
        assert (len(watched), descriptors()) == (0, before)
        watched.came(server.fileno(), server.getsockname()[1])
        assert len(watched) == 1
        watched.close()
        assert (len(watched), descriptors()) == (0, before)
