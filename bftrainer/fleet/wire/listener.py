"""Addresses on which the daemon listens and which it offers to nodes.

It has no peer before its first pilot, so nothing proves which of its addresses the nodes reach. It
offers all that may be right, the most probable first; they take the first that answers with the
daemon's key (``endpoint``). docs/adr/0034-addresses.md has the reasons.

Called by ``bftrainer daemon`` and ``bftrainer doctor``, on the daemon's host.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bftrainer.batch import addresses, site_inspector
from bftrainer.batch.batch_system import BatchSystem
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.site import Finding, Measured, Weight

MOST_OFFERED = 16
MOST_ASKED = 8  # hosts whose route is looked up: a name server that is silent takes 5 s each
_ALL = ("", addresses.ANY, "0.0.0.0", "::")  # noqa: S104 - what is bound is decided here
_CHOSEN = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """This host, as it and the batch system see it."""

    own: tuple[addresses.HostAddress, ...]
    towards: tuple[str, ...]  # our addresses on the routes to hosts of pilots
    named: tuple[str, ...]  # what our host name stands for
    has_others: bool | None  # whether pilots run on other hosts; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The addresses to listen on, and those to offer."""

    bind_host: str
    offered: tuple[str, ...]  # addresses or names, the most probable first


def numeric_bind(host: str) -> str:
    """Return an address for ``--bind``; BFT-1306 if it is a name that nobody knows."""
    try:
        return host if host in _ALL else addresses.numeric(host)
    except OSError as problem:
        raise UsageError(
            "BFT-1306",
            f"Cannot listen on {host}: {problem}.",
            "Name an address of this host: --bind ADDRESS.",
        ) from problem


def look_around(pilot_hosts: Sequence[str]) -> Surroundings:
    """Look at this host and its routes to hosts where pilots run; (): these are unknown."""
    host_addresses = addresses.host_addresses()
    ours = {str(interface.address) for interface in host_addresses}
    sources, has_others = list[str](), None
    for host in list(dict.fromkeys(pilot_hosts))[:MOST_ASKED]:
        resolved = addresses.resolved(host)
        if not resolved:
            continue
        is_ours = any(addresses.is_loopback(address) or address in ours for address in resolved)
        has_others = bool(has_others) or not is_ours
        if not is_ours and (source := addresses.source_towards(host)):
            sources.append(source)
    return Surroundings(
        own=host_addresses,
        towards=tuple(dict.fromkeys(sources)),
        named=tuple(addresses.resolved(socket.gethostname())),
        has_others=has_others,
    )


def place_of(
    around: Surroundings, *, bind: str = "", announced: Sequence[str] = (), network: str = ""
) -> Place:
    """Choose, by the command line's ``bind`` and ``announced``, and the policy's ``network``. Pure.

    ``UsageError`` BFT-1312: agents cannot reach what would be offered; BFT-1313, no address of this
    host is in the network.
    """
    is_given = bind not in _ALL
    if announced:
        offered, bind_host = list(announced), bind if is_given else addresses.ANY
    elif is_given:
        offered, bind_host = [bind], bind
    elif network:
        offered = addresses.in_network(around.own, network)
        bind_host = offered[0] if len(offered) == 1 else addresses.ANY
        if not offered:
            raise UsageError(
                "BFT-1313",
                f"No address of this host is in control_network {network!r}: it has "
                f"{_shown(around.own)}.",
                "Correct control_network in the policy, or name an address with --bind.",
            )
    else:
        offered = [] if around.has_others is False and not bind else _probable(around)
        bind_host = addresses.ANY if offered or bind else addresses.LOOPBACK
        offered = offered or [addresses.LOOPBACK]
    if around.has_others and all(map(addresses.is_loopback, offered)):
        raise UsageError(
            "BFT-1312",
            f"Agents on other hosts cannot reach {', '.join(offered)}; this host has "
            f"{_shown(around.own)}.",
            "Name an address that the nodes reach: --bind ADDRESS, or --announce ADDRESS.",
        )
    return Place(bind_host=bind_host, offered=tuple(offered[:MOST_OFFERED]))


def offered_at(offered: Sequence[str], bound: str) -> tuple[str, ...]:
    """Return the endpoints of these addresses at the port of the bound one; (): that itself."""
    port = int(bound.rpartition(":")[2])
    return tuple(addresses.endpoint_at(address, port) for address in offered) or (bound,)


def _probable(around: Surroundings) -> list[str]:
    ours = [str(interface.address) for interface in around.own]
    by_name = [address for address in around.named if address in ours]
    return _not_loopback((*around.towards, *by_name, *ours))


def _not_loopback(candidates: Iterable[str]) -> list[str]:
    return [host for host in dict.fromkeys(candidates) if not addresses.is_loopback(host)]


def _shown(own: Sequence[addresses.HostAddress]) -> str:
    return ", ".join(f"{place.address} ({place.interface})" for place in own) or "none"


def findings(
    around: Surroundings,
    *,
    control_network: str,
    pilots_dir: Path | None,
    measured: Measured,
    late: Sequence[str],
) -> Iterator[Finding]:
    """Return what keeps agents from starting or connecting.

    ``pilots_dir``: of pilots that run as the daemon's user; None: unknown, or there are none.
    ``late``: what the daemon says of agents that have not connected, a sentence each.
    """
    try:
        place_of(around, network=control_network)
    except BftError as problem:
        yield Finding(
            code=problem.code,
            weight=Weight.STOP,
            setting="addresses of this host",
            cost=problem.cause,
            remedy=problem.next_step,
        )
    if late:
        yield Finding(
            code="BFT-1314",
            weight=Weight.LOSS,
            setting=f"{len(late)} agents do not connect",
            cost=late[0],
            remedy="let nodes reach the daemon (bftrainer doctor --firewall nftables prints the "
            "rules), or name an address that they reach with --announce ADDRESS; agent.log in the "
            "pilot's directory and the log of the node's batch daemon say more",
            command="bftrainer nodes",
        )
    if pilots_dir is not None and around.has_others:
        yield from site_inspector.findings(pilots_dir, measured)


def choose_place(system: BatchSystem, bind: str, announced: Sequence[str], network: str) -> Place:
    """Choose where a daemon listens, and what it offers, of what ``place_of`` describes.

    Raises:
        UsageError: BFT-1306, -1312, -1313.
    """
    if system.name == "local" and not (bind or announced):
        return Place(bind_host=addresses.LOOPBACK, offered=(addresses.LOOPBACK,))
    around = look_around(system.pilot_hosts())
    return place_of(around, bind=numeric_bind(bind), announced=announced, network=network)


def addresses_of(hosts: Sequence[str]) -> list[str]:
    """Return all addresses of these hosts that are known here."""
    every: list[str] = []
    for host in hosts:
        every += addresses.resolved(host)
    return every


def chosen_ports() -> tuple[int, int]:
    """Return the first and last port that this host's kernel chooses from."""
    first, last = _CHOSEN.read_text().split()
    return int(first), int(last)
