"""Finds this process's TCP connections and shuts down those of a broken group.

Horovod waits in C++ for a silent member until its timeout (30 s). Its connections are those
opened while a context formed; when shut down, they fail at once, on both sides. Linux: reads
``/proc/self/fd``.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

_SIOCGIFADDR = 0x8915  # netdevice(7)
_IF_INET6 = Path("/proc/net/if_inet6")


def connections() -> dict[int, str]:
    """Return descriptor → identity of all TCP connections over IP."""
    found: dict[int, str] = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile, or listening
            identity = str(link.readlink())
            if identity.startswith("socket:") and _is_connected(int(link.name)):
                found[int(link.name)] = identity
    return found


def _is_connected(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as copy:
        if copy.family not in {socket.AF_INET, socket.AF_INET6}:
            return False
        copy.getpeername()
        return copy.type == socket.SOCK_STREAM


def cut(theirs: dict[int, str]) -> None:
    """Shut these connections down if they are still the same."""
    for fd, identity in theirs.items():
        with suppress(OSError):
            if str(Path(f"/proc/self/fd/{fd}").readlink()) == identity:
                with socket.socket(fileno=os.dup(fd)) as copy:
                    copy.shutdown(socket.SHUT_RDWR)


def interface_of(address: str) -> str:
    """Return the name of the network device with this address; "" when none has it."""
    if ":" in address:
        return _interface_of_ipv6(address.partition("%")[0])
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # a device without an address
                asked = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def _interface_of_ipv6(address: str) -> str:
    wanted = socket.inet_pton(socket.AF_INET6, address).hex()
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:
        return ""  # a kernel without IPv6
    return next((line.split()[-1] for line in lines if line.startswith(wanted)), "")
