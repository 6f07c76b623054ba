"""Another user of the host, who joins a group of gloo's as it forms.

It connects to a port at once or a little later and writes the number of a pair, as gloo's
``Pair::connect`` does; then it plays the member, or is silent, hangs up or sends garbage.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections import Counter

# gloo's tcp/pair.h: bytes, opcode, slot, offset, length, offset at the receiver
PREAMBLE = struct.Struct("<6Q")
SEND, SEND_READY, RECV_READY = 1, 2, 3
OPENING = 32  # bytes of a proof: all that a stranger may see
PAIRS = 4
FORGED = struct.pack("<f", -777.0)


class Stranger:
    """Attacks one port after another, a few connections at a time."""

    def __init__(self, seed: int) -> None:
        self.count: Counter[str] = Counter()
        self._chance = random.Random(seed)  # noqa: S311 - an attack, not a secret
        self._lock = threading.Lock()

    def attack(self, port: int) -> None:
        """Begin to connect as every member of the first few ranks."""
        delay_s = self._chance.choice((0.0, 0.0, 0.002, 0.02, 0.2))
        manner = self._chance.choice(("member", "member", "silence", "gone", "garbage"))
        self._say("ports")
        for pair in range(PAIRS):
            wait_s = delay_s * self._chance.random()
            aim = (port, pair, wait_s, manner, self._chance.randbytes(64))
            threading.Thread(target=self._connect, args=aim, daemon=True).start()

    def _say(self, what: str) -> None:
        with self._lock:
            self.count[what] += 1

    def _connect(self, port: int, pair: int, wait_s: float, manner: str, noise: bytes) -> None:
        time.sleep(wait_s)
        try:
            with socket.create_connection(("127.0.0.1", port), 2) as peer:
                self._say("connections")
                peer.sendall(struct.pack("<q", pair))
                if manner == "gone":
                    return
                if manner == "garbage":
                    peer.sendall(noise)
                peer.settimeout(20)
                while manner == "member":
                    self.answer(peer)
                while peer.recv(1 << 16):
                    pass
        except (OSError, EOFError):
            return

    def answer(self, peer: socket.socket) -> None:
        """Read one message of the victim's and answer it as a member would."""
        total, kind, slot, _, length, _ = PREAMBLE.unpack(self._read(peer, PREAMBLE.size))
        if kind == SEND:
            self._read(peer, total - PREAMBLE.size)
            self._say("opening" if length == OPENING else "read")
        elif kind == SEND_READY:
            peer.sendall(PREAMBLE.pack(PREAMBLE.size, RECV_READY, slot, 0, length, 0))
        elif kind == RECV_READY:
            body = (FORGED * (length // 4 + 1))[:length]
            peer.sendall(PREAMBLE.pack(PREAMBLE.size + length, SEND, slot, 0, length, 0) + body)
            self._say("forged" if length != OPENING else "guessed")
        else:
            raise EOFError

    def _read(self, peer: socket.socket, length: int) -> bytes:
        if length > 1 << 24:
            raise EOFError
        data = b""
        while len(data) < length:
            part = peer.recv(length - len(data))
            if not part:
                raise EOFError
            data += part
        return data
