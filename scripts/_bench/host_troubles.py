"""Troubles between hosts, and what must hold in each. Called by ``bench_hosts``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.support.hosts import Cluster

AGENT_TIMEOUT_S: Final = 5.0  # of the policy, by default
SURVIVORS_S: Final = AGENT_TIMEOUT_S + 1.0
STEP_S: Final = 1.0  # nothing has happened: a step, and a machine that has other work
FULL_S: Final = 5.0
BLIND_S: Final = 2 * SURVIVORS_S  # one failure to see the pair, one generation without it


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One kind of trouble, made and undone; limits of what it may cost."""

    name: str
    make: Callable[[Cluster], None]
    undo: Callable[[Cluster], None] | None  # None: it lasts for ever
    hold_s: float
    expected: str
    stopped_s: float  # longest time without an update
    full_s: float | None = FULL_S  # from its end to an update at full size; None: no limit
    pilots: int | None = 0  # pilots that may end; None: no limit


def _cut(name: str, host: str, hold_s: float, expected: str, stopped_s: float) -> Trouble:
    return Trouble(
        name=f"{name} cut for {hold_s:g} s",
        make=lambda cluster: cluster.cut(host),
        undo=lambda cluster: cluster.mend(host),
        hold_s=hold_s,
        expected=expected,
        stopped_s=stopped_s,
    )


def _node_cut(hold_s: float, stopped_s: float) -> Trouble:
    return _cut("node", "n2", hold_s, "the others train; it is back soon after", stopped_s)


def _deaf(name: str, *, one_way: bool) -> Trouble:
    return Trouble(
        name=f"{name} for 60 s",
        make=lambda cluster: cluster.block("n1", "n2", one_way=one_way),
        undo=lambda cluster: cluster.unblock("n1", "n2"),
        hold_s=60.0,
        expected="one of the two is left out, the others train",
        stopped_s=BLIND_S,
        full_s=None,
        pilots=None,
    )


def _deafen(cluster: Cluster) -> None:
    for node in cluster.plan.nodes:
        cluster.block("login", node)


def _hear(cluster: Cluster) -> None:
    for node in cluster.plan.nodes:
        cluster.unblock("login", node)


TROUBLES: Final = {
    "cut-1": _node_cut(1.0, 1.0 + STEP_S),
    "cut-5": _node_cut(5.0, SURVIVORS_S),
    "cut-30": _node_cut(30.0, SURVIVORS_S),
    "cut-120": _node_cut(120.0, SURVIVORS_S),
    "cut-ever": Trouble(
        name="node cut for ever",
        make=lambda cluster: cluster.cut("n2"),
        undo=None,
        hold_s=150.0,
        expected="the others train; its pilot ends, once",
        stopped_s=SURVIVORS_S,
        full_s=None,
        pilots=1,
    ),
    "daemon": Trouble(
        name="daemon cut from its agents for 30 s",
        make=_deafen,
        undo=_hear,
        hold_s=30.0,
        expected="nothing is cancelled; training goes on",
        stopped_s=STEP_S,
    ),
    "login": _cut("login host", "login", 30.0, "nothing is cancelled; training goes on", STEP_S),
    "controller": _cut("controller", "ctl", 30.0, "training goes on", STEP_S),
    "pair": _deaf("two nodes deaf to each other", one_way=False),
    "one-way": _deaf("n1 does not hear n2", one_way=True),
    "power": Trouble(
        name="power of a node off for 20 s",
        make=lambda cluster: cluster.off("n2"),
        undo=lambda cluster: cluster.on("n2"),
        hold_s=20.0,
        expected="the others train; a new pilot comes",
        stopped_s=SURVIVORS_S,
        full_s=None,
        pilots=1,
    ),
}
