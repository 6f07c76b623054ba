"""Every listening socket of ours is known, and a web page's request opens none by TCP."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.elastic.horovod.world import Front, SingleStore, asked_of
from bftrainer.elastic.store import NONCE_BYTES, StoreServer
from bftrainer.fleet.wire.keys import generate_pair
from bftrainer.fleet.wire.router import CurveRouter
from tests.support.machine import ROOT

CALLS = {"listen", "bind", "create_server", "start_server", "start_unix_server"}
SERVERS = {"TCPServer", "HTTPServer", "ThreadingHTTPServer", "start_http_server", "make_server"}
MODULES = {"socket", "asyncio", "zmq"}
PRODUCT = ("bftrainer", "trainers", "slurm_plugins", "lsf_adapters", "milp")
# Files with a socket of their own, and who may connect.
KNOWN = {
    "bftrainer/api/server.py": "Unix; the kernel says who",
    "bftrainer/batch/local/server.py": "Unix; its directory is the user's",
    "bftrainer/elastic/horovod/world.py": "TCP, loopback; a random word",
    "bftrainer/elastic/shared_template.py": "Unix, mode 0600",
    "bftrainer/elastic/store.py": "TCP; proof of the token",
    "bftrainer/fleet/wire/router.py": "TCP; CURVE: wire, peers, relays, an own daemon's verbs",
    "trainers/command/keeper.py": "TCP; reserves a port, does not listen",
    "trainers/examples/command_sgd.py": "TCP; an example",
}
EQUIPMENT = ("slurm_plugins/testcluster/", "lsf_adapters/testcluster/")
REBOUND = (
    b"GET /v1/trainers HTTP/1.1\r\nHost: evil.example:%d\r\nOrigin: http://evil.example\r\n"
    b"Sec-Fetch-Site: cross-site\r\n\r\n"
)


def listeners(path: Path) -> Iterator[str]:
    """Uses of what gives a socket an address, in a module that imports one."""
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
             for alias in node.names}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.name in SERVERS)
        elif isinstance(node, ast.Attribute) and node.attr in CALLS and names & MODULES:
            yield ast.unparse(node)


def test_every_listening_socket_is_known() -> None:
    """A new one is listed here after the question was asked who may connect, and is tested."""
    files = [path for top in PRODUCT for path in sorted((ROOT / top).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): list(listeners(path)) for path in files}
    names = {name for name, calls in found.items() if calls and not name.startswith(EQUIPMENT)}
    assert names == set(KNOWN), {name: found.get(name) for name in names ^ set(KNOWN)}


def test_a_page_that_reaches_the_store_gets_a_nonce_and_no_more() -> None:
    server = StoreServer("127.0.0.1")
    server.expect("a token")
    try:
        with socket.create_connection(("127.0.0.1", server.port), 60) as page:
            page.sendall(REBOUND % server.port)
            got = b""
            while part := _received(page):
                got += part
            assert len(got) == NONCE_BYTES
        assert not server._values
    finally:
        server.close()


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:  # what it sent was never read
        return b""


def test_a_page_that_reaches_the_wire_is_not_heard() -> None:
    heard: list[bytes] = []

    async def attack() -> bytes:
        router = CurveRouter(
            keys=generate_pair(),
            max_message_bytes=4096,
            is_allowed=lambda _: True,
            on_frame=lambda _, frame: heard.append(frame),
        )
        port = int(router.start("127.0.0.1", 0).rpartition(":")[2])
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REBOUND % port)
            got = b""
            with contextlib.suppress(ConnectionResetError):
                while part := await asyncio.wait_for(reader.read(4096), 60):
                    got += part
            writer.close()
            return got
        finally:
            router.close()

    assert b"HTTP" not in asyncio.run(attack())
    assert not heard


@pytest.mark.parametrize(
    "head",
    [
        "Host: evil.example", "Host: 127.0.0.1.evil.example:80", "Host: [::1]", "Host: ",
        "Host: 127.0.0.1\r\nOrigin: null", "host: 127.0.0.1\r\nORIGIN: http://127.0.0.1",
    ],
)  # fmt: skip
def test_horovods_front_is_not_for_pages(head: str) -> None:
    path = "/word:0/global/0"
    assert asked_of(f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1".encode(), "word")
    assert asked_of(f"PUT {path} HTTP/1.1\r\n{head}".encode(), "word") is None


def test_horovods_front_listens_on_loopback() -> None:
    front = Front(SingleStore(), prefix="p", place="0,1")
    try:
        assert front._listener.getsockname()[0] == "127.0.0.1"
    finally:
        front.close()
