"""Runs of a cell, seed by seed → its figures, and the targets. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from _bench.site.arms import Arm, Harvest, Outcome
from _bench.site.cells import Cell
from _bench.targets import Target

MOST_AVOIDABLE = 5.0  # per 1,000 backfill starts
FEWEST_STARTS = 2000
MOST_ADDED = 0.01  # of the mean wait
LEAST_HARVEST = ((0.5, 0.90), (math.inf, 0.75))  # cycle, of an interval; share of the oracle
# Student's t, two-sided 95%, by degrees of freedom.
T_95 = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16,
        2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06)  # fmt: skip
Runs = Mapping[Arm, Outcome]  # of one seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values and its interval; of one value it is infinite."""
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean=mean, low=-math.inf, high=math.inf)
    t = T_95[min(len(values) - 1, len(T_95) - 1)]
    half = t * stdev(values) / math.sqrt(len(values))
    return Interval(mean=mean, low=mean - half, high=mean + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """All that is said of a cell."""

    cell: Cell
    seeds: int
    starts: int  # by backfill, with bftrainer
    avoidable: int
    lost_per_1000: Mapping[Arm, float]
    added: tuple[float, ...]  # seed by seed, of the mean wait without
    wait_s: float  # without
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
        added=tuple(added_wait(one["without"], one["bftrainer"]) for one in runs),
        wait_s=fmean(fmean(one["without"].waits_s.values()) for one in runs),
        refused={arm: sum(one.refused for one in found) for arm, found in known.items()},
        harvest=_sum(harvests),
        cpu_s={arm: sum(one.cpu_s for one in found) for arm, found in known.items()},
    )


def added_wait(without: Outcome, beside: Outcome) -> float:
    """Return what all jobs waited longer beside, of what they waited without."""
    both = without.waits_s.keys() & beside.waits_s.keys()
    before_s = fmean(without.waits_s[k] for k in both)
    after_s = fmean(beside.waits_s[k] for k in both)
    return (after_s - before_s) / before_s


def _lost_per_1000(runs: Sequence[Outcome]) -> float:
    return 1000.0 * sum(r.lost for r in runs) / max(1, sum(r.backfill_starts for r in runs))


def _sum(harvests: Sequence[Harvest]) -> Harvest:
    return Harvest(
        held_s=sum(h.held_s for h in harvests),
        oracle_s=sum(h.oracle_s for h in harvests),
        idle_s=sum(h.idle_s for h in harvests),
        submissions=sum(h.submissions for h in harvests),
        releases=sum(h.releases for h in harvests),
        decisions=sum(h.decisions for h in harvests),
        decide_s=sum(h.decide_s for h in harvests),
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
    added = interval([value for found in cells for value in found.added])
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
            note=f"mean {100 * added.mean:.2f}%, from {100 * added.low:.2f}%, "
            f"{sum(len(f.added) for f in cells)} pairs",
        ),
    ]
