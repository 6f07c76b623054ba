"""The submit helper started as systemd does (``Accept=yes``): one process for each connection."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bftrainer.site.submit import helper

PROGRAM = str(Path(helper.__file__).resolve())


def argv(config: Path) -> tuple[str, ...]:
    """Return the command line of the helper."""
    return (sys.executable, "-IS", PROGRAM, str(config))


def hasty(path: Path) -> Path:
    """Write a copy of the helper that waits for 8 s only, and has 64 MiB."""
    text = Path(helper.__file__).read_text()
    for name, usual, less in (("LIMIT_S", "30.0", "8.0"), ("MOST_MEMORY", "1 << 30", "64 << 20")):
        assert f"{name} = {usual}" in text
        text = text.replace(f"{name} = {usual}", f"{name} = {less}")
    path.write_text(text)
    return path


def write_config(path: Path, **settings: Any) -> Path:
    """Write a configuration that root alone can write."""
    path.write_text(json.dumps(settings))
    path.chmod(0o644)
    return path


def asked(config: Path, request: Mapping[str, Any] | bytes, *more: str) -> dict[str, Any]:
    """Let a helper answer one request of ours (the connection's other end is this process)."""
    raw = request if isinstance(request, bytes) else json.dumps(request).encode()
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    with ours:
        with theirs:
            child = subprocess.Popen(
                [*argv(config), *more], stdin=theirs.fileno(), stdout=theirs.fileno()
            )
        with contextlib.suppress(BrokenPipeError):  # it may refuse without reading
            ours.sendall(raw)
            ours.shutdown(socket.SHUT_WR)
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := ours.recv(1 << 16):
                said += chunk
        assert child.wait(60) == 0
    answer = json.loads(said)
    assert isinstance(answer, dict)
    return answer


@contextlib.contextmanager
def listening(path: Path, config: Path, enter: Sequence[str] = ()) -> Iterator[None]:
    """Serve on a socket that everybody can connect to, so that the helper must refuse.

    ``enter``: the words that run a command where the helper runs.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o666)
    listener.listen(64)
    children: list[subprocess.Popen[bytes]] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            with connection:
                children.append(
                    subprocess.Popen(
                        (*enter, *argv(config)),
                        stdin=connection.fileno(),
                        stdout=connection.fileno(),
                    )
                )

    server = threading.Thread(target=accept)
    server.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
        listener.close()
        for child in children:
            child.wait(60)
