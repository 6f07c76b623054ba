"""A stranger on the node network: garbage and silence for every port that a user listens at.

Only ports of the victim's account are touched. Eve's processes on all hosts tell each other what
they see there.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

SOCK_DIAG, BY_FAMILY, DUMP, LISTEN = 4, 20, 0x301, 10  # sock_diag(7), netlink(7)
_HEAD = struct.Struct("=IHHII")  # of a message: size, kind, flags, number, sender
_SOCKET = struct.Struct(">4xH2x4s52x4s4x")  # inet_diag_msg: port, address, user
TOLD_EVERY_S = 0.1
MOST_BYTES = 8 << 20
MOST_HELD = 60
PATIENCE_S = 0.5
ANY, LOOPBACK = "0.0.0.0", "127."  # noqa: S104 - what others bind
Address = tuple[str, int]


class Ports:
    """Where a user listens, as one host can reach it."""

    def __init__(self, host: str, addresses: Mapping[str, str], victim: int) -> None:
        self._host, self._addresses, self._victim = host, addresses, victim
        self._told: set[Address] | None = None
        self._others, self._heard_s = set[Address](), 0.0
        self._place = Path.home() / "ports"
        self._place.mkdir(exist_ok=True)

    def found(self) -> set[Address]:
        """Look here, tell the others, and hear what they see."""
        addresses = set(_listening(self._victim, self._addresses[self._host]))
        if addresses != self._told:
            self._told = addresses
            path = self._place / self._host
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(sorted(addresses)))
            draft.rename(path)
        if time.monotonic() > self._heard_s + TOLD_EVERY_S:
            self._others = set(self._hear())
            self._heard_s = time.monotonic()
        return addresses | self._others

    def _hear(self) -> Iterator[Address]:
        for host in self._addresses:
            with contextlib.suppress(OSError):
                for address, port in json.loads((self._place / host).read_text()):
                    if not address.startswith(LOOPBACK):
                        yield address, port


def _listening(uid: int, own: str) -> Iterator[Address]:
    """Ask the kernel, sock_diag(7): /proc/net/tcp takes fifty times as long."""
    question = struct.pack("=BBBxI48x", socket.AF_INET, socket.IPPROTO_TCP, 0, 1 << LISTEN)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
        kernel.send(_HEAD.pack(_HEAD.size + len(question), BY_FAMILY, DUMP, 1, 0) + question)
        while True:
            answer = kernel.recv(1 << 16)
            while answer:
                size, kind, *_ = _HEAD.unpack_from(answer)
                if kind != BY_FAMILY:  # the end
                    return
                port, number, owner = _SOCKET.unpack_from(answer, _HEAD.size)
                address = socket.inet_ntoa(number)
                if int.from_bytes(owner, sys.byteorder) == uid:
                    yield own if address == ANY else address, port
                answer = answer[size:]


class Stranger:
    """Connects to one port after the other and sends what it likes, or nothing, or slowly."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._held: list[tuple[socket.socket, bool]] = []

    def send(self, chance: random.Random) -> str:
        """Attack one port once."""
        self._drip()
        ports = sorted(self._ports.found())
        if not ports:
            return "nobody listens"
        try:
            client = socket.create_connection(chance.choice(ports), PATIENCE_S)
        except OSError:
            return "refused"
        manner = chance.choice(("idle", "slow", "silence", "garbage", "flood", "nested", "half"))
        if manner in {"idle", "slow"}:
            self._held.append((client, manner == "slow"))
            return manner
        with client:
            return _say(client, manner, chance)

    def _drip(self) -> None:
        """Let each slow connection say one byte more; the oldest make room."""
        for client, _ in self._held[:-MOST_HELD]:
            client.close()
        del self._held[:-MOST_HELD]
        for client, is_slow in self._held:
            if is_slow:
                with contextlib.suppress(OSError):
                    client.send(b"G", socket.MSG_DONTWAIT)


def _say(client: socket.socket, what: str, chance: random.Random) -> str:
    text = {"garbage": chance.randbytes(2_000), "nested": b"[" * 4_000 + b"\n",
            "half": b"GET /token:0/rank_and_size/"}  # fmt: skip
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
