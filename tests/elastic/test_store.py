"""The store of a generation: late values, many members, strangers, a server that goes."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from bftrainer.elastic.network.group import TorchStore
from bftrainer.elastic.process.store import NONCE_BYTES, PROOF_BYTES, StoreClient, StoreServer
from bftrainer.ground import reception
from bftrainer.ground.reception import PAUSE_S
from tests.fuzz.door import memory_bytes
from tests.support.waiting import wait_for

TOKEN = "a token"  # noqa: S105 - of a generation


@pytest.fixture
def server() -> Iterator[StoreServer]:
    opened = StoreServer("127.0.0.1")
    opened.expect(TOKEN)
    yield opened
    opened.close()


@contextlib.contextmanager
def client_of(server: StoreServer, timeout_s: float = 60.0) -> Iterator[TorchStore]:
    client = TorchStore(StoreClient("127.0.0.1", server.port, TOKEN, timeout_s))
    try:
        yield client
    finally:
        client.close()


def test_a_value_reaches_those_who_asked_before_it_was_set(server: StoreServer) -> None:
    found: dict[int, list[bytes]] = {}

    def member(rank: int) -> None:
        with client_of(server) as client:
            # As gloo does: tell, wait for each of the others, read.
            client.set(f"1.1.token/{rank}", bytes([rank]) * 3000)
            found[rank] = []
            for other in range(8):
                client.wait([f"1.1.token/{other}"], timedelta(seconds=60))
                found[rank].append(client.get(f"1.1.token/{other}"))

    threads = [threading.Thread(target=member, args=(rank,)) for rank in reversed(range(8))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {rank: [bytes([o]) * 3000 for o in range(8)] for rank in range(8)}


def test_a_value_larger_than_the_socket_buffers_arrives_whole(server: StoreServer) -> None:
    value = bytes(range(256)) * 4096
    with client_of(server) as one, client_of(server) as other:
        one.set("large", value)
        assert other.get("large") == value


def test_waiting_for_what_nobody_sets_ends_as_a_runtime_error(server: StoreServer) -> None:
    with client_of(server) as client, pytest.raises(RuntimeError, match="does not answer"):
        client.wait(["never"], timedelta(seconds=0.05))


def test_waiting_members_see_the_server_go(server: StoreServer) -> None:
    with client_of(server) as client:
        client.set("mine", b"1")
        assert client.get("mine") == b"1"
        server.close()
        with pytest.raises(RuntimeError, match="does not answer"):
            client.get("other")
    with pytest.raises(RuntimeError, match="is gone"):
        StoreClient("127.0.0.1", server.port, TOKEN, 1.0)


def stranger_of(server: StoreServer) -> socket.socket:
    stranger = socket.create_connection(("127.0.0.1", server.port), 60)
    assert len(stranger.recv(NONCE_BYTES, socket.MSG_WAITALL)) == NONCE_BYTES
    return stranger


def is_sent_away(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:  # what it sent was never read
        return True


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\nHost: n1:40000\r\n\r\n", bytes(PROOF_BYTES)]
)
def test_a_stranger_is_sent_away_and_disturbs_nobody(server: StoreServer, garbage: bytes) -> None:
    with client_of(server) as one, client_of(server) as other:
        with stranger_of(server) as stranger:
            stranger.sendall(garbage)
            assert is_sent_away(stranger)
        one.set("key", b"value")
        assert other.get("key") == b"value"


def test_a_member_breaks_off_what_no_member_would_say(server: StoreServer) -> None:
    client = StoreClient("127.0.0.1", server.port, TOKEN, 60.0)
    client._socket.sendall(b"\x01\x00\x01\xff\xff\xff\xff")
    with pytest.raises(RuntimeError, match="does not answer"):
        client.get("key")


def test_nothing_of_a_stranger_is_kept(server: StoreServer) -> None:
    """A set request with a megabyte in it, a hundred times, by who knows no token."""
    request = struct.pack("!BHI", 1, 4, 1 << 20) + b"name" + bytes(1 << 20)
    before_bytes = memory_bytes()
    for number in range(100):
        with stranger_of(server) as stranger:
            with contextlib.suppress(OSError):
                stranger.sendall(request.replace(b"name", b"%04d" % number))
            with contextlib.suppress(OSError):
                stranger.recv(1)
    with client_of(server) as one:
        one.set("key", b"value")
        assert one.get("key") == b"value"
    assert memory_bytes() - before_bytes < 20 << 20
    assert set(server._values) == {"key"}


def test_members_who_come_before_the_token_is_known_are_served_then() -> None:
    server = StoreServer("127.0.0.1")
    found: list[bytes] = []

    def member() -> None:
        with client_of(server) as client:
            client.set("mine", b"1")
            found.append(client.get("mine"))

    thread = threading.Thread(target=member)
    try:
        with stranger_of(server) as early:
            early.sendall(bytes(PROOF_BYTES))
            thread.start()
            wait_for(lambda: len(server._strangers) == 2, what="both have come")
            assert not found
            server.expect(TOKEN)
            thread.join(60)
            assert found == [b"1"]
            assert is_sent_away(early)
    finally:
        server.close()


def test_of_too_many_strangers_the_oldest_go(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreServer, "most_strangers", 4)
    silent = [stranger_of(server) for _ in range(12)]
    with client_of(server) as one:
        one.set("key", b"value")
        assert one.get("key") == b"value"
    assert all(is_sent_away(stranger) for stranger in silent[:7])
    for stranger in silent:
        stranger.close()


def test_without_descriptors_it_waits_and_does_not_spin(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def later(delay_s: float, call: Callable[[], None]) -> None:
        pauses.append(delay_s)
        server._loop.call_soon(call)

    monkeypatch.setattr(server._loop, "call_later", later)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as waiting:
        # None at all: below the next free one another may come free, of an object that is dropped.
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            waiting.connect(("127.0.0.1", server.port))
            wait_for(lambda: len(pauses) > 2, what="it pauses after each refusal")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        waiting.settimeout(10.0)
        assert len(waiting.recv(NONCE_BYTES)) == NONCE_BYTES
    assert set(pauses) == {PAUSE_S}


def test_who_proves_nothing_in_time_goes(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "PROOF_S", 0.1)
    with stranger_of(server) as stranger:
        assert is_sent_away(stranger)
