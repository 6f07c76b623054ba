"""How nodes are held: pilots, and the agents in them."""

from __future__ import annotations

from functools import partial

from bftrainer.site.policy.groups.setting import SettingsGroup, setting

_setting = partial(setting, "Pilots and agents")
_TOGETHER = "Agents learn heartbeat_s and lease_s when they connect, and agent_timeout_s fits them."


class PilotSettings(SettingsGroup):
    """How nodes are held: pilots, and the agents in them."""

    pilots_dir: str | None = _setting(
        None,
        "",
        "Where the files of pilots that run as the daemon's user lie: an absolute path that all "
        "nodes see; null: pilots in the state directory (docs/howto/slurm-site.md).",
        pattern=r"^/",
        max_length=4096,
        restart="Pilots find their files there.",
    )
    max_nodes: int | None = _setting(
        None,
        "nodes",
        "At most this many nodes are held or requested at once; null: no limit.",
        ge=1,
        le=100_000,
    )
    pilot_time_limit_s: float = _setting(
        14_400.0,
        "s",
        "Longest time limit of a pilot; it is shorter where the gap is.",
        ge=10,
        le=2_592_000,
    )
    hold_idle_s: float = _setting(
        5.0,
        "s",
        "A held node that no trainer uses for this long is released.",
        ge=0,
        le=86_400,
    )
    heartbeat_s: float = _setting(
        0.5,
        "s",
        "Interval of an agent's heartbeats.",
        ge=0.05,
        le=60,
        restart=_TOGETHER,
    )
    agent_timeout_s: float = _setting(
        5.0,
        "s",
        "An agent silent for this long is lost; at least twice heartbeat_s.",
        ge=0.1,
        le=3_600,
        restart=_TOGETHER,
    )
    unreachable_s: float = _setting(
        300.0,
        "s",
        "The pilot of an agent that was lost without a word is cancelled after this long; trainers "
        "go on without its node at once, and ordinary jobs get it at once.",
        ge=0,
        le=604_800,
    )
    lease_s: float = _setting(
        1_800.0,
        "s",
        "Without a daemon for this long, trainers write a checkpoint and release their nodes; "
        "at least agent_timeout_s.",
        ge=1,
        le=604_800,
        restart=_TOGETHER,
    )
