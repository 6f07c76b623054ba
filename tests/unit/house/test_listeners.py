"""Every listening socket of ours is known, and a web page's request opens none by TCP."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.elastic.horovod.world import Front, SingleStore, asked_of
from bftrainer.elastic.process.store import NONCE_BYTES, StoreServer
from bftrainer.fleet.wire.keys import generate_pair
from bftrainer.fleet.wire.router import CurveRouter
from tests.support.machine import ROOT

CALLS = {"listen", "bind", "create_server", "start_server", "start_unix_server"}
SERVERS = {"TCPServer", "HTTPServer", "ThreadingHTTPServer", "start_http_server", "make_server"}
MODULES = {"socket", "asyncio", "zmq"}
PRODUCT = ("bftrainer", "trainers", "slurm_plugins", "lsf_adapters", "milp")
# Files with a socket of their own, and who may connect.
KNOWN = {
    "bftrainer/api/page/listeners.py": "TCP, loopback, or Unix, mode 0600; a cookie and a key",
    "bftrainer/api/server.py": "Unix; the kernel says who",
    "bftrainer/batch/local/server.py": "Unix; its directory is the user's",
    "bftrainer/elastic/horovod/world.py": "TCP, loopback; a random word",
    "bftrainer/elastic/shared_template.py": "Unix, mode 0600",
    "bftrainer/elastic/process/store.py": "TCP; proof of the token",
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


AGENT = """\
import asyncio, os, sys, zmq
from bftrainer.fleet.wire import router as wire
from bftrainer.fleet.wire.keys import generate_pair

wire.HANDSHAKE_LIMIT_MS = 120_000  # all strangers are there at once, on a slow machine, too

async def listen():
    ours, peer, heard = generate_pair(), generate_pair(), asyncio.Event()
    router = wire.CurveRouter(keys=ours, max_message_bytes=4096,
                              is_allowed=peer.public.__eq__, on_frame=lambda *_: heard.set())
    endpoint = router.start("127.0.0.1", 0)
    print(endpoint.rpartition(":")[2], flush=True)
    await asyncio.to_thread(os.read, int(sys.argv[1]), 1)  # the strangers are there
    os.listdir("/proc/self/fd")
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.set(zmq.LINGER, 0)
        peer.prove(dealer, ours.public)
        dealer.connect(endpoint)
        dealer.send(b"hi")
        await heard.wait()
    router.close()

asyncio.run(listen())
"""
STRANGERS = 1500


def test_idle_strangers_leave_an_agent_its_descriptors() -> None:
    """More of them than a process may usually open files, until a handshake's time is over."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < 4 * STRANGERS:
        pytest.skip(f"this machine lets a process open {hard} files at most")
    ours, theirs = socket.socketpair()
    kept = [ours, theirs]
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # as most nodes have it
    argv = [sys.executable, "-c", AGENT, str(theirs.fileno())]
    agent = process.spawn(argv, stdout=subprocess.PIPE, pass_fds=(theirs.fileno(),))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4 * STRANGERS, hard))
        assert agent.stdout is not None
        with agent.stdout as said:
            port = int(said.readline())
            where = ("127.0.0.1", port)
            kept += [socket.create_connection(where, 60) for _ in range(STRANGERS)]
            ours.send(b"!")
            assert agent.wait(60) == 0
    finally:
        agent.kill()
        agent.wait()
        for one in kept:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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
