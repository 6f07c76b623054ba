"""The cells of the proof: Slurm's settings and how bftrainer watches. Plain data.

Cells with equal Slurm settings share their runs without bftrainer. Read by
``bench_zero_harm`` and ``arm``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slurm_plugins.testcluster.config import ClusterConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How Slurm is set up."""

    name: str
    bf_interval_s: int = 30
    preempt_type: Literal["partition_prio", "qos"] = "partition_prio"
    grace_time_s: int = 0
    is_deferred: bool = False

    def cluster(self, directory: Path, n_nodes: int, ticks: str) -> ClusterConfig:
        """Return the test cluster; the hook's scripts write only if a daemon wants them.

        ``ticks``: further scheduler parameters, the same for all cells.
        """
        return ClusterConfig(
            directory=directory,
            n_nodes=n_nodes,
            gpus_per_node=0,
            bf_interval_s=self.bf_interval_s,
            scheduler_parameters=",".join(
                filter(None, ("defer" if self.is_deferred else "", ticks))
            ),
            has_hook=True,
            grace_time_s=self.grace_time_s,
            preempt_type=self.preempt_type,
            accounting=self.preempt_type == "qos",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row of the result."""

    name: str
    settings: Settings
    is_told: bool = True  # by the hook; otherwise a look per second
    must_pass: bool = False  # harm is judged; elsewhere its cost is the result
    max_lost_cycles: float | None = None  # largest share of jobs that may lose a cycle


TIER = Settings(name="tier-bf30")
QOS = Settings(name="qos-bf30", preempt_type="qos")
TIER_5 = Settings(name="tier-bf5", bf_interval_s=5)
GRACE = Settings(name="grace30", grace_time_s=30)
DEFER = Settings(name="defer", is_deferred=True)

CELLS = (
    Cell(name="tier", settings=TIER, must_pass=True),
    Cell(name="qos", settings=QOS, must_pass=True),
    Cell(name="tier-bf5", settings=TIER_5, must_pass=True),
    Cell(name="polling", settings=TIER, is_told=False, max_lost_cycles=0.05),
    Cell(name="grace", settings=GRACE),
    Cell(name="defer", settings=DEFER),
)
