"""Nodes with network stacks of their own on this machine: namespaces behind one bridge.

Names of nodes come in; each gets an address, and processes that are started with ``argv``
have no other way to anybody than their end of a virtual cable. ``cut`` pulls it, or lets
packets through in one direction only; a rate limits all cables. Needs
root and iproute2 (``ip``, ``tc``) and util-linux (``nsenter``). Leaving the context removes
everything. Called by ``plane``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

from _bench.waiting import BenchError

from bftrainer.batch import process

TIMEOUT_S: Final = 10.0
FIRST_HOST: Final = 10
HOSTS: Final = 240
SUBNETS: Final = 256
INSIDE: Final = "eth0"


class Cut(StrEnum):
    """What no longer works."""

    CABLE = "cable"  # the carrier is gone; nothing passes
    TO_NODE = "to the node"
    FROM_NODE = "from the node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node: its namespace, the outer end of its cable, its address."""

    namespace: str
    cable: str
    address: str


def why_not() -> str:
    """Say why there can be no such network here; "" when there can."""
    missing = [program for program in ("ip", "tc", "nsenter") if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} not found"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = f"bftp{os.getpid()}"
    made = process.run(("ip", "netns", "add", probe), timeout_s=TIMEOUT_S)
    if not made.is_ok:
        return f"no network namespaces: {made.stderr.strip()}"
    _do("ip", "netns", "del", probe)
    return ""


class Network:
    """A bridge with an address of this host, and a cable from it to each node."""

    def __init__(self, rate: str = "") -> None:
        self._rate = rate  # of each cable, both ways, as tc(8) has it: 1gbit; "": no limit
        self._hosts: dict[str, Host] = {}
        self._made = 0
        self._prefix = ""
        self._bridge = ""

    @property
    def address(self) -> str:
        """Where nodes reach this host."""
        return f"{self._prefix}.1"

    def __enter__(self) -> Self:
        # 198.18.0.0/15 is for tests of networks (RFC 2544, appendix C.2.2).
        for third in (os.getpid() + i for i in range(SUBNETS)):
            self._bridge = f"bftbr{third % SUBNETS}"
            self._prefix = f"198.18.{third % SUBNETS}"
            argv = ("ip", "link", "add", self._bridge, "type", "bridge")
            if process.run(argv, timeout_s=TIMEOUT_S).is_ok:
                break
        else:
            raise BenchError("no bridge can be made")
        try:
            _do("ip", "addr", "add", f"{self.address}/24", "dev", self._bridge)
            _do("ip", "link", "set", self._bridge, "up")
        except BenchError:
            self._remove_bridge()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self._hosts):
            with contextlib.suppress(BenchError):
                self.remove(name)
        self._remove_bridge()

    def _remove_bridge(self) -> None:
        with contextlib.suppress(BenchError):
            _do("ip", "link", "del", self._bridge)

    # ---- nodes ---------------------------------------------------------------------------

    def add(self, name: str) -> Host:
        """Make a node; an earlier one of this name is removed."""
        if name in self._hosts:
            self.remove(name)
        number = FIRST_HOST + self._made % HOSTS
        self._made += 1
        label = f"{self._bridge.removeprefix('bftbr')}n{self._made}"
        host = Host(
            namespace=f"bftns{label}", cable=f"bftv{label}", address=f"{self._prefix}.{number}"
        )
        space = host.namespace
        _do("ip", "netns", "add", space)
        self._hosts[name] = host  # from here on it is removed with us
        _do(
            *("ip", "link", "add", host.cable, "type", "veth"),
            *("peer", "name", INSIDE, "netns", space),
        )
        _do("ip", "link", "set", host.cable, "master", self._bridge, "up")
        _do("ip", "-n", space, "addr", "add", f"{host.address}/24", "dev", INSIDE)
        for device in ("lo", INSIDE):
            _do("ip", "-n", space, "link", "set", device, "up")
        self._limit(host)
        return host

    def _limit(self, host: Host) -> None:
        if self._rate:
            queue = ("root", "tbf", "rate", self._rate, *_BUCKET)
            _do("tc", "qdisc", "replace", "dev", host.cable, *queue)
            _do("tc", "-n", host.namespace, "qdisc", "replace", "dev", INSIDE, *queue)

    def address_of(self, name: str) -> str:
        """Return the address of a node."""
        return self._hosts[name].address

    def remove(self, name: str) -> None:
        """Remove a node; processes that are still there keep a stack without a cable."""
        host = self._hosts.pop(name)
        with contextlib.suppress(BenchError):
            _do("ip", "link", "del", host.cable)
        _do("ip", "netns", "del", host.namespace)

    def argv(self, name: str, argv: Sequence[str]) -> tuple[str, ...]:
        """Return how to start a program there: the process becomes it, under the same pid."""
        return ("nsenter", f"--net=/run/netns/{self._hosts[name].namespace}", "--", *argv)

    # ---- losses --------------------------------------------------------------------------

    def cut(self, name: str, what: Cut = Cut.CABLE) -> None:
        """Let nothing pass, or nothing in one direction; nobody is told."""
        host = self._hosts[name]
        match what:
            case Cut.CABLE:
                _do("ip", "link", "set", host.cable, "down")
            case Cut.TO_NODE:
                _do("tc", "qdisc", "replace", "dev", host.cable, *_NOTHING_FITS)
            case Cut.FROM_NODE:
                inside = ("tc", "-n", host.namespace, "qdisc", "replace", "dev", INSIDE)
                _do(*inside, *_NOTHING_FITS)

    def mend(self, name: str) -> None:
        """Let everything pass again."""
        host = self._hosts[name]
        _do("ip", "link", "set", host.cable, "up")
        for argv in (
            ("tc", "qdisc", "del", "dev", host.cable, "root"),
            ("tc", "-n", host.namespace, "qdisc", "del", "dev", INSIDE, "root"),
        ):
            process.run(argv, timeout_s=TIMEOUT_S)  # fails where there is none
        self._limit(host)


# A queue of one byte: every packet is longer and is dropped (tc-bfifo(8)).
_NOTHING_FITS: Final = ("root", "bfifo", "limit", "1")
_BUCKET: Final = ("burst", "256k", "latency", "50ms")


def _do(*argv: str) -> None:
    done = process.run(argv, timeout_s=TIMEOUT_S)
    if not done.is_ok:
        raise BenchError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
