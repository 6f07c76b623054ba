"""The clusters of section 7, assumptions about the jobs, and the published values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftrainer.lab.papers.elasticity.simulator import ASSUMED
from bftrainer.lab.papers.findings import read_expected
from bftrainer.lab.papers.paper import Extent


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticityScenario:
    """64 GPUs and 60 machines without; everything else is drawn."""

    is_papers: bool = True

    def remarks(self) -> list[str]:
        """Return the assumptions."""
        return [f"Assumed, {what}: {assumed}." for what, assumed in ASSUMED.items()]

    def summary(self) -> str:
        """Return one sentence for the report."""
        return (
            "One job at a time on 64 GPUs or 60 machines; its size follows the scaling rule of "
            "the policies throughput-scaling and utility."
        )

    def document(self) -> dict[str, Any]:
        """Return the section ``clusters`` of the JSON document."""
        return {"clusters": {"gpus": 64, "cpu_machines": 60, "assumed": dict(ASSUMED)}}


def choose_scenario(_: Path | None, __: Path | None, ___: Extent) -> ElasticityScenario:
    """Return the paper's clusters; there is nothing to read."""
    return ElasticityScenario()


FIRST_SEED = 1000  # the assumptions were chosen with others


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticitySeeds(Extent):
    """Numbers of seeds."""

    jobs: int  # Figs. 6 to 8
    stragglers: int  # Figs. 9 and 10
    noise: int


FULL = ElasticitySeeds(name="full", jobs=30, stragglers=10, noise=400)
QUICK = ElasticitySeeds(
    name="quick",
    shortened="10 seeds instead of 30 (Figs. 9 and 10: 2 instead of 10; noise: 40 instead of 400).",
    jobs=10,
    stragglers=2,
    noise=40,
)


def seeds(number: int) -> range:
    """Return the first seeds."""
    return range(FIRST_SEED, FIRST_SEED + number)


EXPECTED = read_expected(__package__)
