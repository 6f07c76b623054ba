"""nftables of the hosts: what does not get in. One table per purpose, so each ends by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.support.hosts.plan import CONTROLLER, LOGIN
from tests.support.hosts.rack import enter

if TYPE_CHECKING:
    from tests.support.hosts.cluster import Cluster

OF_SLURM = "6817-6818"
FIRST = "add rule inet filter input "

_TABLE = """\
table inet {table} {{
    chain input {{
        type filter hook input priority {priority}; policy {policy};
        {rules}
    }}
}}
"""


def replace(pid: int, table: str, *rules: str, policy: str = "accept", priority: int = 0) -> None:
    """Give a host a table of rules in place of the one of that name; without rules, none."""
    text = f"add table inet {table}\ndelete table inet {table}\n"
    if rules:
        lines = "\n        ".join(rules)
        text += _TABLE.format(table=table, priority=priority, policy=policy, rules=lines)
    enter(pid, ("net",), "nft", "-f", "-", stdin=text)


def from_hosts(addresses: Sequence[str]) -> tuple[str, ...]:
    """Drop what comes from addresses."""
    return tuple(f"{'ip6' if ':' in one else 'ip'} saddr {one} drop" for one in addresses)


def lossy(percent: int) -> tuple[str, ...]:
    """Drop some of the packets that arrive, at most 99.9 %."""
    return (f"iif != lo numgen random mod 1000 < {min(10 * percent, 999)} drop",) if percent else ()


def only(ports: Sequence[str]) -> tuple[str, ...]:
    """Accept new TCP connections to ports ("22", "60001-63000") only, and what belongs to others.

    With policy drop. ICMP is let in: IPv6 finds its neighbours by it.
    """
    return (
        "iif lo accept",
        "ct state established,related accept",
        "meta l4proto { icmp, icmpv6 } accept",
        *((f"tcp dport {{ {', '.join(ports)} }} accept",) if ports else ()),
    )


def close(cluster: Cluster, host: str, *opened: str) -> None:
    """Drop all that comes in, but for Slurm and these rules."""
    accepted = [*only([OF_SLURM]), *opened]
    replace(cluster.pid(host), "filter", *accepted, policy="drop")


def close_but_for(cluster: Cluster, printed: str) -> None:
    """Drop all that comes in, but for Slurm and the rules that ``doctor --firewall`` printed."""
    of_daemon, of_nodes = printed.split("# On every node")
    given = {CONTROLLER: "", LOGIN: of_daemon} | dict.fromkeys(cluster.plan.nodes, of_nodes)
    for host, text in given.items():
        found = [line for line in text.splitlines() if line.startswith(FIRST)]
        assert bool(found) == bool(text)
        close(cluster, host, *(line.removeprefix(FIRST) for line in found))
