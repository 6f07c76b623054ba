"""Another user, or a process on another host, at the TCP port of an own daemon's verbs.

Arguments: host, port, one of ``KINDS``, the user id to be (0: stay who it is). On standard input
comes a JSON list of what the client said in a recorded session, in hexadecimal digits, and then
nothing until the attack is to end. Prints "begun" after ``BEGUN`` connections, and at the end a
JSON object: connections, and whether anything that it heard was an answer to a verb. Standard
library only: others may not be able to read ours. Started by ``far_attack``.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - not to be read any more as somebody else
import json
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator

HELD = 150  # connections of one attack that are kept open
BEGUN = 30
DRIP_S = 1.0
TURN_S = 0.002
# ZMTP 3.1 (RFC 37): signature, version, mechanism, as-server, filler.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01%b" + bytes(32)
REQUEST = b'{"method": "GET", "path": "/v1/status"}\n'
ANSWERS = (b"incarnation", b"BFT-", b"200\n")  # none of these is in a handshake


def greeting(mechanism: bytes) -> bytes:
    """Return the greeting of a client."""
    return GREETING % mechanism.ljust(20, b"\0")


def frame(body: bytes, flags: int) -> bytes:
    """Return a frame: 0 a message, 4 a command; 2 more for a size of eight bytes."""
    return bytes((flags | 2,)) + len(body).to_bytes(8, "big") + body


PROPERTIES = b"\x0bSocket-Type\x00\x00\x00\x06DEALER"


def _flood(_: int) -> Iterator[bytes]:
    """Connect and hang up."""
    yield from ()


def _frames(number: int) -> Iterator[bytes]:
    """Frames where a handshake is due: huge, announced and never sent, many, unknown commands."""
    yield greeting(b"CURVE")
    yield (
        frame(os.urandom(300_000), 4),
        b"\x06" + (700_000).to_bytes(8, "big") + os.urandom(1000),
        b"\x06" + b"\xff" * 8,
        frame(REQUEST, 0) * 200,
        frame(b"\x05HELLO" + os.urandom(194), 4) * 20,
        frame(b"\x08INITIATE" + os.urandom(500), 4) * 20,
        os.urandom(5000),
    )[number % 7]


def _downgraded(number: int) -> Iterator[bytes]:
    """Earlier protocols, and mechanisms without a key; then a request."""
    request = frame(REQUEST, 0)
    if number % 4 == 0:
        yield greeting(b"NULL") + frame(b"\x05READY" + PROPERTIES, 4) + request
    elif number % 4 == 1:
        yield greeting(b"PLAIN") + frame(b"\x05HELLO\x03ada\x03ada", 4)
        yield frame(b"\x08INITIATE" + PROPERTIES, 4) + request
    elif number % 4 == 2:  # ZMTP 1.0: sizes and flags, an identity and the request
        yield b"\x01\x00" + bytes((len(REQUEST) + 1, 0)) + REQUEST
    else:  # ZMTP 2.0: a dealer, without an identity
        yield b"\xff" + bytes(8) + b"\x7f\x01\x05" + b"\x00\x00"
        yield b"\x00" + bytes((len(REQUEST),)) + REQUEST


class Attacker:
    """Attacks one port in one way."""

    def __init__(self, host: str, port: int, kind: str, recorded: list[bytes]) -> None:
        self._to, self._kind, self._recorded = (host, port), kind, recorded
        self._held: deque[socket.socket] = deque()
        self._dripped_s = 0.0
        self.connections = 0
        self.has_answers = False

    def attack_once(self) -> None:
        """Make one connection, and go on with those that are held."""
        if self._kind in WAITING and not self._has_room():
            return
        with contextlib.suppress(OSError):
            client = socket.create_connection(self._to, 5.0)
            self.connections += 1
            self._held.append(client)
            for piece in self._pieces():
                client.sendall(piece)
                self._hear(client, 0.2)
        most = 0 if self._kind == "flood" else HELD - 1
        while len(self._held) > most:
            with self._held.popleft() as oldest:
                self._hear(oldest, 0.0)

    def _pieces(self) -> Iterator[bytes]:
        number = self.connections
        if self._kind == "replay":  # all at once, or each after what the server says to the last
            return iter(self._recorded if number % 2 else [b"".join(self._recorded)])
        if self._kind == "half":  # greeting and HELLO, which is genuine: the server's turn is next
            return iter(self._recorded[: 1 + number % (len(self._recorded) - 1)])
        if self._kind == "slow":
            return iter((b"\xff",))
        return {"flood": _flood, "frames": _frames, "downgrade": _downgraded}[self._kind](number)

    def _has_room(self) -> bool:
        """Let each connection say a byte more; return whether the server has closed some."""
        is_due = time.monotonic() >= self._dripped_s + DRIP_S
        if is_due:
            self._dripped_s = time.monotonic()
        for client in list(self._held):
            client.settimeout(0)
            try:
                if is_due and self._kind == "slow":
                    client.send(b"\0")
                is_closed = not client.recv(1 << 16)
            except BlockingIOError:
                continue
            except OSError:
                is_closed = True
            if is_closed:
                client.close()
                self._held.remove(client)
        return len(self._held) < HELD

    def _hear(self, client: socket.socket, patience_s: float) -> None:
        with contextlib.suppress(OSError):
            if select.select([client], [], [], patience_s)[0]:
                heard = client.recv(1 << 16)
                self.has_answers |= any(word in heard for word in ANSWERS)


KINDS = ("flood", "frames", "replay", "half", "slow", "downgrade")
WAITING = ("half", "slow")  # as long as the server lets them


def main() -> None:
    """Attack until standard input ends."""
    host, port, kind, uid = sys.argv[1:5]
    if int(uid):
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    recorded = [bytes.fromhex(piece) for piece in json.loads(sys.stdin.readline())]
    attacker, over = Attacker(host, int(port), kind, recorded), threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    has_begun = False
    while not over.wait(TURN_S):
        attacker.attack_once()
        if attacker.connections >= BEGUN and not has_begun:
            has_begun = True
            _say("begun")
    said = {"connections": attacker.connections, "has_answers": attacker.has_answers}
    _say(json.dumps(said))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
