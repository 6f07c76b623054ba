"""The memory of a worker by the number of nodes, and the smallest number on which it fits. Pure.

Parameters and optimizer take the same at every number of nodes, also where they are sharded over
the workers of a node. What falls with the share of the global batch, the activations, is
proportional to the samples of a pass. So memory is a straight line in the samples, measured at
some numbers of nodes. Called by ``cli.profile``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from milp.portable import interpolated


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The most memory that one of a node's workers takes."""

    samples: tuple[int, ...]  # of a worker's largest pass, where it was measured; rising
    peak_bytes: tuple[int, ...]  # not falling
    passes: tuple[int, ...]  # samples of the largest pass on 1, 2, 3 ... nodes
    failed: int = 0  # on so many nodes, and on fewer, there was too little; 0: nowhere

    def at_bytes(self, nodes: int) -> float:
        """Return the memory on so many nodes, interpolated; along the nearest two beyond.

        Infinite where it is more than the only one that is known.
        """
        samples = self.passes[min(nodes, len(self.passes)) - 1]
        first, last = self.samples[0], self.samples[-1]
        if len(self.samples) == 1 and samples > first:
            return math.inf
        if len(self.samples) == 1 or first <= samples <= last:
            return interpolated(samples, self.samples, self.peak_bytes)
        i = 0
        if samples > last:
            i = len(self.samples) - 2
        (a, b), (low, high) = self.samples[i : i + 2], self.peak_bytes[i : i + 2]
        return max(0.0, low + (high - low) * (samples - a) / (b - a))

    def fits_from(self, limit_bytes: float = 0.0) -> int | None:
        """Return the smallest number of nodes on which a worker fits; None: it never does.

        Args:
            limit_bytes: memory of a worker; 0: not known. Then what was enough is.
        """
        limit_bytes = limit_bytes or self.peak_bytes[-1]
        sizes = range(self.failed + 1, len(self.passes) + 1)
        return next((n for n in sizes if self.at_bytes(n) <= limit_bytes), None)


def memory_use(
    measured: Sequence[tuple[int, int]], passes: Sequence[int], failed: int = 0
) -> MemoryUse:
    """Return the use of (samples, bytes), at least one pair; fewer samples never need more."""
    peak_of: dict[int, int] = {}
    for samples, peak in measured:
        peak_of[samples] = max(peak, peak_of.get(samples, 0))
    rising = sorted(peak_of)
    peaks = [peak_of[samples] for samples in rising]
    return MemoryUse(
        samples=tuple(rising),
        peak_bytes=tuple(accumulate(peaks, max)),
        passes=tuple(passes),
        failed=failed,
    )
