"""The firewall rules that bftrainer needs at a site: on the daemon's host and on the nodes. Pure.

Called by ``bftrainer doctor --firewall``. Connections go from nodes to the daemon, and between
nodes; the daemon connects to nobody. Gloo, NCCL and MPI have no option for their ports: they listen
on those that the kernel chooses (ip_local_port_range, ip(7)), so that range is open between nodes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from bftrainer.model.errors import UsageError

_NFTABLES = "add rule inet filter input {} saddr {{ {} }} tcp dport {} accept"
_FIREWALLD = (
    'firewall-cmd --permanent --add-rich-rule=\'rule family="{}" source address="{}" '
    'port port="{}" protocol="tcp" accept\''
)


def networks_of(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the fewest networks or addresses that cover exactly these, IPv4 first."""
    four: list[ipaddress.IPv4Network] = []
    six: list[ipaddress.IPv6Network] = []
    for address in addresses:
        network = ipaddress.ip_network(address)
        if isinstance(network, ipaddress.IPv4Network):
            four.append(network)
        else:
            six.append(network)
    fewest = (*ipaddress.collapse_addresses(four), *ipaddress.collapse_addresses(six))
    return tuple(str(network).removesuffix("/32").removesuffix("/128") for network in fewest)


def rules(
    kind: str,
    nodes: Sequence[str],
    *,
    ports: str,
    chosen: tuple[int, int],
    control: str = "",
    training: str = "",
) -> str:
    """Return the commands, with comments that say where.

    Args:
        kind: one of ``KINDS``.
        nodes: addresses of all nodes.
        ports: of the policy, as ``41000-41100``.
        chosen: first and last port of those that the kernel chooses.
        control: ``control_network`` of the policy.
        training: ``training_network`` of the policy; "": as ``control``.

    Raises:
        UsageError: BFT-1316, the policy names no ports, or nobody knows the nodes' addresses.
    """
    if not ports:
        raise _refusal(
            "the policy names no ports",
            "Set ports in the policy, as ports: 41000-41100, and name it with --policy.",
        )
    to_daemon, to_nodes = _sources(control, nodes), _sources(training or control, nodes)
    first, last = chosen
    commands_for = _nftables if kind == "nftables" else _firewalld
    return "\n".join(
        (
            "# On the daemon's host: agents, and verbs on nodes.",
            *commands_for(to_daemon, [ports]),
            "# On every node: other agents and workers, and what Gloo, NCCL and MPI choose",
            "# (net.ipv4.ip_local_port_range of this host; the nodes' may differ).",
            *commands_for(to_nodes, _distinct(ports, f"{first}-{last}")),
        )
    )


def _sources(network: str, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the networks of packets: that of the policy, else the addresses of nodes."""
    if "/" in network:
        return (network,)
    if network:
        raise _refusal(
            f"which addresses nodes have at {network} is not known here",
            "Name the network in the policy by its numbers, as 10.0.0.0/8.",
        )
    if not nodes:
        raise _refusal(
            "no node's address is known",
            "Run it where the batch system's commands work and know the nodes.",
        )
    return networks_of(nodes)


def _refusal(what: str, next_step: str) -> UsageError:
    return UsageError("BFT-1316", f"There are no rules to print: {what}.", next_step)


def _distinct(ports: str, between: str) -> list[str]:
    """Return both ranges, one of them if it contains the other, or both as one."""
    (first, last), (low, high) = (tuple(map(int, text.split("-"))) for text in (ports, between))
    if last + 1 < low or high + 1 < first:
        return [ports, between]
    return [f"{min(first, low)}-{max(last, high)}"]


def _nftables(nodes: Sequence[str], ports: Sequence[str]) -> list[str]:
    port_set = ports[0]
    if len(ports) > 1:
        port_set = f"{{ {', '.join(ports)} }}"
    by_family = {
        "ip": [network for network in nodes if not _is_ipv6(network)],
        "ip6": [network for network in nodes if _is_ipv6(network)],
    }
    commands: list[str] = []
    for family, networks in by_family.items():
        if networks:
            commands.append(_NFTABLES.format(family, ", ".join(networks), port_set))
    return commands


def _firewalld(nodes: Sequence[str], ports: Sequence[str]) -> list[str]:
    commands: list[str] = []
    for network in sorted(nodes, key=_is_ipv6):
        family = "ipv6" if _is_ipv6(network) else "ipv4"
        commands += [_FIREWALLD.format(family, network, port_range) for port_range in ports]
    return [*commands, "firewall-cmd --reload"]


def _is_ipv6(network: str) -> bool:
    return ":" in network
