"""Requests that no honest program sends: an answer or an end, and no traceback."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerSpec
from tests.integration.cli_fixtures import home
from tests.support.memory_service import MemoryService, serving, socket_of

__all__ = ["home"]

SUBMIT = b"POST /v1/trainers HTTP/1.1\r\nHost: x\r\n"
STATUS = b"GET /v1/status HTTP/1.1\r\nHost: x\r\n"


def exchange(said: bytes, *, is_gone: bool = False) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(socket_of()))
        connection.sendall(said)
        answer = b""
        while not is_gone and (chunk := connection.recv(65536)):
            answer += chunk
    return answer


@pytest.fixture
def quiet(home: Path, caplog: pytest.LogCaptureFixture) -> object:
    """A server that must not have logged an error when it has ended."""
    with serving(MemoryService(home), socket_of()):
        yield
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "begun",
    [
        SUBMIT + b"Content-Length: 900\r\n\r\n{",
        SUBMIT + b"Transfer-Encoding: chunked\r\n\r\n9\r\n{",
        SUBMIT + b"Content-Length: 900\r\nExpect: 100-continue\r\n\r\n",
        STATUS,
    ],
)
def test_a_client_that_goes_in_the_middle_leaves_no_traceback(begun: bytes) -> None:
    exchange(begun, is_gone=True)
    assert Client(socket_of()).status().incarnation == 3


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET /v1/trainers/%ff%00%c3%28%zz HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"GET /v1/tr\xe9iners HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (STATUS + b"X\xff: \xff\r\n\r\n", b"400"),
        (STATUS + b"X: \xff\xfe\r\n\r\n", b"200"),
        (STATUS + b"Content-Length: -1\r\n\r\n", b"400"),
        (STATUS + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (SUBMIT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (STATUS + b"X: " + b"y" * 100_000, b"400"),
        (STATUS + b"\r\n" + b"\0garbage\xff" * 50, b"200"),
    ],
)
def test_garbage_gets_one_answer_and_an_end(said: bytes, status: bytes) -> None:
    answer = exchange(said)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert Client(socket_of()).status().incarnation == 3


@pytest.mark.usefixtures("quiet")
def test_a_name_that_is_not_unicode_is_a_malformed_request() -> None:
    body = rb'{"schema": "bftrainer/submit/1", "spec": {"\ud800": 1}}'
    answer = exchange(SUBMIT + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "BFT-1103"


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"environment": tuple((f"V{n}", "") for n in range(60_000))}, "BFT-1103"),
        ({"environment": tuple((f"V{n}", "") for n in range(1_025))}, "BFT-1032"),
        ({"args": ("",) * 2_049}, "BFT-1032"),
        ({"args": ("x" * 4_096,) * 33}, "BFT-1007"),
    ],
)
def test_one_trainer_has_a_limited_size(changes: dict[str, object], code: str) -> None:
    client = Client(socket_of())
    fields: dict[str, object] = {"name": "n", "user": "root", "script": "/s.py", **changes}
    with pytest.raises(BftError) as caught:
        client.submit(TrainerSpec(**fields))  # type: ignore[arg-type]  # test values
    assert caught.value.code == code
