"""The real server on a real Unix socket: who may be there and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.api.http_messages import MAX_BODY_BYTES
from bftrainer.api.server import ApiServer
from bftrainer.cli.main import main
from bftrainer.model.errors import BftError, ExitCode
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.memory_service import MemoryService, error_code, serving, socket_of

__all__ = ["home", "output", "service"]

ME = pwd.getpwuid(os.geteuid()).pw_name


def raw_exchange(request: bytes, *, timeout_s: float = 10.0) -> tuple[int, bytes]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(socket_of()))
        answer = bytearray()
        with contextlib.suppress(BrokenPipeError):  # it has heard enough, but has answered
            connection.sendall(request)
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                answer += chunk
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def post(body: bytes, path: str = "/v1/trainers") -> tuple[int, dict[str, str]]:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    status, answer = raw_exchange(request)
    document = json.loads(answer)
    return status, document.get("error", document)


# ---- the socket -------------------------------------------------------------------


def test_the_socket_is_private_and_goes_with_the_server(home: Path) -> None:
    with serving(MemoryService(home), socket_of()):
        assert stat.S_IMODE(socket_of().stat().st_mode) == 0o600
        assert [item.name for item in socket_of().parent.iterdir()] == ["daemon.sock"]
    assert not socket_of().exists()


def test_a_second_daemon_is_refused_and_a_dead_ones_socket_replaced(home: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(socket_of()))
    dead.close()
    with serving(MemoryService(home), socket_of()):
        second = ApiServer(MemoryService(home), socket_of())
        with pytest.raises(BftError) as caught:
            asyncio.run(second.start())
        assert caught.value.code == "BFT-1102"
        assert caught.value.exit_code == ExitCode.ALREADY_RUNNING
        assert Client(socket_of()).status().incarnation == 3


def _link_the_socket(home: Path) -> None:
    socket_of().symlink_to(home / "elsewhere.sock")


def _put_a_file(home: Path) -> None:
    socket_of().write_text("not a socket")


def _link_the_directory(home: Path) -> None:
    socket_of().parent.rmdir()
    (home / "real").mkdir(mode=0o700)
    socket_of().parent.symlink_to(home / "real")


def _open_the_directory(home: Path) -> None:
    socket_of().parent.chmod(0o770)


def _open_an_ancestor(home: Path) -> None:
    home.chmod(0o777)


@pytest.mark.parametrize(
    "spoil",
    [
        _link_the_socket,
        _put_a_file,
        _link_the_directory,
        _open_the_directory,
        _open_an_ancestor,
    ],
)
def test_an_unsafe_place_is_refused_by_both_sides(
    home: Path, output: Output, spoil: Callable[[Path], None]
) -> None:
    spoil(home)
    with pytest.raises(BftError) as caught:
        asyncio.run(ApiServer(MemoryService(home), socket_of()).start())
    assert caught.value.code == "BFT-1104"
    if not os.path.lexists(socket_of()):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(socket_of()))
        listener.close()
    assert main(["status"]) == ExitCode.NOT_PERMITTED
    assert error_code(output) == "BFT-1104"


def test_a_daemon_that_does_not_answer_is_a_time_out(home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(socket_of()))
        mute.listen()
        with pytest.raises(BftError) as caught:
            Client(socket_of(), timeout_s=0.1).status()
    assert caught.value.code == "BFT-1105"
    assert caught.value.exit_code == ExitCode.TIMEOUT


@contextlib.contextmanager
def stranger(answer: bytes) -> Iterator[None]:
    """Answer one request on the daemon's socket with these bytes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_of()))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n{}"])
def test_a_stranger_on_the_socket_is_not_believed(
    home: Path, output: Output, answer: bytes
) -> None:
    with stranger(answer):
        assert main(["status"]) == ExitCode.INTERNAL
    assert error_code(output) == "BFT-1106"


@pytest.mark.parametrize("said", [b"", b'{"schema": '])
def test_a_daemon_that_is_killed_while_it_answers_is_gone(
    home: Path, output: Output, said: bytes
) -> None:
    with stranger(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + said):
        assert main(["status"]) == ExitCode.DAEMON_UNREACHABLE
    assert error_code(output) == "BFT-1101"


# ---- bad requests -----------------------------------------------------------------

SPEC = {"name": "n", "user": ME, "script": "/s.py"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "BFT-1103"),
        (b"", 400, "BFT-1103"),
        (b"[]", 400, "BFT-1103"),
        (b"\xff", 400, "BFT-1103"),
        (b"[" * 200_000, 400, "BFT-1103"),
        (b"1" * 20_000, 400, "BFT-1103"),
        ({"schema": "bftrainer/submit/2", "spec": SPEC}, 400, "BFT-1103"),
        ({"schema": "bftrainer/submit/1"}, 400, "BFT-1103"),
        ({"schema": "bftrainer/submit/1", "spec": SPEC, "more": 1}, 400, "BFT-1103"),
        ({**SPEC, "frobnicate": 1}, 400, "BFT-1103"),
        ({**SPEC, "n_min": "1"}, 400, "BFT-1103"),
        ({**SPEC, "n_min": True}, 400, "BFT-1103"),
        ({**SPEC, "weight": float("nan")}, 400, "BFT-1103"),
        ({**SPEC, "weight": 10**400}, 400, "BFT-1103"),
        ({**SPEC, "args": "one"}, 400, "BFT-1103"),
        ({**SPEC, "environment": [["A"]]}, 400, "BFT-1103"),
        ({**SPEC, "name": "\ud800"}, 400, "BFT-1103"),
        ({"name": "n"}, 400, "BFT-1103"),
        ({**SPEC, "n_min": 3}, 400, "BFT-1002"),
        ({**SPEC, "name": "a\nb"}, 400, "BFT-1007"),
        ({**SPEC, "script": "relative.py"}, 400, "BFT-1016"),
        ({**SPEC, "curve": {"sizes": [2, 1], "samples_per_s": [1, 2]}}, 400, "BFT-1015"),
        ({**SPEC, "user": "somebody-else"}, 403, "BFT-1005"),
    ],
)
def test_the_server_refuses_what_is_not_a_submission(
    service: MemoryService, body: bytes | dict[str, object], status: int, code: str
) -> None:
    if isinstance(body, dict) and "schema" not in body:
        body = {"schema": "bftrainer/submit/1", "spec": body}
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    answered, error = post(text)
    assert (answered, error["code"]) == (status, code)
    assert error["next_step"]
    assert service.records == {}


def test_a_body_that_is_too_large_is_cut_off(service: MemoryService) -> None:
    status, error = post(b" " * (MAX_BODY_BYTES + 1))
    assert (status, error["code"]) == (413, "BFT-1103")
    # Said to be endless, sent in part: refused without waiting for the rest.
    head = b"POST /v1/trainers HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n"
    status, _ = raw_exchange(head + b" " * (2 * MAX_BODY_BYTES))
    assert status == 413


def test_unknown_routes_and_methods_have_codes(service: MemoryService) -> None:
    assert post(b"", "/v1/nothing")[0] == 404
    assert post(b"", "/v1/status")[0] == 405
    status, body = raw_exchange(
        b"GET /v1/trainers/t7 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    assert status == 404
    assert json.loads(body)["error"]["code"] == "BFT-1004"
    assert raw_exchange(b"nonsense\r\n\r\n")[0] == 400


def test_a_defect_of_the_daemon_shows_no_inside(service: MemoryService, output: Output) -> None:
    service.broken = True
    assert main(["status"]) == ExitCode.INTERNAL
    captured = output.readouterr()
    assert "error BFT-1100" in captured.err
    assert "secret" not in captured.err
    assert main(["nodes"]) == 0  # the others are still served


def test_shutdown_is_passed_on_with_its_peer(service: MemoryService) -> None:
    Client(socket_of()).shutdown()
    assert service.stopped.is_set()
    assert service.peers[-1].uid == os.geteuid()


def test_idle_connections_do_not_keep_others_from_being_served(service: MemoryService) -> None:
    idle = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    try:
        for connection in idle:
            connection.settimeout(10)
            connection.connect(str(socket_of()))
        idle[0].sendall(b"GET /v1/status HT")
        assert Client(socket_of()).status().pid == os.getpid()
    finally:
        for connection in idle:
            connection.close()
