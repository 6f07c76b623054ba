"""Runs of a cell, seed by seed → its figures, and the targets. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from operator import attrgetter
from statistics import fmean

from _bench.stats import Interval
from _bench.targets import Target, at_least, at_most
from bftrainer.lab.site.arms import Arm, ArmOutcome, Harvest
from bftrainer.lab.site.workload import Cell

MOST_AVOIDABLE = 5.0  # per 1,000 backfill starts
FEWEST_STARTS = 2000
MOST_ADDED = 0.01  # of the mean wait
LEAST_HARVEST = ((0.5, 0.90), (math.inf, 0.75))  # cycle, of an interval; share of the oracle
Z_95 = 1.96
Runs = Mapping[Arm, ArmOutcome]  # of one seed
WAIT_S, REFUSED, CPU_S = attrgetter("wait_s"), attrgetter("refused"), attrgetter("cpu_s")


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
    with_us = [outcomes["bftrainer"] for outcomes in runs]
    of_arms: dict[Arm, list[ArmOutcome]] = {"without": [], "bftrainer": [], "preemptable": []}
    for outcomes in runs:
        for arm, outcome in outcomes.items():
            of_arms[arm].append(outcome)
    played = {arm: outcomes for arm, outcomes in of_arms.items() if outcomes}
    return Judged(
        cell=cell,
        seeds=len(runs),
        starts=sum(outcome.backfill_starts for outcome in with_us),
        avoidable=sum(outcome.avoidable for outcome in with_us),
        lost_per_1000={arm: _lost_per_1000(outcomes) for arm, outcomes in played.items()},
        blocks=tuple(chain.from_iterable(outcome.blocks for outcome in with_us)),
        wait_s={arm: fmean(map(WAIT_S, outcomes)) for arm, outcomes in played.items()},
        refused={arm: sum(map(REFUSED, outcomes)) for arm, outcomes in of_arms.items()},
        harvest=_sum([outcome.harvest for outcome in with_us if outcome.harvest is not None]),
        cpu_s={arm: sum(map(CPU_S, outcomes)) for arm, outcomes in of_arms.items()},
    )


def _lost_per_1000(runs: Sequence[ArmOutcome]) -> float:
    n_starts = sum(outcome.backfill_starts for outcome in runs)
    return 1000.0 * sum(outcome.lost for outcome in runs) / max(1, n_starts)


def _sum(harvests: Sequence[Harvest]) -> Harvest:
    causes_s: Counter[str] = Counter()
    for harvest in harvests:
        causes_s.update(harvest.causes_s)
    names = [part.name for part in fields(Harvest) if part.name != "causes_s"]
    sums = {name: sum(map(attrgetter(name), harvests)) for name in names}
    return Harvest(**sums, causes_s=dict(+causes_s))  # of a Counter, asdict would count the pairs


def least_harvest(cell: Cell) -> float:
    """Return the share of the oracle's that this cell has to reach."""
    cycle_share = cell.bf_duration_s / cell.bf_interval_s
    for longest_cycle, harvest_share in LEAST_HARVEST:
        if cycle_share <= longest_cycle:
            return harvest_share
    raise ValueError("a cycle is longer than any")  # the last row of the table has no end


def targets(cells: Sequence[Judged]) -> list[Target]:
    """Return what the grid has to reach."""
    reached = []
    for judgement in cells:
        name = judgement.cell.name
        reached.append(
            at_most(
                f"{name}: avoidable lost cycles",
                1000.0 * judgement.avoidable / max(1, judgement.starts),
                MOST_AVOIDABLE,
                "per 1,000",
                f"{judgement.avoidable} of {judgement.starts} backfill starts",
            )
        )
        reached.append(
            at_least(
                f"{name}: held, of the oracle",
                100.0 * judgement.of_oracle,
                100.0 * least_harvest(judgement.cell),
                "%",
                f"{judgement.harvest.oracle_s / 3600:,.0f} node-h",
            )
        )
    starts = sum(judgement.starts for judgement in cells)
    reached.append(at_least("backfill starts in all", starts, FEWEST_STARTS, "starts"))
    blocks = list(chain.from_iterable(judgement.blocks for judgement in cells))
    wait = added_wait(blocks)
    basis = f"mean {100 * wait.mean:.2f}%, from {100 * wait.low:.2f}%, {len(blocks)} blocks"
    name = "added wait of all jobs, upper end"
    ends = 100.0 * wait.low, 100.0 * wait.high
    reached.append(at_most(name, ends[1], 100.0 * MOST_ADDED, "%", basis, interval=ends))
    return reached
