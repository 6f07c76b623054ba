"""What an administrator sets is what decisions are taken by; nothing in between names each key."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from bftrainer.model.decision import Settings
from bftrainer.model.fairness import Limits
from bftrainer.site.policy import SitePolicy, load_policy, model
from bftrainer.site.policy.keys import setting
from milp.problem import Objective

SET = """\
policy: equal-share
objective: weighted
t_fwd_s: 77
p_jmax: 6
reserve_nodes_per_type: 3
idle_confirmations: 4
pilot_time_limit_s: 5000
min_gap_s: 99
gap_margin_s: 31
hold_idle_s: 8
max_nodes_per_trainer: 12
max_nodes: 345
give_back: false
eligible_node_types: [cpu, v100]
explore_budget: 0.04
straggler_threshold: 0.6
harm_slo_s: 2.5
max_nodes_by_user: {ada: 4}
max_nodes_by_account: {bio: 5}
max_nodes_by_partition: {gpu: 6}
max_nodes_by_type: {v100: 7}
max_share_of_idle: 0.5
fair_share_half_life_s: 7200
max_wait_s: 1800
"""
# Of the decision's settings; the daemon sets them by what it sees, or nobody does.
NOT_OF_THE_POLICY = {
    "cycle_s",
    "end_margin_s",
    "expects_losses",
    "hold_off_cycles",
    "max_held_nodes",
    "rescale_down_guess_s",
    "rescale_up_guess_s",
    "reserve_extra_nodes",
    "skip_unstartable",
    "straggler_memory_s",
}
ONLY_DECISIONS_NAME_THEM = {"gives_back": "give_back", "limits": "max_share_of_idle"}


def test_every_key_reaches_the_decision(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(SET)
    policy = load_policy(file)
    settings = model.settings_on(policy, idle_confirmations=4, cycle_s=17.0)
    assert settings == Settings(
        policy="equal-share",
        objective=Objective.WEIGHTED,
        t_fwd_s=77.0,
        p_jmax=6,
        reserve_nodes_per_type=3,
        idle_confirmations=4,
        pilot_time_limit_s=5000.0,
        min_gap_s=99.0,
        gap_margin_s=31.0,
        cycle_s=17.0,
        hold_idle_s=8.0,
        max_nodes_per_trainer=12,
        max_nodes=345,
        gives_back=False,
        eligible_node_types=("cpu", "v100"),
        explore_budget=0.04,
        straggler_threshold=0.6,
        harm_slo_s=2.5,
        limits=Limits(
            by_user={"ada": 4},
            by_account={"bio": 5},
            by_partition={"gpu": 6},
            by_type={"v100": 7},
            share_of_idle=0.5,
        ),
        fair_share_half_life_s=7200.0,
        max_wait_s=1800.0,
        expects_losses=True,
    )


def test_a_setting_of_decisions_has_a_key_or_is_none_of_the_administrators() -> None:
    of_decisions = {field.name for field in fields(Settings)}
    for name, key in ONLY_DECISIONS_NAME_THEM.items():
        assert name in of_decisions
        assert key in SitePolicy.model_fields
    with_key = of_decisions & SitePolicy.model_fields.keys()
    assert of_decisions - with_key - ONLY_DECISIONS_NAME_THEM.keys() == NOT_OF_THE_POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreSettings(Settings):
    """Those of a release with one more."""

    tea_time_s: float = 1.0


class MorePolicy(SitePolicy):
    """That of a release with one more key."""

    tea_time_s: float = setting("Decisions", 1.0, "s", "How long nothing is decided.", ge=0)


def test_a_key_more_is_declared_and_read_and_named_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model, "Settings", MoreSettings)
    monkeypatch.setattr(model, "SitePolicy", MorePolicy)
    settings = model.settings_on(MorePolicy(tea_time_s=9.0), idle_confirmations=1, cycle_s=1.0)
    assert isinstance(settings, MoreSettings)
    assert settings.tea_time_s == 9.0
