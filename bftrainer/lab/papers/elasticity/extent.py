"""How many seeds each result is the mean of: in full, and shortened."""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.lab.papers.paper import Extent

FIRST_SEED = 1000  # the assumptions were chosen with others


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds(Extent):
    """Numbers of seeds."""

    jobs: int  # Figs. 6 to 8
    stragglers: int  # Figs. 9 and 10
    noise: int


FULL = Seeds(name="full", jobs=30, stragglers=10, noise=400)
QUICK = Seeds(
    name="quick",
    shortened="10 seeds instead of 30 (Figs. 9 and 10: 2 instead of 10; noise: 40 instead of 400).",
    jobs=10,
    stragglers=2,
    noise=40,
)


def seeds(number: int) -> range:
    """Return the first seeds."""
    return range(FIRST_SEED, FIRST_SEED + number)
