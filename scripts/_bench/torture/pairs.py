"""Eve would be a member: she connects to each port of the victim first, and speaks gloo.

Whoever connects to a forming pair and writes its number, 8 bytes, is taken for the member by gloo
(gloo/transport/tcp/device.cc, pair.cc). She reads what she is sent, and answers with numbers of
her own.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import select
import socket
import struct
import time

from _bench.torture.ports import Address, Ports

HEADER = struct.Struct("<6Q")  # bytes, operation, slot, offset, length, root offset
SEND_BUFFER, SEND_READY, RECEIVE_READY = 1, 2, 3  # operations
NUMBERS = (0, 1, 2)  # of pairs
DELAYS_S = (0.0, 0.01, 0.05, 0.2, 0.3, 1.0, 3.0)  # after a port was seen first, and any below 2
MOST_OPEN = 300
MOST_BYTES = 1 << 24
WAIT_S = 0.01
WORDS = (
    "waited",
    "began",
    "ended",
    "connected",
    "was answered",
    "heard a message",
    "was asked for one",
)
FORGED = struct.pack("<f", -777.0)


class Ride:
    """One connection that says it is a member's."""

    def __init__(self, address: Address, number: int) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)  # noqa: FBT003 - as the library has it
        self.socket.connect_ex(address)
        self._unsent = struct.pack("<q", number)
        self._heard = b""

    @property
    def is_saying(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._unsent)

    def go_on(self) -> str:
        """Send and receive what can be; what came.

        Raises:
            OSError: it has ended.
        """
        with contextlib.suppress(BlockingIOError):
            if self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return "connected"
        if not data:
            raise ConnectionResetError
        self._heard += data
        return self._answer()

    def _answer(self) -> str:
        event = "was answered"
        while len(self._heard) >= HEADER.size:
            size, operation, slot, _, length, _ = HEADER.unpack_from(self._heard)
            if operation > RECEIVE_READY or not HEADER.size <= size <= MOST_BYTES:
                self._unsent += self._heard[: 1 << 16]  # not gloo: its own words back
                self._heard = b""
                break
            if len(self._heard) < size:
                break
            if size > HEADER.size:
                event = "heard a message"
            self._heard = self._heard[size:]
            if operation == SEND_READY:
                self._unsent += HEADER.pack(HEADER.size, RECEIVE_READY, slot, 0, length, 0)
            elif operation == RECEIVE_READY and length <= MOST_BYTES:
                head = HEADER.pack(HEADER.size + length, SEND_BUFFER, slot, 0, length, 0)
                self._unsent += head + FORGED * (length // 4)
                event = "was asked for one"
        return event


class Racer:
    """Races for every pair, at once and at any time after the port was seen first."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._seen: set[Address] = set()
        self._due: list[tuple[float, Address]] = []
        self._open: dict[int, Ride] = {}

    def race(self, chance: random.Random) -> str:
        """Look for ports, connect to those that are due, go on with what is open."""
        now_s = time.monotonic()
        addresses = self._ports.found()
        for address in addresses - self._seen:
            for delay_s in (*DELAYS_S, *(2.0 * chance.random() for _ in range(3))):
                heapq.heappush(self._due, (now_s + delay_s, address))
        self._seen = addresses
        heard = ["waited"]
        while self._due and self._due[0][0] <= now_s:
            _, address = heapq.heappop(self._due)
            if len(self._open) >= MOST_OPEN:
                continue
            for number in NUMBERS:
                ride = Ride(address, number)
                self._open[ride.socket.fileno()] = ride
                heard.append("began")
        return max((*heard, *self._go_on()), key=WORDS.index)

    def end(self) -> None:
        """Hang up everywhere."""
        while self._open:
            self._open.popitem()[1].socket.close()

    def _go_on(self) -> list[str]:
        poll = select.poll()
        for fd, ride in self._open.items():
            poll.register(fd, select.POLLIN | (select.POLLOUT if ride.is_saying else 0))
        heard = []
        for fd, _ in poll.poll(1000 * WAIT_S):
            try:
                heard.append(self._open[fd].go_on())
            except OSError:
                self._open.pop(fd).socket.close()
                heard.append("ended")
        return heard
