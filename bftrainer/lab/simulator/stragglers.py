"""Slow nodes in a physical replay.

A share of the trace's nodes, drawn once by the seed, reaches only a fraction of the usual
throughput. A trainer is as fast as its slowest node; a slow node is detected after its trainer
has trained with other nodes for a while. Called by ``physical`` and ``session``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bftrainer.decide.throughput.stragglers import ALPHA


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """Which nodes are slow, as the user chooses."""

    share: float  # of the nodes, 0 to 1
    fraction: float  # of the usual throughput, in (0, 1)


@dataclass(slots=True, kw_only=True)
class SlowNodes:
    """The slow nodes of one replay, and what has been found of them."""

    fractions: Mapping[str, float] = field(default_factory=dict)
    threshold: float = 0.0  # 0: nobody looks
    report_s: float = 0.5  # between two reports of a worker
    _since_s: dict[tuple[str, str], float] = field(default_factory=dict)  # (trainer, node)

    def pace(self, nodes: Iterable[str]) -> float:
        """What trainers on these nodes reach of their usual throughput."""
        return min([self.fractions.get(node, 1.0) for node in nodes], default=1.0)

    def look(self, training: Mapping[str, str], now_s: float) -> None:
        """Note which slow nodes train, beside others, since when."""
        if not self.fractions:
            return
        sizes: dict[str, int] = {}
        for trainer_id in training.values():
            sizes[trainer_id] = sizes.get(trainer_id, 0) + 1
        here = {
            (trainer_id, node)
            for node, trainer_id in training.items()
            if node in self.fractions and sizes[trainer_id] > 1
        }
        self._since_s = {pair: self._since_s.get(pair, now_s) for pair in here}

    def speeds(self, now_s: float) -> dict[str, float]:
        """The slow nodes that were found, with their fractions."""
        return {
            node: self.fractions[node]
            for (trainer_id, node), since_s in self._since_s.items()
            if now_s >= since_s + self.found_after_s(node)
        }

    def next_found_s(self, now_s: float) -> float:
        """When the next one is found."""
        times = [since_s + self.found_after_s(node) for (_, node), since_s in self._since_s.items()]
        return min([at_s for at_s in times if at_s > now_s], default=math.inf)

    def found_after_s(self, node: str) -> float:
        """How long the moving average needs to fall below the threshold."""
        fraction = self.fractions[node]
        if fraction >= self.threshold:
            return math.inf
        left = (self.threshold - fraction) / (1.0 - fraction)
        return self.report_s * math.ceil(math.log(left) / math.log(1.0 - ALPHA))


def draw(
    names: Sequence[str], injection: Injection | None, threshold: float, seed: int
) -> SlowNodes:
    """Choose the slow nodes of a trace."""
    if injection is None:
        return SlowNodes()
    chance = random.Random(seed)  # noqa: S311 - a replay, reproducible by its seed
    chosen = chance.sample(sorted(names), round(injection.share * len(names)))
    return SlowNodes(fractions=dict.fromkeys(chosen, injection.fraction), threshold=threshold)
