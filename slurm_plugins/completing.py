"""Nodes that are cleared after a job: how long that takes here, and where it hangs.

Slurm calls a node completing until its job's processes are gone and its epilog has ended. That
is a moment, so such a node counts as on its way back; one that hangs is neither free nor
ours. How long a site's epilogs take is learnt from all its nodes. Names of completing nodes
come in from ``slurm_plugins.snapshot`` at every look, all times are of one clock. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from statistics import median

LEAST_S = 5.0  # is always waited for
FACTOR = 3.0  # times what is usual
REMEMBERED = 15


@dataclass(slots=True)
class Completing:
    """Since when nodes are completing, and how long it took the last ones."""

    since_s: dict[str, float] = field(default_factory=dict)
    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def hanging(self, completing: AbstractSet[str], now_s: float) -> set[str]:
        """Take over a look; return the nodes that take longer than is to be expected."""
        for node in self.since_s.keys() - completing:
            self.took_s.append(now_s - self.since_s.pop(node))
        for node in completing:
            self.since_s.setdefault(node, now_s)
        expected_s = max(LEAST_S, FACTOR * median(self.took_s or (0.0,)))
        return {node for node, since_s in self.since_s.items() if now_s - since_s > expected_s}
