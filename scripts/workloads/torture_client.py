"""A local user who may reach the daemon's socket, and does it no good; run as that user.

``torture_client.py SOCKET``: holds slow headers, opens and drops connections, sends garbage,
until it is ended. Standard library only.
"""

from __future__ import annotations

import contextlib
import random
import socket
import sys
import time

HELD = 250
ROUND_S = 0.2
OPENED_PER_ROUND = 40


def connected(path: str) -> socket.socket | None:
    """Connect without waiting for anybody."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(0)
    try:
        client.connect(path)
    except OSError:
        client.close()
        return None
    return client


def garbage(chance: random.Random) -> bytes:
    """Return something that is no request, or only half of one."""
    return chance.choice(
        (
            bytes(chance.randrange(256) for _ in range(300)),
            b"GET /v1/status HTTP/1.1\r\nX: \xff\xfe\r\n\r\n",
            b"POST /v1/trainers HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{",
            b"GET /" + b"a" * 70_000,
            b"GET /v1/trainers/%ff%00%0a HTTP/1.1\r\nHost: x\r\n\r\n" * 3,
        )
    )


def main() -> None:
    """Go on until ended."""
    path, chance = sys.argv[1], random.Random(1)  # noqa: S311 - an attack, not a secret
    slow: list[socket.socket] = []
    while True:
        for _ in range(OPENED_PER_ROUND):
            client = connected(path)
            if client is None:
                continue
            with contextlib.suppress(OSError):
                if len(slow) < HELD:
                    client.send(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n")
                    slow.append(client)
                    continue
                client.send(garbage(chance))
            client.close()
        for client in list(slow):
            try:
                client.send(b"X-Slow: 1\r\n")
            except OSError:
                client.close()
                slow.remove(client)
        time.sleep(ROUND_S)


if __name__ == "__main__":
    main()
