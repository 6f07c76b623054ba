"""Many connections of one user at the daemon's door: everybody else is served."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bftrainer.api import http_protocol
from bftrainer.api.client import Client
from bftrainer.api.http_protocol import PLACES, PLACES_OF_OWNER, PLACES_OF_USER, Places
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from tests.integration.cli_fixtures import home, service
from tests.support.memory_service import MemoryService, socket_of
from tests.support.other_users import (
    NEIGHBOUR,
    STRANGER,
    ask_as,
    crowd,
    needs_root,
    serving_everybody,
)
from tests.support.waiting import wait_for

__all__ = ["home", "service"]


class Guest:
    def __init__(self) -> None:
        self.is_away = False

    def send_away(self) -> None:
        self.is_away = True


def entered(places: Places, uid: int, count: int) -> list[Guest]:
    guests = []
    for _ in range(count):
        if places.make_room(uid):
            guests.append(Guest())
            places.enter(uid, guests[-1])
    return guests


# ---- who gets a place ---------------------------------------------------------------


def test_a_user_has_no_more_places_than_a_share() -> None:
    places = Places(frozenset({0}))
    first = entered(places, 7, 10_000)
    assert len(first) == PLACES_OF_USER
    assert len(entered(places, 8, 1)) == 1
    places.leave(7, first[0])
    assert len(entered(places, 7, 5)) == 1
    assert not any(guest.is_away for guest in first)


def test_when_all_places_are_taken_who_has_most_gives_up_the_oldest() -> None:
    places = Places(frozenset({0}))
    crowds = [entered(places, uid, PLACES_OF_USER) for uid in range(1, 9)]
    assert sum(map(len, crowds)) == PLACES
    assert len(entered(places, 100, 3)) == 3
    away = [guest for crowd in crowds for guest in crowd if guest.is_away]
    assert len(away) == 3
    assert all(guest in [crowd[0] for crowd in crowds] for guest in away)


def test_shares_that_are_equal_are_not_taken_away() -> None:
    places = Places(frozenset({0}))
    guests = [entered(places, uid, 1) for uid in range(1, PLACES + 1)]
    assert entered(places, 1_000, 1) == []
    assert not any(guest.is_away for (guest,) in guests)


def test_owners_have_places_of_their_own() -> None:
    places = Places(frozenset({0, 5}))
    for uid in range(10, 40):
        entered(places, uid, PLACES_OF_USER)
    assert len(entered(places, 0, 1_000)) == PLACES_OF_OWNER
    assert len(entered(places, 5, 1_000)) == PLACES_OF_OWNER


# ---- the real door --------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize(("slow", "silent"), [(250, 50), (0, 2_000)])
def test_a_crowd_of_one_user_keeps_nobody_else_waiting(
    tmp_path: Path, slow: int, silent: int
) -> None:
    out = tmp_path / "out"
    with (
        serving_everybody(MemoryService(tmp_path)) as path,
        crowd(STRANGER, path, out, slow=slow, silent=silent),
    ):
        client = Client(path, timeout_s=10.0)
        for _ in range(20):
            assert client.status().incarnation == 3
        for _ in range(3):
            assert "HTTP/1.1 200" in ask_as(NEIGHBOUR, path, "GET /v1/status")
        wait_for(lambda: "refused" in out.read_text(), what="a refusal")


def test_who_has_too_many_connections_is_told_so(
    service: MemoryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "PLACES_OF_OWNER", 2)
    client = Client(socket_of())
    with _connected() as first, _connected():
        with pytest.raises(BftError) as caught:
            client.status()
        assert caught.value.code == "BFT-1107"
        assert caught.value.exit_code == ExitCode.TIMEOUT
        first.close()
        wait_for(lambda: _is_served(client), what="a place is free")


def _connected() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(str(socket_of()))
    return connection


def _is_served(client: Client) -> bool:
    try:
        return client.status().incarnation == 3
    except BftError:
        return False


@pytest.mark.parametrize(
    ("limit", "begun"),
    [
        ("HEAD_LIMIT_S", b"GET /v1/status HTTP/1.1\r\n"),
        ("REQUEST_LIMIT_S", b"POST /v1/trainers HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"),
    ],
)
def test_a_request_that_is_not_finished_ends(
    service: MemoryService, monkeypatch: pytest.MonkeyPatch, limit: str, begun: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_LIMIT_S", 0.2)
    monkeypatch.setattr(http_protocol, limit, 0.3)
    with _connected() as connection:
        connection.sendall(begun)
        assert connection.recv(1) == b""  # long before the socket's own limit


# ---- whose business ------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("path", ["/v1/trainers", "/v1/trainers/t1", "/v1/status"])
def test_values_of_an_environment_are_for_owner_and_administrator(
    tmp_path: Path, path: str
) -> None:
    memory = MemoryService(tmp_path)
    spec = TrainerSpec(
        name="n", user=str(NEIGHBOUR), script="/s.py", environment=(("TOKEN", "hunter2"),)
    )
    memory.records["t1"] = TrainerRecord(
        trainer_id="t1", spec=spec, state=TrainerState.QUEUED, submitted_s=1.0
    )
    with serving_everybody(memory) as where:
        seen = {uid: ask_as(uid, where, f"GET {path}") for uid in (0, NEIGHBOUR, STRANGER)}
    assert all("TOKEN" in answer for answer in seen.values())
    assert [uid for uid, answer in seen.items() if "hunter2" in answer] == [0, NEIGHBOUR]
