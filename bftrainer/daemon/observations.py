"""What the daemon last observed and decided; ``service`` shows it to users."""

from __future__ import annotations

from dataclasses import dataclass, field

from bftrainer.model.cluster import Snapshot
from bftrainer.model.decision import DecisionInput, Memory, Plan
from bftrainer.model.event import Situation


@dataclass(slots=True, kw_only=True)
class Observed:
    """As of the last poll and the last decision."""

    snapshot: Snapshot | None = None
    situation: Situation | None = None
    plan: Plan | None = None
    given: DecisionInput | None = None  # that the plan follows from
    memory: Memory = field(default_factory=Memory)
    decisions: int = 0
    decision_ms: float = 0.0
    decided_s: float | None = None

    def is_to_wake(self, now_s: float) -> bool:
        """Whether the policy asked for a decision by now."""
        wake_at_s = self.plan.wake_at_s if self.plan is not None else None
        return wake_at_s is not None and wake_at_s <= now_s
