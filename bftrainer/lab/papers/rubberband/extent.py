"""How many points each figure has: in full, and shortened."""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.lab.papers.paper import Extent


@dataclass(frozen=True, slots=True, kw_only=True)
class Points(Extent):
    """The points of the figures, and the sizes of samples."""

    samples: int  # of stragglers
    data_deadlines_min: tuple[int, ...]  # Fig. 10
    trials: tuple[int, ...]  # Fig. 11
    init_deadlines_min: tuple[int, ...]  # Fig. 12
    flat_from: tuple[int, ...]  # Fig. 12: no gain beyond so many GPUs
    slack: tuple[float, ...]  # Table 4: deadline over the least possible
    placements: int  # Algorithm 3


FULL = Points(
    name="full",
    samples=400,
    data_deadlines_min=(10, 12, 15, 20, 25, 30),
    trials=(16, 32, 64, 128, 256, 512),
    init_deadlines_min=(90, 100, 110, 120, 130, 140, 150, 160),
    flat_from=(11, 12, 13, 14, 16, 20, 24, 32),
    slack=(1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0, 2.5),
    placements=400,
)
QUICK = Points(
    name="quick",
    shortened="3 deadlines instead of 6 (Fig. 10) and 8 (Fig. 12), 4 numbers of trials instead of "
    "6, 100 samples instead of 400, 100 runs of placements instead of 400.",
    samples=100,
    data_deadlines_min=(10, 15, 20),
    trials=(16, 64, 128, 512),
    init_deadlines_min=(90, 120, 160),
    flat_from=(11, 13, 16, 32),
    slack=(1.05, 1.2, 1.5, 2.5),
    placements=100,
)
