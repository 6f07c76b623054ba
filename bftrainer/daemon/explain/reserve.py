"""Says why a node is kept free. Pure.

A plan's own words name the policy's setting; this names the true cause where that is another.
"""

from __future__ import annotations

from bftrainer.decide.end_cost import end_cost_s
from bftrainer.decide.pool import KEPT_FREE
from bftrainer.model.decision import Plan, Settings


def true_cause(reason: str, plan: Plan, settings: Settings) -> str:
    """Return why a node is not used; ``reason``: in the plan's words."""
    if reason != KEPT_FREE or settings.reserve_nodes_per_type:
        return reason
    begin = "It is kept free for small and immediate jobs: "
    cost_s = end_cost_s(plan.memory)
    if cost_s > settings.harm_slo_s:
        return (
            f"{begin}a node comes back only {cost_s:.0f} s after its pilot was asked to leave, not"
            f" within the promised {settings.harm_slo_s:g} s (harm_slo_s)."
        )
    return f"{begin}bftrainer backs off (bftrainer report harm)."
