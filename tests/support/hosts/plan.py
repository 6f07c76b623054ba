"""What hosts there are: their names, addresses and /etc/hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CONTROLLER, LOGIN = "ctl", "login"
USERS = {"bftrainer": 990, "ada": 2001, "bob": 2002, "eve": 2003}
"""Users of the cluster: name and number, of user and group."""

Names = Literal["plain", "debian", "outside", "ipv6"]
"""Style of /etc/hosts.

- plain: every name has its address.
- debian: a host's own name is 127.0.1.1, as Debian's installer writes it.
- outside: the login node's name is a public address, of a network that no other host is in.
- ipv6: no host has another IPv4 address than loopback's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The hosts to start."""

    n_nodes: int = 4  # 1 to 8
    names: Names = "plain"
    two_networks: bool = False  # login and nodes have a second cable; NAME-fast is its address
    cpus_per_node: int = 4
    memory_mb: int = 4000
    slurm: tuple[str, ...] = ()  # more lines of slurm.conf
    shared: tuple[str, ...] = ()  # directories of this machine that all hosts write to, too
    up_s: Mapping[str, int] = field(default_factory=dict)  # host -> up for longer than this machine

    @property
    def nodes(self) -> tuple[str, ...]:
        """The compute nodes."""
        return tuple(f"n{number}" for number in range(1, self.n_nodes + 1))

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts."""
        return (CONTROLLER, LOGIN, *self.nodes)

    @property
    def networks(self) -> tuple[int, ...]:
        """Numbers of the networks, each a switch."""
        return (0, 1) if self.two_networks or self.names == "outside" else (0,)

    def addresses(self, host: str) -> dict[int, str]:
        """Return the address of each cable, by network, with its prefix's length."""
        number = {CONTROLLER: 2, LOGIN: 3}.get(host) or 10 + int(host[1:])
        if self.names == "ipv6":
            return {net: f"fd7{7 + net}::{number:x}/64" for net in self._cables(host)}
        found = {net: f"10.{77 + net}.0.{number}/24" for net in self._cables(host)}
        if self.names == "outside" and host == LOGIN:
            found[1] = "198.18.9.3/24"  # RFC 2544: of no real network
        return found

    def address(self, host: str, network: int = 0) -> str:
        """Return the address of a host in a network."""
        return self.addresses(host)[network].partition("/")[0]

    def _cables(self, host: str) -> tuple[int, ...]:
        return (0, 1) if self.two_networks and host != CONTROLLER else (0,)

    def hosts_file(self, host: str) -> str:
        """Return /etc/hosts of a host."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        for other in self.hosts:
            if self.names == "debian" and other == host:
                lines.append(f"127.0.1.1 {other}.lab {other}")
                continue
            is_outside = self.names == "outside" and other == LOGIN
            lines.append(f"{self.address(other, int(is_outside))} {other}.lab {other}")
            if is_outside:
                lines.append(f"{self.address(other)} {other}-int")
            elif 1 in self._cables(other):
                lines.append(f"{self.address(other, 1)} {other}-fast")
        return "".join(f"{line}\n" for line in lines)
