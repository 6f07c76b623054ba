"""The store of a generation: late values, many members, strangers, a server that goes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from bftrainer.elastic.store import StoreClient, StoreServer
from bftrainer.elastic.torch_store import TorchStore


@pytest.fixture
def server() -> Iterator[StoreServer]:
    opened = StoreServer("127.0.0.1")
    yield opened
    opened.close()


@contextlib.contextmanager
def client_of(server: StoreServer, timeout_s: float = 60.0) -> Iterator[TorchStore]:
    client = TorchStore(StoreClient("127.0.0.1", server.port, timeout_s))
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
        StoreClient("127.0.0.1", server.port, 1.0)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x01\x00\x01\xff\xff\xff\xff"])
def test_a_stranger_is_sent_away_and_disturbs_nobody(server: StoreServer, garbage: bytes) -> None:
    with client_of(server) as one, client_of(server) as other:
        with socket.create_connection(("127.0.0.1", server.port), 60) as stranger:
            stranger.sendall(garbage)
            assert stranger.recv(1) == b""
        one.set("key", b"value")
        assert other.get("key") == b"value"
