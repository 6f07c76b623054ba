"""The clusters of section 6, with measured speeds where somebody has put them, else synthetic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftrainer.lab.papers.dl2.setting import ASSUMED, TESTBED
from bftrainer.lab.papers.dl2.speeds import RECORDS, read_speeds
from bftrainer.lab.papers.paper import Extent


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """What is simulated."""

    folder: Path | None
    is_papers: bool  # the speeds are measured

    def remarks(self) -> list[str]:
        """Return where the speeds come from, and the assumptions."""
        speeds = (
            "Speeds are those that the authors measured."
            if self.is_papers
            else "Speeds are synthetic, so no published value can be expected: the measured ones "
            f"carry no licence, and BFTRAINER_DATA has no {RECORDS}."
        )
        return [speeds, *(f"Assumed, {what}: {assumed}." for what, assumed in ASSUMED.items())]

    def summary(self) -> str:
        """Return one sentence for the report."""
        return (
            "Parameter-server jobs of eight models in slots of 20 min, on 13 nodes (testbed) and "
            "on 500."
        )

    def document(self) -> dict[str, Any]:
        """Return the section ``clusters`` of the JSON document."""
        return {"clusters": {"measured_speeds": self.is_papers, "assumed": dict(ASSUMED)}}


def choose_scenario(_: Path | None, folder: Path | None, __: Extent) -> Clusters:
    """Return the clusters.

    Raises:
        UsageError: BFT-4171, the file of speeds is not one.
    """
    is_measured = read_speeds(folder, TESTBED)[1]
    return Clusters(folder=folder, is_papers=is_measured)
