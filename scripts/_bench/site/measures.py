"""Runs of a cell, seed by seed → its figures, and the targets. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from _bench.targets import Target
from bftrainer.lab.site.arms import Arm, ArmOutcome, Harvest
from bftrainer.lab.site.workload import Cell

MOST_AVOIDABLE = 5.0  # per 1,000 backfill starts
FEWEST_STARTS = 2000
MOST_ADDED = 0.01  # of the mean wait
LEAST_HARVEST = ((0.5, 0.90), (math.inf, 0.75))  # cycle, of an interval; share of the oracle
Z_95 = 1.96
Runs = Mapping[Arm, ArmOutcome]  # of one seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float


def added_wait(blocks: Sequence[tuple[float, float]]) -> Interval:
    """Return what was waited longer beside bftrainer, of what was waited without.

    Args:
        blocks: job-seconds of each, without and beside; they are independent of each other.
    """
    without_s = sum(before_s for before_s, _ in blocks)
    if len(blocks) < 2 or without_s <= 0.0:
        return Interval(mean=0.0, low=-math.inf, high=math.inf)
    ratio = sum(after_s for _, after_s in blocks) / without_s - 1.0
    spread = sum((after_s - (1.0 + ratio) * before_s) ** 2 for before_s, after_s in blocks)
    half = Z_95 * math.sqrt(spread * len(blocks) / (len(blocks) - 1)) / without_s
    return Interval(mean=ratio, low=ratio - half, high=ratio + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """All that is said of a cell."""

    cell: Cell
    seeds: int
    starts: int  # by backfill, with bftrainer
    avoidable: int
    lost_per_1000: Mapping[Arm, float]
    blocks: tuple[tuple[float, float], ...]  # of all seeds: job-seconds waited without, beside
    wait_s: Mapping[Arm, float]  # the mean of all jobs
    refused: Mapping[Arm, int]  # immediate jobs
    harvest: Harvest  # of all seeds
    cpu_s: Mapping[Arm, float]

    @property
    def of_oracle(self) -> float:
        """Share of what the oracle held."""
        return self.harvest.held_s / self.harvest.oracle_s if self.harvest.oracle_s else 1.0

    @property
    def submissions_per_node_h(self) -> float:
        """How often bftrainer asks for a pilot."""
        return self.harvest.submissions / (self.cell.n_nodes * self.cell.hours * self.seeds)

    @property
    def pilots_per_first_step(self) -> float:
        """Pilots requested by those whose node made a first step."""
        return self.harvest.pilots / max(1, self.harvest.pilots_trained)

    @property
    def decide_ms(self) -> float:
        """Processor time of a decision."""
        return 1000.0 * self.harvest.decide_s / max(1, self.harvest.decisions)


def judge(cell: Cell, runs: Sequence[Runs]) -> Judged:
    """Put the seeds of a cell together; each has to have its runs with bftrainer and without."""
    ours = [one["bftrainer"] for one in runs]
    arms: tuple[Arm, ...] = ("without", "bftrainer", "preemptable")
    known = {arm: [one[arm] for one in runs if arm in one] for arm in arms}
    harvests = [one.harvest for one in ours if one.harvest is not None]
    return Judged(
        cell=cell,
        seeds=len(runs),
        starts=sum(one.backfill_starts for one in ours),
        avoidable=sum(one.avoidable for one in ours),
        lost_per_1000={arm: _lost_per_1000(found) for arm, found in known.items() if found},
        blocks=tuple(block for one in ours for block in one.blocks),
        wait_s={arm: fmean(one.wait_s for one in found) for arm, found in known.items() if found},
        refused={arm: sum(one.refused for one in found) for arm, found in known.items()},
        harvest=_sum(harvests),
        cpu_s={arm: sum(one.cpu_s for one in found) for arm, found in known.items()},
    )


def _lost_per_1000(runs: Sequence[ArmOutcome]) -> float:
    return 1000.0 * sum(r.lost for r in runs) / max(1, sum(r.backfill_starts for r in runs))


def _sum(harvests: Sequence[Harvest]) -> Harvest:
    return Harvest(
        held_s=sum(h.held_s for h in harvests),
        trained_s=sum(h.trained_s for h in harvests),
        oracle_s=sum(h.oracle_s for h in harvests),
        idle_s=sum(h.idle_s for h in harvests),
        submissions=sum(h.submissions for h in harvests),
        releases=sum(h.releases for h in harvests),
        pilots=sum(h.pilots for h in harvests),
        pilots_trained=sum(h.pilots_trained for h in harvests),
        decisions=sum(h.decisions for h in harvests),
        decide_s=sum(h.decide_s for h in harvests),
        causes_s=dict(sum((Counter(h.causes_s) for h in harvests), Counter())),
    )


def least_harvest(cell: Cell) -> float:
    """Return the share of the oracle's that this cell has to reach."""
    share = cell.bf_duration_s / cell.bf_interval_s
    return next(least for most, least in LEAST_HARVEST if share <= most)


def targets(cells: Sequence[Judged]) -> list[Target]:
    """Return what the grid has to reach."""
    wanted = []
    for found in cells:
        name = found.cell.name
        wanted += [
            Target(
                name=f"{name}: avoidable lost cycles",
                measured=1000.0 * found.avoidable / max(1, found.starts),
                limit=MOST_AVOIDABLE,
                relation="<=",
                unit="per 1,000",
                note=f"{found.avoidable} of {found.starts} backfill starts",
            ),
            Target(
                name=f"{name}: held, of the oracle",
                measured=100.0 * found.of_oracle,
                limit=100.0 * least_harvest(found.cell),
                relation=">=",
                unit="%",
                note=f"{found.harvest.oracle_s / 3600:,.0f} node-h",
            ),
        ]
    starts = sum(found.starts for found in cells)
    blocks = [block for found in cells for block in found.blocks]
    added = added_wait(blocks)
    return [
        *wanted,
        Target(
            name="backfill starts in all",
            measured=starts,
            limit=FEWEST_STARTS,
            relation=">=",
            unit="starts",
        ),
        Target(
            name="added wait of all jobs, upper end",
            measured=100.0 * added.high,
            limit=100.0 * MOST_ADDED,
            relation="<=",
            unit="%",
            note=f"mean {100 * added.mean:.2f}%, from {100 * added.low:.2f}%, {len(blocks)} blocks",
        ),
    ]
