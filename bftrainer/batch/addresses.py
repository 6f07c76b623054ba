"""Addresses of this host, and those under which other hosts reach it.

Nothing is sent: when a datagram socket is connected to a host, the kernel says which of its own
addresses packets to that host would have (udp(7), ip-route(8)).
"""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
ANY = "*"  # to bind: all addresses of this host
LOOPBACK = "127.0.0.1"
_SIOCGIFCONF = 0x8912  # netdevice(7): all IPv4 addresses
_ENTRY = struct.Struct("16s4x4s16x")  # struct ifreq with a struct sockaddr_in
_MOST_ADDRESSES = 512
_IF_INET6 = Path("/proc/net/if_inet6")
_DISCARD = 9  # a port has to be named


@dataclass(frozen=True, slots=True)
class HostAddress:
    """An address of this host."""

    interface: str
    address: IpAddress


def host_addresses() -> tuple[HostAddress, ...]:
    """Return all addresses of this host but those of one link (fe80::/10), IPv4 first."""
    addresses = (*_ipv4(), *_ipv6())
    return tuple(address for address in addresses if not address.address.is_link_local)


def _ipv4() -> list[HostAddress]:
    buffer = array.array("B", bytes(_ENTRY.size * _MOST_ADDRESSES))
    request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        n_bytes, _ = struct.unpack("iL", fcntl.ioctl(asking, _SIOCGIFCONF, request))
    return [
        HostAddress(name.split(b"\0")[0].split(b":")[0].decode(), ipaddress.IPv4Address(raw))
        for name, raw in _ENTRY.iter_unpack(buffer.tobytes()[:n_bytes])
    ]


def _ipv6() -> list[HostAddress]:
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:
        return []  # a kernel without IPv6
    addresses = []
    for line in lines:
        words = line.split()
        if len(words) == 6:
            digits, *_, interface = words
            addresses.append(HostAddress(interface, ipaddress.IPv6Address(int(digits, 16))))
    return addresses


def check_network(text: str) -> str:
    """Return a network or the name of an interface as it is; ``ValueError`` if it is neither."""
    if "/" in text:
        ipaddress.ip_network(text)
    elif not text or len(text) > 15 or not text.isprintable() or " " in text:  # IFNAMSIZ
        raise ValueError("neither a network nor the name of an interface")
    return text


def in_network(own: Iterable[HostAddress], network: str) -> list[str]:
    """Return the addresses in a network, as ``10.0.0.0/8``, or of an interface, as ``ib0``."""
    if "/" not in network:
        return [str(host.address) for host in own if host.interface == network]
    ip_network = ipaddress.ip_network(network)
    return [str(host.address) for host in own if host.address in ip_network]


def resolved(host: str) -> list[str]:
    """Return the addresses of a name, or the address itself; []: nobody knows it."""
    try:
        entries = socket.getaddrinfo(host, _DISCARD, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return []
    addresses: dict[str, None] = {}  # each once, in the resolver's order
    for _, _, _, _, socket_address in entries:
        addresses[str(socket_address[0])] = None
    return list(addresses)


def numeric(host: str) -> str:
    """Return an address of a name, of IPv4 if there is one; ``OSError`` if nobody knows it."""
    addresses = sorted(resolved(host), key=lambda address: ":" in address)
    if not addresses:
        raise OSError(f"nobody knows the host {host!r}")
    return addresses[0]


def source_towards(host: str) -> str:
    """Return our address on the route to a host; "": there is no route, or no such host."""
    for address in resolved(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as connected:
                connected.connect((address, _DISCARD))
                return str(connected.getsockname()[0])
        except OSError:
            continue
    return ""


def is_loopback(address: str) -> bool:
    """Return whether packets to an address never leave this host."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def endpoint_at(address: str, port: int) -> str:
    """Return the endpoint of a port at an address or name."""
    if ":" in address:  # IPv6
        return f"tcp://[{address}]:{port}"
    return f"tcp://{address}:{port}"


def host_of(endpoint: str) -> str:
    """Return the address or name in an endpoint."""
    return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
