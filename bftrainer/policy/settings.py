"""Administrator's policy and batch system → the settings decisions depend on."""

from __future__ import annotations

from bftrainer.model.decision import Settings
from bftrainer.policy.model import SitePolicy
from bftrainer.poll.batch_system import BatchSystem
from milp.problem import Objective


def settings_of(policy: SitePolicy, system: BatchSystem) -> Settings:
    """Return the decision's part of the policy; the batch system fills in defaults."""
    confirmations = policy.idle_confirmations
    return Settings(
        policy=policy.policy,
        policy_options=policy.policy_options,
        objective=Objective(policy.objective),
        t_fwd_s=policy.t_fwd_s,
        p_jmax=policy.p_jmax,
        skip_unstartable=policy.skip_unstartable,
        reserve_nodes_per_type=policy.reserve_nodes_per_type,
        idle_confirmations=system.idle_confirmations if confirmations is None else confirmations,
        pilot_time_limit_s=policy.pilot_time_limit_s,
        min_gap_s=policy.min_gap_s,
        gap_margin_s=policy.gap_margin_s,
        cycle_s=system.cycle_s,
        hold_idle_s=policy.hold_idle_s,
        rescale_up_guess_s=policy.rescale_up_guess_s,
        rescale_down_guess_s=policy.rescale_down_guess_s,
        max_nodes_per_trainer=policy.max_nodes_per_trainer,
        max_nodes=policy.max_nodes,
        gives_back=policy.give_back,
        eligible_node_types=tuple(policy.eligible_node_types or ()),
        explore_budget=policy.explore_budget,
        straggler_threshold=policy.straggler_threshold,
        straggler_memory_s=policy.straggler_memory_s,
        harm_slo_s=policy.harm_slo_s,
    )
