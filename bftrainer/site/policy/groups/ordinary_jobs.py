"""What ordinary jobs are promised."""

from __future__ import annotations

from functools import partial

from bftrainer.site.policy.groups.setting import SettingsGroup, setting

_setting = partial(setting, "Ordinary jobs")


class OrdinaryJobSettings(SettingsGroup):
    """What ordinary jobs are promised."""

    give_back: bool = _setting(
        default=True,
        unit="",
        meaning="Nodes that ordinary jobs could use are released before the batch system has to "
        "preempt pilots; false: only preemption and time limits take them, nothing is promised "
        "and the daemon never backs off, as for a user's own daemon (docs/howto/own-daemon.md).",
    )
    harm_slo_s: float = _setting(
        1.0,
        "s",
        "The promise: a node that an ordinary job gets from us is free this soon after the "
        "request (docs/design/give-back.md).",
        ge=0.001,
        le=3_600,
    )
    harm_slo_share: float = _setting(
        0.95,
        "of the nodes",
        "The share of nodes for which that is promised; if it is not kept, the daemon backs off.",
        ge=0.5,
        le=1,
    )
    harm_quiet_s: float = _setting(
        1_800.0,
        "s",
        "The daemon backs off one level less after this long with good hand-overs only.",
        ge=1,
        le=2_592_000,
    )
