"""The page at a Unix socket, as ``ssh -L PORT:SOCKET`` reaches it."""

from __future__ import annotations

import http.client
import shlex
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.api.page.door import KEY_HEADER, Door, PageAddress, tunnel
from bftrainer.api.page.listeners import listening_at
from bftrainer.api.page.server import app, serving_beside
from bftrainer.api.page.source import LiveSource
from bftrainer.cli.main import main
from bftrainer.model.errors import BftError
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.memory_service import MemoryService, socket_of

__all__ = ["home", "output", "service"]


class UnixConnection(http.client.HTTPConnection):
    """One end of a tunnel."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self._path))


@contextmanager
def served_at(path: Path) -> Iterator[PageAddress]:
    with listening_at(path) as listeners:
        address = PageAddress(port=20_000)
        door = Door(address, lambda _: None)
        with serving_beside(app(LiveSource(Client(socket_of()), "a site"), door), listeners):
            door.offer("t" * 32)
            yield address


def asked(path: Path, *request: str, **headers: str) -> http.client.HTTPResponse:
    connection = UnixConnection(path)
    method, where, *body = request
    sent = {name.replace("_", "-"): text for name, text in headers.items()}
    connection.request(method, where, "".join(body) or None, sent)
    return connection.getresponse()


def test_a_browser_is_let_in_through_a_tunnel(service: MemoryService, tmp_path: Path) -> None:
    path = tmp_path / "own" / "page.sock"
    with served_at(path) as address:
        host = f"{address.name}:31234"  # whatever port the user's end has
        answer = asked(path, "POST", "/enter", "t" * 32, Host=host, Origin=f"http://{host}")
        assert answer.status == 200
        cookie = str(answer.getheader("Set-Cookie")).partition(";")[0]
        key = {KEY_HEADER.replace("-", "_"): answer.read().decode()}
        assert asked(path, "GET", "/known", Host=host, Cookie=cookie, **key).status == 204
        assert asked(path, "GET", "/known", Host=host, Cookie=cookie).status == 401
        assert asked(path, "GET", "/", Host="localhost:31234").status == 403
    assert not path.exists()


def test_only_its_user_gets_to_the_socket(service: MemoryService, tmp_path: Path) -> None:
    path = tmp_path / "own" / "page.sock"
    with served_at(path):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_dead_pages_socket_is_replaced_and_a_live_ones_is_not(
    service: MemoryService, tmp_path: Path
) -> None:
    path = tmp_path / "own" / "page.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with served_at(path):
        with pytest.raises(BftError) as caught, listening_at(path):
            pass
        assert caught.value.code == "BFT-1089"
        assert path.exists()


def test_a_directory_that_others_can_enter_is_refused(
    service: MemoryService, tmp_path: Path, output: Output
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    assert main(["web", "--page-socket", str(shared / "page.sock")]) == 2
    assert "BFT-1089" in output.readouterr().err
    assert main(["web", "--page-socket", str(tmp_path / "own" / "s"), "--host", "127.0.0.2"]) == 2
    assert "BFT-1089" in output.readouterr().err


def test_the_way_from_afar_is_a_command_to_copy() -> None:
    sentence, command = tunnel(20_000, Path("/home/ada/my pages/page.sock"))
    assert "your own machine" in sentence
    assert shlex.split(command)[:4] == ["ssh", "-N", "-L", "20000:/home/ada/my pages/page.sock"]
    assert shlex.split(tunnel(41641)[1])[3] == "41641:127.0.0.1:41641"
