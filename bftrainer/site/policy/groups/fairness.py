"""How users and accounts share what is harvested.

A key: ``name: type = _setting(default, unit, meaning, ge=.., le=..)``.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field

from bftrainer.site.policy.groups.setting import SettingsGroup, setting

_setting = partial(setting, "Fairness")
_Name = Annotated[str, Field(min_length=1, max_length=255)]
_Nodes = Annotated[int, Field(ge=0, le=100_000)]


class FairnessSettings(SettingsGroup):
    """How users and accounts share what is harvested."""

    fair_share_half_life_s: float | None = _setting(
        None,
        "s",
        "Who of many users runs is decided by fair share: the account, then the user that used "
        "fewest node-seconds, which halve in this time (docs/design/fair-share.md); null: first "
        "come, first served.",
        ge=60,
        le=31_536_000,
    )
    max_wait_s: float | None = _setting(
        None,
        "s",
        "A trainer that could run and has waited so long gets its n_min nodes for as long, "
        "whatever the allocation policy prefers; at most half of p_jmax at once; null: no bound.",
        ge=60,
        le=31_536_000,
    )
    max_nodes_by_user: dict[_Name, _Nodes] = _setting(
        {},
        "nodes",
        'At most so many nodes at once for the trainers of a user; "*": of each user who is not '
        "named; {}: no limit.",
    )
    max_nodes_by_account: dict[_Name, _Nodes] = _setting(
        {},
        "nodes",
        "The same for the trainers of an account (bftrainer submit --account).",
    )
    max_nodes_by_partition: dict[_Name, _Nodes] = _setting(
        {},
        "nodes",
        "At most so many nodes of a partition are held or requested at once.",
    )
    max_nodes_by_type: dict[_Name, _Nodes] = _setting(
        {},
        "nodes",
        "The same for a type of nodes.",
    )
    max_share_of_idle: float = _setting(
        1.0,
        "of the nodes",
        "At most this share of the nodes of each type that no ordinary job has is borrowed.",
        ge=0,
        le=1,
    )
