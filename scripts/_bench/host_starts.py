"""How soon a trainer trains where hosts have odd names, addresses or packet filters.

From ``bftrainer up`` to the first update of two nodes; and how soon ``up`` refuses what cannot be.
Called by ``bench_hosts``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from _bench.waiting import BenchError, wait_until
from tests.support.hosts import Cluster, Names, Plan
from tests.support.hosts.own_daemon import OwnDaemon, updates
from tests.support.hosts.rules import close_but_for

PATIENCE_S: Final = 300.0
POLICY: Final = "/home/ada/.bftrainer/hosts/policy.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Hosts, and what their user tells ``up``."""

    name: str
    names: Names = "plain"
    has_two_networks: bool = False
    is_closed: bool = False  # all hosts drop what the rules that doctor prints do not let in
    options: tuple[str, ...] = ()


STARTS: Final = (
    Start(name="plain names"),
    Start(name="Debian's hosts file", names="debian"),
    Start(name="login host known by an address that nodes do not reach", names="outside"),
    Start(name="two networks, one named", has_two_networks=True,
          options=("--network", "10.78.0.0/24")),
    Start(name="IPv6 only", names="ipv6"),
    Start(name="packet filters with the rules of doctor only", is_closed=True,
          options=("--ports", "21000-21040")),
)  # fmt: skip
REFUSED: Final = (("--bind", "127.0.0.1"), ("--network", "10.99.0.0/16"), ("--network", "ib0"))


def starts(start: Start) -> float:
    """Return the seconds from ``up`` to the first update of both nodes."""
    plan = Plan(n_nodes=2, names=start.names, two_networks=start.has_two_networks)
    with Cluster(plan) as cluster, OwnDaemon(cluster) as daemon:
        began_s = time.time()
        daemon.does("up", "--partition", "scavenge", *start.options)
        if start.is_closed:
            printed = daemon.does("doctor", "--policy", POLICY, "--firewall", "nftables")
            close_but_for(cluster, printed)
        daemon.submit_train("2:2")
        wait_until(lambda: updates(daemon.records()), "an update", patience_s=PATIENCE_S)
        return updates(daemon.records())[0].at_s - began_s


def refusals() -> Sequence[float]:
    """Return the seconds in which ``up`` refuses addresses that no agent can reach."""
    found = []
    with Cluster(Plan(n_nodes=1)) as cluster, OwnDaemon(cluster) as daemon:
        for words in REFUSED:
            began_s = time.monotonic()
            said = daemon.says("up", "--partition", "scavenge", *words).stderr
            found.append(time.monotonic() - began_s)
            if "BFT-131" not in said:
                raise BenchError(f"up {' '.join(words)} was not refused: {said}")
    return found
