"""What is decided: by which policy, for what, with which guesses."""

from __future__ import annotations

import enum
from functools import partial

from pydantic import JsonValue

from bftrainer.site.policy.groups.setting import SettingsGroup, setting
from milp.problem import Objective

_setting = partial(setting, "Decision")


class SiteObjective(enum.StrEnum):
    """What a site may maximise: what follows from the curves every trainer has."""

    THROUGHPUT = Objective.THROUGHPUT.value
    SCALING_EFFICIENCY = Objective.SCALING_EFFICIENCY.value
    WEIGHTED = Objective.WEIGHTED.value


class DecisionSettings(SettingsGroup):
    """What is decided: by which policy, for what, with which guesses."""

    policy: str = _setting(
        "milp",
        "",
        "The allocation policy: milp (the exact optimum), equal-share, fcfs-greedy, "
        "no-rescale (jobs of fixed sizes, for comparison), another published one "
        "(docs/policies), or a plug-in of this site.",
        pattern=r"^[a-z][a-z0-9-]{0,63}$",
    )
    policy_options: dict[str, JsonValue] = _setting(
        {},
        "",
        "Options of the allocation policy, by name (docs/policies); milp has none.",
    )
    objective: SiteObjective = _setting(
        SiteObjective.SCALING_EFFICIENCY,
        "",
        "What is maximised over all trainers: samples per second, the same relative to each "
        "trainer's own on one node, or that times the trainer's weight.",
        strict=False,
    )
    t_fwd_s: float = _setting(
        120.0,
        "s",
        "Forward-looking time: a rescale must pay back within this (docs/design/estimators.md).",
        ge=1,
        le=86_400,
    )
    p_jmax: int = _setting(
        10,
        "trainers",
        "At most this many trainers run at once, the first submitted first.",
        ge=1,
        le=1_000,
    )
    skip_unstartable: bool = _setting(
        default=True,
        unit="",
        meaning="A trainer whose n_min exceeds the nodes that it could have if it were alone "
        "does not count for p_jmax; false: it does, and those behind it wait, as in "
        "the paper.",
    )
    rescale_up_guess_s: float = _setting(
        0.5,
        "s",
        "Assumed pause of a grow until it is measured for the trainer.",
        ge=0,
        le=3_600,
    )
    rescale_down_guess_s: float = _setting(
        0.2,
        "s",
        "Assumed pause of a shrink until it is measured for the trainer.",
        ge=0,
        le=3_600,
    )
    explore_budget: float = _setting(
        0.02,
        "share",
        "Share of the objective that a decision may forgo so that a trainer that rescales "
        "anyway goes to a size of unknown throughput; 0: never (docs/design/estimators.md).",
        ge=0,
        le=0.5,
    )
    straggler_threshold: float = _setting(
        0.8,
        "of the others",
        "A node whose average throughput is below this fraction of that of its trainer's "
        "other nodes is replaced where that pays; 0: never (docs/design/estimators.md).",
        ge=0,
        le=0.99,
    )
    straggler_memory_s: float = _setting(
        1_800.0,
        "s",
        "A node found slow is taken to be half as slow after this long, so that it is tried again.",
        ge=1,
        le=2_592_000,
    )
