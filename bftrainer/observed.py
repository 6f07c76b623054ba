"""What the daemon last saw and decided; ``service`` shows it to users."""

from __future__ import annotations

from dataclasses import dataclass, field

from bftrainer.decide.types import Memory, Plan
from bftrainer.events.change import Situation
from bftrainer.poll.snapshot import Snapshot


@dataclass(slots=True, kw_only=True)
class Observed:
    """As of the last look and the last decision."""

    snapshot: Snapshot | None = None
    situation: Situation | None = None
    plan: Plan | None = None
    memory: Memory = field(default_factory=Memory)
    decisions: int = 0
    decision_seq: int | None = None
    decision_ms: float = 0.0
    decided_s: float | None = None
