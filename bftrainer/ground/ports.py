"""Ports and network devices of listeners: ours, and those of libraries in workers.

Ours take ports of the site's range (policy ``ports``), else any. Standard library only, because
workers use it too. They find the range in their environment.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
VARIABLE = "BFT_PORTS"
LEAST, MOST = 1024, 65_535  # lower ones need privileges
# Variables that name the device: of Horovod's gloo, of NCCL (with "=", no prefix of a name), and of
# libfabric's tcp provider, which MPICH uses. By default these choose one by themselves, or all.
DEVICE_VARIABLES = {"HOROVOD_GLOO_IFACE": "", "NCCL_SOCKET_IFNAME": "=", "FI_TCP_IFACE": ""}
_SIOCGIFADDR = 0x8915  # netdevice(7)
_IF_INET6 = Path("/proc/net/if_inet6")


def ports_of(text: str) -> range:
    """Return the ports of ``"41000-41100"``; those of "" are port 0 alone: the kernel chooses.

    Raises:
        ValueError: it is no range of ports.
    """
    if not text:
        return range(1)
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and len(text) <= 11):
        raise ValueError("not of the form FIRST-LAST")
    if not LEAST <= int(first) <= int(last) <= MOST:
        raise ValueError(f"not within {LEAST}-{MOST}, or the last is before the first")
    return range(int(first), int(last) + 1)


def check_ports(text: str) -> str:
    """Return a range as it is; raise ``ValueError`` if it is none."""
    ports_of(text or "-")
    return text


def listen_within(text: str, listen: Callable[[int], T]) -> T:
    """Call ``listen`` with ports of a range, from any of them on, until one is free.

    Raises:
        Exception: what ``listen`` raised; the last one if all ports are in use.
    """
    ports = ports_of(text)
    # So that those who start together miss; not of the script's own random numbers, which
    # another thread may be drawing now.
    begin = secrets.randbelow(len(ports))
    for position in range(len(ports)):
        try:
            return listen(ports[(begin + position) % len(ports)])
        except Exception as problem:
            is_last = position == len(ports) - 1
            if is_last or getattr(problem, "errno", None) != errno.EADDRINUSE:
                raise
    raise AssertionError("a range has ports")


def keep_to_device_of(address: str) -> None:
    """Let libraries of this process listen where gloo does; what the user has set stays."""
    if device := interface_of(address):
        for name, start in DEVICE_VARIABLES.items():
            os.environ.setdefault(name, start + device)


def interface_of(address: str) -> str:
    """Return the name of the network device with this address; "" when none has it."""
    if ":" in address:
        return _interface_of_ipv6(address.partition("%")[0])
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # a device without an address
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def _interface_of_ipv6(address: str) -> str:
    digits = socket.inet_pton(socket.AF_INET6, address).hex()
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:
        return ""  # a kernel without IPv6
    return next((line.split()[-1] for line in lines if line.startswith(digits)), "")
