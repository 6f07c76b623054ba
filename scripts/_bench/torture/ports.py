"""A stranger on the node network: garbage for every port that an agent or worker opens.

The ports are those of processes below the given ones; nobody else's are touched.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

LISTEN = "0A"  # proc(5), /proc/net/tcp
MOST_BYTES = 8 << 20
PATIENCE_S = 0.5


class Stranger:
    """Connects to one port of ``below`` and sends what it likes."""

    def __init__(self, below: Callable[[], Collection[int]]) -> None:
        self._below = below

    def send(self, chance: random.Random) -> str:
        """Attack one port once."""
        ports = sorted(_ports_of(_family(self._below())))
        if not ports:
            return "nobody listens"
        with contextlib.ExitStack() as stack:
            try:
                client = socket.create_connection(("127.0.0.1", chance.choice(ports)), PATIENCE_S)
            except OSError:
                return "refused"
            stack.enter_context(client)
            return _say(client, chance)


def _say(client: socket.socket, chance: random.Random) -> str:
    what = chance.choice(("silence", "garbage", "flood", "nested"))
    text = {"garbage": chance.randbytes(2_000), "nested": b"[" * 4_000 + b"\n", "silence": b""}
    try:
        if what == "flood":
            block = chance.randbytes(1 << 16)
            for _ in range(MOST_BYTES >> 16):
                client.sendall(block)
        client.sendall(text.get(what, b""))
        client.recv(1)
    except OSError:
        return f"{what}, cut off"
    return what


def _family(roots: Collection[int]) -> set[int]:
    """All processes below these, and these."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, todo = set(roots), list(roots)
    while todo:
        new = [pid for pid in children.get(todo.pop(), []) if pid not in found]
        found.update(new)
        todo += new
    return found


def _ports_of(pids: Collection[int]) -> set[int]:
    inodes = {inode for pid in pids for inode in _sockets_of(pid)}
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTEN and fields[9] in inodes:
            found.add(int(fields[1].partition(":")[2], 16))
    return found


def _sockets_of(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]
