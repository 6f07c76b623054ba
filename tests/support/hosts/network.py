"""The cables between hosts and switches: connecting, cutting, limiting the rate.

A switch is a bridge in the rack, a cable a pair of virtual Ethernet devices. To cut a cable is to
disable the switch's port: the host keeps its carrier, and packets vanish, as in a switch that
fails further away. Nobody hears of it, neither the programs nor the kernel.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.support.hosts.plan import Plan
from tests.support.hosts.rack import HostError, Rack, enter

_DISABLED, _FORWARDING = "0", "3"  # states of a bridge's port, bridge(8)
_BUCKET = ("burst", "256k", "latency", "50ms")


class Network:
    """All cables of a cluster."""

    def __init__(self, rack: Rack, plan: Plan) -> None:
        self._rack, self._plan = rack, plan
        for net in plan.networks:
            rack.run("ip", "link", "add", f"br{net}", "type", "bridge", namespaces=("net",))
            rack.run("ip", "link", "set", f"br{net}", "up", namespaces=("net",))

    def connect(self, host: str, pid: int) -> None:
        """Connect the host whose first process has a pid."""
        for net, address in self._plan.addresses(host).items():
            kind, no_dad = (("-6",), ("nodad",)) if ":" in address else ((), ())
            here, there = f"{host}p{net}", f"eth{net}"
            self._batch(
                f"link add {here} type veth peer name {there} netns {pid}",
                f"link set {here} master br{net} up",
            )
            enter(pid, ("net",), "ip", *kind, "address", "add", address, "dev", there, *no_dad)
            enter(pid, ("net",), "ip", "link", "set", there, "up")

    def _batch(self, *lines: str) -> None:
        text = "".join(f"{line}\n" for line in lines)
        enter(self._rack.pid, ("net",), "ip", "-batch", "-", stdin=text)

    def set_cable(self, host: str, network: int, *, is_cut: bool) -> None:
        """Cut a cable, or mend it."""
        state = _DISABLED if is_cut else _FORWARDING
        self._rack.run(
            *("bridge", "link", "set", "dev", f"{host}p{network}", "state", state),
            namespaces=("net",),
        )

    def disconnect(self, host: str) -> None:
        """Remove the cables; the host's end goes, too."""
        for net in self._plan.addresses(host):
            with contextlib.suppress(HostError):  # its network has ended already
                self._batch(f"link delete {host}p{net}")

    def limit(self, host: str, pid: int, rate: str, network: int) -> None:
        """Limit what a host sends and what it gets by a token bucket each, tc-tbf(8); "": no limit.

        Raises:
            HostError: this kernel has no such queue.
        """
        ends = ((pid, f"eth{network}"), (self._rack.pid, f"{host}p{network}"))
        for where, device in ends:
            if rate:
                line = ("replace", "dev", device, "root", "tbf", "rate", rate, *_BUCKET)
                enter(where, ("net",), "tc", "qdisc", *line)
            else:
                with contextlib.suppress(HostError):  # there was none
                    enter(where, ("net",), "tc", "qdisc", "delete", "dev", device, "root")


def forget_soon(pid: int) -> None:
    """Let a host that ends not repeat what nobody will hear: its network ends with it.

    Without it a closed connection, and so the namespace, may outlive all processes by minutes.
    """
    where = Path("/proc/sys/net/ipv4/tcp_orphan_retries")  # as the reader's network has it
    with contextlib.suppress(HostError):
        enter(pid, ("net",), "sh", "-c", f"echo 1 > {where}")
