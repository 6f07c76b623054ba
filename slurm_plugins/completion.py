"""Nodes that Slurm clears after a job: how long that takes here, and where it hangs.

Slurm calls a node completing until its job's processes are gone and its epilog has ended. That is
short, so such a node counts as coming back; one that hangs is neither free nor ours. The usual
time is learnt from all nodes. ``slurm_plugins.snapshot`` passes in the completing nodes of every
poll; all times are of one clock. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from statistics import median

LEAST_S = 5.0  # never hanging before that
FACTOR = 3.0  # times the usual duration
REMEMBERED = 15


@dataclass(slots=True)
class Completing:
    """Since when nodes are completing, and the latest durations."""

    since_s: dict[str, float] = field(default_factory=dict)
    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def hanging(self, completing: AbstractSet[str], now_s: float) -> set[str]:
        """Process a poll; return the nodes that take longer than expected."""
        for node in self.since_s.keys() - completing:
            self.took_s.append(now_s - self.since_s.pop(node))
        for node in completing:
            self.since_s.setdefault(node, now_s)
        expected_s = max(LEAST_S, FACTOR * median(self.took_s or (0.0,)))
        return {node for node, since_s in self.since_s.items() if now_s - since_s > expected_s}
