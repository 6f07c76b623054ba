"""Counts the pilots that a trainer used up without a step, and says when they are too many. No I/O.

Whatever the cause (an agent that never connects, nodes that go at once, a fault of ours), such a
trainer costs the batch system a request and an end again and again. ``actuate.pilot_refusals``
makes it pause.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from bftrainer.model.trainer import TrainerRecord

TIMES = 5  # a trainer's smallest size
SHOWN = 5  # of its pilots


@dataclass(slots=True, kw_only=True)
class _Used:
    """Of one trainer, since its last step."""

    step: int
    by_plan: Counter[int] = field(default_factory=Counter)  # pilots, by when they were requested
    latest: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN))


class VainPilots:
    """Of all trainers of one daemon."""

    def __init__(self) -> None:
        self._used: dict[str, _Used] = {}

    def ended(
        self, record: TrainerRecord, pilot_id: str, node: str, requested_s: float, how: str
    ) -> str:
        """Record the end of a pilot of a trainer; return what to say of it, "": nothing yet.

        Pilots that one plan requests beyond n_min count as n_min: many may go at once.
        """
        if record.state.is_final or self.has_stepped(record):
            self._used.pop(record.trainer_id, None)
        if record.state.is_final:
            return ""
        used = self._used.setdefault(record.trainer_id, _Used(step=record.progress.step))
        used.step = min(used.step, record.progress.step)  # less after a loss of all nodes
        used.by_plan[int(requested_s)] += 1
        used.latest.append(f"{pilot_id} on {node}: {how or 'it ended.'}")
        n_min = record.spec.n_min
        if sum(min(n_min, count) for count in used.by_plan.values()) < TIMES * n_min:
            return ""
        return (
            f"BFT-1311: It used {used.by_plan.total()} pilots without a step, so requests for it"
            f" pause. The latest: {' '.join(used.latest)} See 'bftrainer logs"
            f" {record.trainer_id}', and in the state directory pilots/ID/ of these."
        )

    def has_stepped(self, record: TrainerRecord) -> bool:
        """Whether a trainer has made a step since pilots of it are counted."""
        used = self._used.get(record.trainer_id)
        return used is not None and record.progress.step > used.step
