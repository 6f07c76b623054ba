"""What tests need of other users of the machine: their requests, their crowds.

Only root can be somebody else; tests that use this are skipped for others (``needs_root``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.site.policy.keys import Visibility
from tests.support.memory_service import MemoryService, serving
from tests.support.waiting import wait_for

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")

STRANGER, NEIGHBOUR = 40_001, 40_002  # uids without an account

# Imports first: the other user may not be allowed to read our Python.
_BE = "import os, select, socket, sys; os.setgroups([]); os.setuid(int(sys.argv[1]))\n"
_REQUEST = (
    _BE
    + """
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[2])  # waits in the kernel's queue, as our own client does
connection.settimeout(20)
connection.sendall(f"{sys.argv[3]} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
while chunk := connection.recv(65536):
    sys.stdout.write(chunk.decode())
"""
)
_CROWD = (
    _BE
    + """
slow, silent = int(sys.argv[3]), int(sys.argv[4])
held, opened, was_refused = {}, 0, False
poll = select.poll()
while True:
    while len(held) < slow + silent:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(0)
        try:
            connection.connect(sys.argv[2])
        except BlockingIOError:  # those before it wait to be accepted
            connection.close()
            break
        try:
            if len(held) < slow:
                connection.send(b"GET /v1/status HTTP/1.1\\r\\nHost: x\\r\\n")
        except OSError:
            pass
        held[connection.fileno()] = connection
        poll.register(connection, select.POLLIN)
        opened += 1
        if opened == slow + silent:
            print("all", flush=True)
    for fd, _ in poll.poll(10):
        connection = held[fd]
        try:
            said = connection.recv(65536)
        except OSError:
            said = b""
        if b"BFT-1107" in said and not was_refused:
            was_refused = True
            print("refused", flush=True)
        if not said:
            poll.unregister(fd)
            held.pop(fd).close()
"""
)


@contextlib.contextmanager
def serving_everybody(
    service: MemoryService, visibility: Visibility = Visibility.ALL
) -> Iterator[Path]:
    """Serve on a socket that all users of this machine can reach."""
    directory = Path(tempfile.mkdtemp(prefix="bft-open-", dir="/tmp"))
    try:
        directory.chmod(0o711)
        path = directory / "daemon.sock"
        with serving(service, path, visibility):
            path.chmod(0o666)
            yield path
    finally:
        shutil.rmtree(directory)


def ask_as(uid: int, path: Path, request: str) -> str:
    """Return the whole answer to ``request`` ("GET /v1/status") of this user."""
    done = process.run(
        [sys.executable, "-I", "-c", _REQUEST, str(uid), str(path), request],
        timeout_s=60.0,
        cwd=Path("/"),
    )
    assert done.is_ok, done.stderr
    return done.stdout


@contextlib.contextmanager
def crowd(uid: int, path: Path, out: Path, *, slow: int, silent: int) -> Iterator[None]:
    """Let a user hold half headers and silent connections, and open what was closed again."""
    argv = [sys.executable, "-I", "-c", _CROWD, str(uid), str(path), str(slow), str(silent)]
    with out.open("wb") as stream, (out.with_suffix(".err")).open("wb") as err:
        child = process.spawn(argv, stdout=stream, stderr=err, cwd=Path("/"))
    try:
        wait_for(lambda: "all" in out.read_text(), what="a crowd at the door")
        yield
        assert child.poll() is None, out.with_suffix(".err").read_text()
    finally:
        child.kill()
        child.wait()
