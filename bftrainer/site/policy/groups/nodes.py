"""Which idle nodes may be borrowed."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field

from bftrainer.site.policy.groups.setting import SettingsGroup, setting

_setting = partial(setting, "Nodes")
_NodeType = Annotated[str, Field(min_length=1, max_length=255)]


class NodeSettings(SettingsGroup):
    """Which idle nodes may be borrowed."""

    reserve_nodes_per_type: int = _setting(
        1,
        "nodes",
        "Idle nodes of each type that are never borrowed, so that jobs that start at once or "
        "not at all still start (docs/design/give-back.md).",
        ge=0,
        le=100_000,
    )
    eligible_node_types: tuple[_NodeType, ...] | None = _setting(
        None,
        "",
        "Types of nodes that may be borrowed; null: all.",
        min_length=1,
        strict=False,
    )
    idle_confirmations: int | None = _setting(
        None,
        "snapshots",
        "Snapshots in a row in which a node must be idle before it is used; null: 1 on Slurm and "
        "LSF, 2 on local and traces.",
        ge=1,
        le=100,
    )
    min_gap_s: float = _setting(
        120.0,
        "s",
        "Nodes that a planned job or reservation takes sooner than this plus gap_margin_s are "
        "left alone (docs/design/give-back.md).",
        ge=0,
        le=604_800,
    )
    gap_margin_s: float = _setting(
        60.0,
        "s",
        "A pilot is gone at least this long before the planned start of the next job on its node.",
        ge=0,
        le=86_400,
    )
    watts_per_node_type: dict[_NodeType, Annotated[float, Field(gt=0, le=1e6)]] = _setting(
        {},
        "W",
        "What a node of each type draws under load, for the estimate of energy in "
        "'bftrainer account'; a type that is missing has none.",
        expects="a mapping of types to numbers above 0, to 1000000",
    )
