"""The plan of a user's own daemon: site and wish -> policy, with reasons.

The policy is an ordinary one (docs/reference/policy.md). It promises nothing to other users:
there the batch system's preemption is the rule.

Implemented by ``slurm_plugins.own_site``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bftrainer.model.errors import UsageError
from bftrainer.model.parts import Lend
from bftrainer.model.plugins import load_plugin
from bftrainer.model.site import DaemonJob, NodeLimit, OwnSite, Wish

DEFAULT_NODES = 8
DEFAULT_TIME_LIMIT_S = 4 * 3600.0
SHORTEST_TIME_LIMIT_S = 120.0
POLL_INTERVAL_S = 15.0
REQUESTS_PER_MINUTE = 12
_LENDS = {
    Lend.AUTO: "GPUs of nodes that jobs share, whole nodes elsewhere; change it with --lend",
    Lend.NODES: "--lend",
    Lend.GPUS: "--lend",
}
ENTRY_POINT_GROUP = "bftrainer.own_sites"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A setting, its value and the reason, as shown to the user."""

    name: str
    value: object
    why: str


def settings_for(site: OwnSite, wish: Wish) -> tuple[Chosen, ...]:
    """Choose the settings.

    Raises:
        UsageError: BFT-1284, the site's limits leave this user nothing.
    """
    return (
        _max_nodes(site, wish),
        _time_limit(site, wish),
        Chosen(
            name="give_back",
            value=False,
            why=f"{site.partition} has PreemptMode={site.preemption}: the batch system takes nodes"
            " for other users",
        ),
        Chosen(name="reserve_nodes_per_type", value=0, why="for the same reason"),
        Chosen(name="lend", value=wish.lend.value, why=_LENDS[wish.lend]),
        Chosen(
            name="poll_interval_s",
            value=POLL_INTERVAL_S,
            why="the controller serves everybody",
        ),
        Chosen(name="requests_per_minute", value=REQUESTS_PER_MINUTE, why="for the same reason"),
        _batch_options(site, wish),
        *_networks(wish),
    )


def policy_text(chosen: tuple[Chosen, ...]) -> str:
    """Return the policy file."""
    text = "# Written by 'bftrainer up', which writes it again.\n"
    for setting in chosen:
        text += f"# {setting.why}\n{setting.name}: {json.dumps(setting.value)}\n"
    return text


def _max_nodes(site: OwnSite, wish: Wish) -> Chosen:
    nodes = _nodes(site, wish)
    why = nodes.words
    if site.n_floor:
        why += f", and {site.n_floor} of your allocation"
    return Chosen(name="max_nodes", value=nodes.n_nodes + site.n_floor, why=why)


def _batch_options(site: OwnSite, wish: Wish) -> Chosen:
    options = dict(site.batch_options)
    why = f"{site.n_nodes} nodes are in {site.partition}"
    if site.grace_s:
        options["grace_s"] = site.grace_s
        why += f"; {site.grace_s:g} s of GraceTime are used to leave"
    if wish.preamble:
        options["preamble"] = wish.preamble
    return Chosen(name="batch_options", value=options, why=why)


def _networks(wish: Wish) -> tuple[Chosen, ...]:
    settings = (
        Chosen(name="control_network", value=wish.network, why="--network"),
        Chosen(name="training_network", value=wish.network, why="--network"),
        Chosen(name="ports", value=wish.ports, why="--ports"),
    )
    return tuple(setting for setting in settings if setting.value)


def _nodes(site: OwnSite, wish: Wish) -> NodeLimit:
    desired = NodeLimit(n_nodes=DEFAULT_NODES, words="the default; change it with --max-nodes")
    if wish.max_nodes is not None:
        desired = NodeLimit(n_nodes=wish.max_nodes, words="--max-nodes")
    existing = NodeLimit(n_nodes=site.n_nodes, words=f"{site.partition} has no more")
    limit = min((desired, existing, *site.limits), key=lambda limit: limit.n_nodes)
    if limit.n_nodes < 1:
        raise UsageError(
            "BFT-1284",
            f"No pilot is allowed: {limit.words}.",
            "Use another --account, --qos or --partition, or ask the site to raise the limit.",
        )
    return limit


def _time_limit(site: OwnSite, wish: Wish) -> Chosen:
    limit_s, why = DEFAULT_TIME_LIMIT_S, "the default; change it with --time"
    if wish.time_limit_s:
        limit_s, why = wish.time_limit_s, "--time"
    if site.time_limit_s is not None and site.time_limit_s < limit_s:
        limit_s, why = site.time_limit_s, site.time_limit_words
    if limit_s < SHORTEST_TIME_LIMIT_S:
        raise UsageError(
            "BFT-1284",
            f"A pilot could stay {limit_s:g} s only ({why}); a worker needs about a minute "
            "to start.",
            f"Allow at least {SHORTEST_TIME_LIMIT_S:g} s, or use another --partition or --qos.",
        )
    return Chosen(name="pilot_time_limit_s", value=limit_s, why=why)


class OwnSites(Protocol):
    """A cluster as one user may use it."""

    def preemptable(self) -> tuple[str, ...]:
        """Return the partitions that a daemon may use; none where that is not known."""

    def examine(self, wish: Wish) -> OwnSite:
        """Read the site; raise ``BftError`` (BFT-128x) where a daemon cannot work."""

    def submit_daemon(self, argv: Sequence[str], out: Path, wish: Wish) -> DaemonJob:
        """Run the daemon in a small batch job that is requeued when it ends before the daemon."""

    def find_daemon(self) -> DaemonJob | None:
        """Return that job, if there is one."""

    def cancel_daemon(self, job_id: str) -> None:
        """Cancel that job."""


def load(batch_system: str) -> OwnSites:
    """Return the plug-in of a batch system; BFT-1201 if there is none."""
    create = load_plugin(ENTRY_POINT_GROUP, batch_system, what="batch system", code="BFT-1201")
    sites: OwnSites = create()
    return sites
