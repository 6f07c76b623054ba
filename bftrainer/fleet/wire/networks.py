"""The way between the daemon's host and the nodes: where to listen, and findings.

Called by ``bftrainer daemon`` and ``bftrainer doctor``, on the daemon's host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bftrainer.batch import addresses, pilots_directory
from bftrainer.batch.batch_system import BatchSystem
from bftrainer.fleet.wire.listener import (
    LOCAL,
    Place,
    Surroundings,
    look_around,
    numeric_bind,
    place_of,
)
from bftrainer.model.errors import BftError
from bftrainer.model.site import Finding, Measured, Weight

_CHOSEN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def findings(
    around: Surroundings,
    *,
    control_network: str,
    pilots_dir: Path | None,
    measured: Measured,
    late: Sequence[str],
) -> Iterator[Finding]:
    """Return what keeps agents from starting or connecting.

    Args:
        around: this host.
        control_network: of the policy; "": any.
        pilots_dir: of pilots that run as the daemon's user; None: unknown, or there are none.
        measured: by the daemon.
        late: what the daemon says of agents that have not connected, a sentence each.
    """
    try:
        place_of(around, network=control_network)
    except BftError as problem:
        yield Finding(
            code=problem.code,
            weight=Weight.LOSS,
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
        )
    if pilots_dir is not None and around.has_others:
        yield from pilots_directory.findings(pilots_dir, measured)


def choose_place(system: BatchSystem, bind: str, announced: Sequence[str], network: str) -> Place:
    """Choose where a daemon listens, and what it offers, of what ``place_of`` describes.

    Raises:
        UsageError: BFT-1306, -1312, -1313.
    """
    if system.name == "local" and not (bind or announced):
        return LOCAL
    around = look_around(system.pilot_hosts())
    return place_of(around, bind=numeric_bind(bind), announced=announced, network=network)


def addresses_of(hosts: Sequence[str]) -> list[str]:
    """Return all addresses of these hosts that are known here."""
    return [address for host in hosts for address in addresses.resolved(host)]


def chosen_ports() -> tuple[int, int]:
    """Return the first and last port that this host's kernel chooses from."""
    first, last = _CHOSEN.read_text().split()
    return int(first), int(last)
