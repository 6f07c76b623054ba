"""The clusters of section IV, assumptions about them, and the published values.

The fit used seeds 0 and 1; none of these is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftrainer.lab.papers.findings import read_expected
from bftrainer.lab.papers.ibm.jobs import GPUS_PER_MACHINE, IbmWorld, read_world
from bftrainer.lab.papers.paper import Extent

EXPECTED = read_expected(__package__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPool:
    """A pool of equal GPUs; everything else is drawn."""

    world: IbmWorld
    is_papers: bool = True

    def remarks(self) -> list[str]:
        """Return the assumptions: what the paper does not say, and what speaks for ours."""
        one, two, three, four = self.world.categories
        words = {
            "caps": f"{one.cap}, {two.cap}, {three.cap}, {four.cap}",
            "fixed": f"{one.fixed:g}, {two.fixed:g}, {three.fixed:g}",
            "comm": f"{one.comm:g}, {two.comm:g}, {three.comm:g}",
            "between_machines": f"{self.world.between_machines:g}",
            "high": dict(self.world.high),
            "low": dict(self.world.low),
            "k_max": self.world.k_max,
        }
        return [
            f"Assumed {assumed.format(**words)}: {why}."
            for assumed, why in EXPECTED.tables["assumptions"]["rows"].items()
        ]

    def summary(self) -> str:
        """Return one sentence for the report."""
        return (
            "The paper's discrete-event simulation (section III-E) of 40 and 400 GPUs, with the "
            "dynamic program of the policy ibm-dp."
        )

    def document(self) -> dict[str, Any]:
        """Return the section ``cluster`` of the JSON document."""
        return {"cluster": {"gpus_per_machine": GPUS_PER_MACHINE, "k_max": self.world.k_max}}


def choose_scenario(_: Path | None, __: Path | None, ___: Extent) -> GpuPool:
    """Return the paper's cluster; there is nothing to read."""
    return GpuPool(world=read_world("ordered"))


FIRST_SEED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class IbmSeeds(Extent):
    """Numbers of seeds."""

    table3: int
    table4: int
    figures: int
    sensitivity: int


FULL = IbmSeeds(name="full", table3=30, table4=30, figures=30, sensitivity=10)
QUICK = IbmSeeds(
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
