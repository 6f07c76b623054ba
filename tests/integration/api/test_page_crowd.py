"""Connections of another user to the page: its own user is served, and nobody complains."""

from __future__ import annotations

import contextlib
import ctypes
import encodings.idna  # noqa: F401 - another user may not be allowed to read our Python
import logging
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.api import http_protocol
from bftrainer.api.client import Client
from bftrainer.api.http_protocol import PLACES_OF_USER
from bftrainer.api.page import peers
from bftrainer.api.page.listeners import listening
from bftrainer.api.page.peers import Peers
from bftrainer.api.page.server import page_of
from bftrainer.api.page.source import LiveSource
from bftrainer.batch import process
from bftrainer.model.errors import BftError
from tests.integration.api.test_page import Browser
from tests.integration.cli_fixtures import home, service
from tests.support.memory_service import MemoryService, socket_of
from tests.support.other_users import NEIGHBOUR, STRANGER, needs_root
from tests.support.timelines import PLAN, trained
from tests.support.waiting import wait_for

__all__ = ["home", "service"]
HELD = 1500
KINDS = {
    "idle": "",
    "half a request line": "GET /pa",
    "half a body": "POST /enter HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\nabc",
}
# Imports first: the other user may not be allowed to read our Python.
_CROWD = """
import os, resource, select, socket, sys
uid, port, held = map(int, sys.argv[1:4])
request = sys.argv[4].encode()
resource.setrlimit(resource.RLIMIT_NOFILE, (held + 100, held + 100))
os.setgroups([]); os.setuid(uid)
poll, open_, printed = select.poll(), {}, set()
def tell(what):
    if what not in printed:
        printed.add(what)
        print(what, flush=True)
while True:
    while len(open_) < held:
        connection = socket.socket()
        connection.connect(("127.0.0.1", port))
        open_[connection.fileno()] = connection
        poll.register(connection, select.POLLIN)
        try:
            connection.send(request)
        except OSError:
            pass
    tell("all")
    for fd, _ in poll.poll(10):
        try:
            answer = open_[fd].recv(65536)
        except OSError:
            answer = b""
        if b"BFT-1088" in answer:
            tell("refused")
        poll.unregister(fd)
        open_.pop(fd).close()
"""


@contextlib.contextmanager
def crowd(browser: Browser, kind: str, out: Path) -> Iterator[None]:
    """Let another user hold connections, and open again what is closed."""
    argv = [sys.executable, "-I", "-c", _CROWD, str(STRANGER), str(browser.port), str(HELD)]
    request = KINDS[kind].replace("{host}", browser.host)
    with out.open("wb") as stream, out.with_suffix(".err").open("wb") as err:
        child = process.spawn([*argv, request], stdout=stream, stderr=err, cwd=Path("/"))
    try:
        wait_for(lambda: "refused" in out.read_text(), what="a crowd that is too large")
        yield
        assert child.poll() is None, out.with_suffix(".err").read_text()
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Make sockets of another user in this thread, which are those of setfsuid(2)."""
    libc = ctypes.CDLL(None)
    libc.setfsuid(uid)
    try:
        yield
    finally:
        libc.setfsuid(os.geteuid())


@pytest.fixture
def few_files() -> Iterator[None]:
    """As many as a process may usually open, until it raises its limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def browser(few_files: None, service: MemoryService) -> Iterator[Browser]:
    """A browser of the page's user that has not been let in yet."""
    newcomer = Browser([])
    with page_of(LiveSource(Client(socket_of()), "a site"), newcomer.links.append):
        yield newcomer
        newcomer.close()


# ---- how many ---------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("kind", KINDS)
def test_a_crowd_of_another_user_keeps_the_pages_user_waiting_for_nothing(
    browser: Browser, tmp_path: Path, kind: str
) -> None:
    with crowd(browser, kind, tmp_path / "out"):
        browser.enter()
        assert [browser.status("known") for _ in range(20)] == [204] * 20
        assert next(browser.events())[0] == "hello"
        browser.close()


@needs_root
def test_a_proxy_of_another_user_is_served_beside_the_crowd_of_a_third(
    browser: Browser, tmp_path: Path
) -> None:
    with crowd(browser, "half a body", tmp_path / "out"), as_user(NEIGHBOUR):
        browser.enter()
        assert [browser.status("known") for _ in range(20)] == [204] * 20


@needs_root
def test_a_proxy_of_another_user_cannot_take_all_places(browser: Browser) -> None:
    with contextlib.ExitStack() as held:
        with as_user(NEIGHBOUR):
            taken = [held.enter_context(connected(browser.port)) for _ in range(PLACES_OF_USER)]
            with connected(browser.port) as last:
                assert b"BFT-1088" in last.recv(65536)
        assert all(is_open(connection) for connection in taken)
        browser.enter()
        assert browser.status("known") == 204


# ---- how long ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "kind"),
    [
        ("HEAD_LIMIT_S", "idle"),
        ("HEAD_LIMIT_S", "half a request line"),
        ("REQUEST_LIMIT_S", "half a body"),
    ],
)
def test_what_is_not_finished_ends_and_events_go_on(
    browser: Browser,
    service: MemoryService,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    kind: str,
) -> None:
    for name in ("HEAD_LIMIT_S", "REQUEST_LIMIT_S", "CONNECTION_LIMIT_S"):
        monkeypatch.setattr(http_protocol, name, 0.3 if name == limit else 0.2)
    service.saw(trained(time.time(), n1=""), PLAN)
    browser.enter()
    events = browser.events()
    assert [next(events)[0] for _ in range(2)] == ["hello", "news"]
    with connected(browser.port) as half:
        half.sendall(KINDS[kind].replace("{host}", browser.host).encode())
        assert half.recv(1) == b""  # long before the socket's own limit
    service.saw(trained(time.time(), n1="t1"), PLAN)
    assert next(events)[0] == "news"


def test_a_client_that_vanishes_is_no_complaint(
    browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in KINDS.values():
        for is_reset in (False, True):
            with connected(browser.port) as half:
                half.sendall(kind.replace("{host}", browser.host).encode())
                if is_reset:  # socket(7), SO_LINGER
                    half.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    browser.enter()
    events = browser.events()
    assert next(events)[0] == "hello"
    del events
    browser.close()
    wait_for(lambda: served(browser.port) == 0, timeout_s=30, what="all are over")
    assert browser.status("known") == 204
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 60)


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True


def served(port: int) -> int:
    """Count the page's connections that are open at its end."""
    rows = [(local, remote) for local, remote, _, inode in peers._rows() if inode != "0"]
    return sum(local.endswith(f":{port:04X}") and remote[-4:] != "0000" for local, remote in rows)


# ---- whose they are ---------------------------------------------------------------------


@pytest.fixture(params=["asked", "read"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the kernel tells; "read": it answers no questions."""
    if request.param == "read":
        monkeypatch.setattr(peers, "_asked", lambda *_: None)
    return str(request.param)


@needs_root
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_the_kernel_tells_whose_socket_it_is(way: str, host: str) -> None:
    with listening() as listeners:
        listener = listeners.sockets[0 if host == "::1" else -1]
        users = Peers(listener)
        with (
            as_user(STRANGER),
            connected_to(host, listeners.port),
            accepted(listener) as connection,
        ):
            assert users.identify(connection).uid == STRANGER
        with connected_to(host, listeners.port), accepted(listener) as connection:
            assert users.identify(connection).uid == os.geteuid()


def test_a_socket_that_nobody_has_any_more_is_not_roots(way: str) -> None:
    with listening() as listeners:
        listener = listeners.sockets[-1]
        users = Peers(listener)
        with connected(listeners.port) as gone, accepted(listener) as connection:
            gone.close()
            wait_for(lambda: users.identify(connection).uid < 0, what="it is gone")


def connected_to(host: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.connect((host, port))
    return made


def accepted(listener: socket.socket) -> socket.socket:
    listener.settimeout(60)
    return listener.accept()[0]


# ---- both families of loopback ----------------------------------------------------------


def test_the_page_has_its_port_in_both_families() -> None:
    with listening() as listeners:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with pytest.raises(OSError, match="in use"):
                socket.create_server((host, listeners.port), family=family)


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_port_that_another_has_in_one_family_is_refused(
    family: socket.AddressFamily, host: str
) -> None:
    with socket.create_server((host, 0), family=family) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BftError) as caught, listening(port=port):
            pass
    assert caught.value.code == "BFT-1110"
    with listening(port=port) as listeners:  # nothing of it is kept
        assert listeners.port == port
