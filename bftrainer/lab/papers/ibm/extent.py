"""How many seeds each result is the mean of: in full, and shortened.

The fit used seeds 0 and 1; none of these is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.lab.papers.paper import Extent

FIRST_SEED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds(Extent):
    """Numbers of seeds."""

    table3: int
    table4: int
    figures: int
    sensitivity: int


FULL = Seeds(name="full", table3=30, table4=30, figures=30, sensitivity=10)
QUICK = Seeds(
    name="quick",
    shortened="3 seeds instead of 30 at 400 GPUs, 3 instead of 10 per row of the sensitivity",
    table3=30,
    table4=3,
    figures=30,
    sensitivity=3,
)


def seeds(number: int) -> range:
    """Return the first seeds."""
    return range(FIRST_SEED, FIRST_SEED + number)
