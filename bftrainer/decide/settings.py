"""Administrator's policy and batch system → the settings decisions depend on."""

from __future__ import annotations

from typing import TypeVar

from bftrainer.decide.types import Settings
from bftrainer.policy.model import Policy
from bftrainer.poll.batch_system import BatchSystem
from milp.problem import Objective

_Number = TypeVar("_Number", int, float)


def settings_of(policy: Policy, system: BatchSystem) -> Settings:
    """Return the decision's part of the policy; the batch system fills in defaults."""
    confirmations = policy.idle_confirmations
    return Settings(
        policy=policy.policy,
        objective=Objective(policy.objective),
        t_fwd_s=policy.t_fwd_s,
        p_jmax=policy.p_jmax,
        reserve_nodes_per_type=_or_usual(policy.reserve_nodes_per_type, 1),
        learns_reserve=policy.reserve_nodes_per_type is None,
        idle_confirmations=system.idle_confirmations if confirmations is None else confirmations,
        pilot_time_limit_s=policy.pilot_time_limit_s,
        min_gap_s=_or_usual(policy.min_gap_s, 120.0),
        learns_min_gap=policy.min_gap_s is None,
        gap_margin_s=policy.gap_margin_s,
        backfill_lead_s=policy.backfill_lead_s,
        cycle_s=system.cycle_s,
        hold_idle_s=policy.hold_idle_s,
        # A pilot waits its turn behind every ordinary job: one whole cycle, and a bit.
        pilot_start_timeout_s=system.cycle_s + 5.0,
        rescale_up_guess_s=policy.rescale_up_guess_s,
        rescale_down_guess_s=policy.rescale_down_guess_s,
        max_nodes_per_trainer=policy.max_nodes_per_trainer,
        eligible_node_types=tuple(policy.eligible_node_types or ()),
        explore_budget=policy.explore_budget,
        straggler_threshold=policy.straggler_threshold,
        straggler_memory_s=policy.straggler_memory_s,
    )


def _or_usual(chosen: _Number | None, usual: _Number) -> _Number:
    """What holds until something was learnt, where the policy says null."""
    return usual if chosen is None else chosen
