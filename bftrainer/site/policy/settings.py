"""The settings on which decisions depend, from the administrator's policy and the batch system."""

from __future__ import annotations

from bftrainer.batch.batch_system import BatchSystem
from bftrainer.model.decision import Settings
from bftrainer.model.fairness import Limits
from bftrainer.site.policy.model import SitePolicy
from milp.problem import Objective


def settings_of(policy: SitePolicy, system: BatchSystem) -> Settings:
    """Return the decision's part of the policy; the batch system fills in defaults."""
    confirmations = policy.idle_confirmations
    return settings_on(
        policy,
        idle_confirmations=system.idle_confirmations if confirmations is None else confirmations,
        cycle_s=system.cycle_s,
    )


def settings_on(policy: SitePolicy, *, idle_confirmations: int, cycle_s: float) -> Settings:
    """Return them on a batch system with these properties."""
    return Settings(
        policy=policy.policy,
        policy_options=policy.policy_options,
        objective=Objective(policy.objective),
        t_fwd_s=policy.t_fwd_s,
        p_jmax=policy.p_jmax,
        reserve_nodes_per_type=policy.reserve_nodes_per_type,
        idle_confirmations=idle_confirmations,
        pilot_time_limit_s=policy.pilot_time_limit_s,
        min_gap_s=policy.min_gap_s,
        gap_margin_s=policy.gap_margin_s,
        cycle_s=cycle_s,
        hold_idle_s=policy.hold_idle_s,
        max_nodes_per_trainer=policy.max_nodes_per_trainer,
        max_nodes=policy.max_nodes,
        gives_back=policy.give_back,
        eligible_node_types=tuple(policy.eligible_node_types or ()),
        explore_budget=policy.explore_budget,
        straggler_threshold=policy.straggler_threshold,
        harm_slo_s=policy.harm_slo_s,
        limits=Limits(
            by_user=policy.max_nodes_by_user,
            by_account=policy.max_nodes_by_account,
            by_partition=policy.max_nodes_by_partition,
            by_type=policy.max_nodes_by_type,
            share_of_idle=policy.max_share_of_idle,
        ),
        fair_share_half_life_s=policy.fair_share_half_life_s,
        max_wait_s=policy.max_wait_s,
    )
