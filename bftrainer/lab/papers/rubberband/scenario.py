"""The rented instances of section 6, and what had to be assumed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftrainer.lab.papers.paper import Extent
from bftrainer.lab.papers.rubberband.setting import ASSUMED, GPUS_PER_INSTANCE, PRICE_H


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """As many equal instances as one likes."""

    is_papers: bool = True

    def remarks(self) -> list[str]:
        """Return the assumptions."""
        return [f"Assumed, {what}: {assumed}." for what, assumed in ASSUMED.items()]

    def summary(self) -> str:
        """Return one sentence for the report."""
        return (
            "Studies on p3.8xlarge (4 GPUs), planned with the planners of bftrainer study plan: "
            "static, naive, the paper's Algorithm 2, and exact."
        )

    def document(self) -> dict[str, Any]:
        """Return the section ``cloud`` of the JSON document."""
        return {
            "cloud": {
                "gpus_per_instance": GPUS_PER_INSTANCE,
                "price_h": PRICE_H,
                "assumed": dict(ASSUMED),
            }
        }


def choose_scenario(_: Path | None, __: Path | None, ___: Extent) -> Rented:
    """Return the paper's cloud; there is nothing to read."""
    return Rented()
