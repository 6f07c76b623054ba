"""A user who may reach the daemon's socket, and does it no good."""

from __future__ import annotations

import contextlib
import random
import socket
import time

HELD = 250
OPENED_PER_ROUND = 40
TURN_S = 5.0


class SocketUser:
    """Holds slow headers, opens and drops connections, sends garbage."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._slow: list[socket.socket] = []

    def go_on(self, chance: random.Random) -> str:
        """Do all of it once; by turns nothing, for the limits are those of all that she does."""
        if time.monotonic() % (2 * TURN_S) > TURN_S:
            while self._slow:
                self._slow.pop().close()
            return "is quiet"
        opened = sum(self._open(chance) for _ in range(OPENED_PER_ROUND))
        for client in list(self._slow):
            try:
                client.send(b"X-Slow: 1\r\n")
            except OSError:
                client.close()
                self._slow.remove(client)
        return "opened most" if opened > OPENED_PER_ROUND // 2 else "turned away mostly"

    def _open(self, chance: random.Random) -> bool:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(0)
        with contextlib.suppress(OSError):
            client.connect(self._path)
            if len(self._slow) < HELD:
                client.send(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n")
                self._slow.append(client)
                return True
            client.send(_garbage(chance))
            client.close()
            return True
        client.close()
        return False


def _garbage(chance: random.Random) -> bytes:
    """Return something that is no request, or only half of one."""
    return chance.choice(
        (
            bytes(chance.randrange(256) for _ in range(300)),
            b"GET /v1/status HTTP/1.1\r\nX: \xff\xfe\r\n\r\n",
            b"GET /v1/status HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil\r\n\r\n",
            b"POST /v1/trainers HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{",
            b"GET /" + b"a" * 70_000,
            b"GET /v1/trainers/%ff%00%0a HTTP/1.1\r\nHost: x\r\n\r\n" * 3,
        )
    )
