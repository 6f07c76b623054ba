"""The user at the other end of a TCP connection, if that end is on this host.

The kernel knows which user made a socket. It tells everybody, one socket at a time by sock_diag(7),
which takes 50 us, or where that is switched off all of them in ``/proc/net/tcp``. A socket that its
program has closed is nobody's any more, but the kernel says 0 for it, as for root's.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bftrainer.api.http_protocol import Credentials

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1  # linux/netlink.h, linux/sock_diag.h
_ALL_STATES, _NO_COOKIE = 0xFFFFFFFF, 0xFFFFFFFF
_HEAD: Final = struct.Struct("=IHHII")  # length, type, flags, number, port
_FAMILY: Final = struct.Struct("=BBBxI")  # and protocol, extensions, states (inet_diag_req_v2)
_PAIR: Final = struct.Struct("!HH16s16s")  # the socket's own port, the other one, and addresses
_REST: Final = struct.Struct("=III")  # interface and cookie
_TOLD: Final = struct.Struct("=xBxx48xIIIII")  # state, ..., user, inode (inet_diag_msg)
_LISTENS: Final = 10  # net/tcp_states.h
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_MAPPED: Final = b"\x00" * 10 + b"\xff\xff"  # an IPv4 address of a socket for IPv6

Place = tuple[str, int]


class _Owner(NamedTuple):
    """What the kernel says of a socket."""

    state: int
    uid: int
    inode: int  # 0: no program has it any more


class Peers:
    """Tells of connections to listening sockets who made them."""

    def __init__(self, listener: socket.socket) -> None:
        """``listener``: one of the sockets, from which is seen whether the kernel answers."""
        nobody = ("::", 0) if listener.family == socket.AF_INET6 else ("0.0.0.0", 0)  # noqa: S104 - as listeners have it
        self._is_asked = _asked(listener.family, _place(listener.getsockname()), nobody) is not None

    def identify(self, connection: socket.socket) -> Credentials:
        """Return who made a connection: a user of this host, or below zero another host."""
        try:
            peer, server = _place(connection.getpeername()), _place(connection.getsockname())
        except OSError:  # it is gone already
            return Credentials(uid=-1, pid=0)
        if self._is_asked:
            uid = _uid_told(connection.family, peer, server)
        else:  # the kernel answers no questions about sockets
            uid = _uid_read(peer, server)
        if uid is None:
            uid = _number(peer[0])
        return Credentials(uid=uid, pid=0)


def _place(address: tuple[str, int] | tuple[str, int, int, int]) -> Place:
    host, port, *_ = address
    return host.partition("%")[0], port


def _number(host: str) -> int:
    """Return a number below zero for a host."""
    return -1 - int(ipaddress.ip_address(host))


def _uid_told(family: int, peer: Place, own: Place) -> int | None:
    owner = _asked(family, peer, own)
    if owner is None or owner.inode == 0 or owner.state == _LISTENS:
        return None
    return owner.uid


def _asked(family: int, own: Place, other: Place) -> _Owner | None:
    """Ask the kernel for the socket with this address of its own; None: it tells of none."""
    places = [socket.inet_pton(family, host).ljust(16, b"\x00") for host, _ in (own, other)]
    question = (
        _FAMILY.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES)
        + _PAIR.pack(own[1], other[1], *places)
        + _REST.pack(0, _NO_COOKIE, _NO_COOKIE)
    )
    head = _HEAD.pack(_HEAD.size + len(question), _BY_FAMILY, _REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
            kernel.sendto(head + question, (0, 0))
            answer = kernel.recv(4096, socket.MSG_DONTWAIT)  # it is there when it was asked for
    except OSError:
        return None
    if len(answer) < _HEAD.size + _TOLD.size or _HEAD.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    state, _, _, _, uid, inode = _TOLD.unpack_from(answer, _HEAD.size)
    return _Owner(state=state, uid=uid, inode=inode)


def _uid_read(peer: Place, own: Place) -> int | None:
    ends = [(_in_table(peer, is_wide), _in_table(own, is_wide)) for is_wide in (False, True)]
    for local, remote, uid, inode in _rows():
        if (local, remote) in ends and inode != "0":
            return int(uid)
    return None


def _rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield both addresses, the user and the inode of each TCP socket (proc(5))."""
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        for line in lines:
            _, local, remote, _, _, _, _, uid, _, inode, *_ = line.split()
            yield local, remote, uid, inode


def _in_table(place: Place, is_wide: bool) -> str:
    """Write an address as the tables do: words in the machine's order, in hexadecimal."""
    host, port = place
    raw = ipaddress.ip_address(host).packed
    if is_wide and len(raw) == 4:
        raw = _MAPPED + raw
    words = [word for (word,) in struct.iter_unpack("=I", raw)]
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
