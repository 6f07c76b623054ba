"""Algorithm 3: placement of trials on instances, against random studies.

A trial that fits on an instance is whole on one, a larger one has whole instances first. A trial
that has its number of GPUs stays where it is, unless a larger one needs the place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bftrainer.lab.papers.findings import Finding, percent
from bftrainer.lab.papers.rubberband.setting import Points

GPUS = 8  # p3.16xlarge, section 6.2
SIZES = (1, 2, 4, 8)  # of trials
LEAST_INSTANCES, MOST_INSTANCES = 2, 8
TIMES = 4  # that each study is placed
LEAVES, CHANGES, ANOTHER = 0.3, 0.4, 0.9  # probabilities: of a trial, of its size, of one more
SEED = 0

Placement = Mapping[str, tuple[int, ...]]  # trial -> instance of each of its GPUs


def place(
    gpus: Mapping[str, int], last: Placement, instances: int, gpus_per_instance: int
) -> dict[str, tuple[int, ...]] | None:
    """Place all trials; None: they have more GPUs together than there are.

    Args:
        gpus: of each trial.
        last: the placement until now; its trials and instances may be gone.
        instances: 0, 1, ... are there.
        gpus_per_instance: the same for all.
    """
    if sum(gpus.values()) > instances * gpus_per_instance:
        return None
    placing = _Placing(gpus, gpus_per_instance, [gpus_per_instance] * instances)
    for trial, where in last.items():
        if gpus.get(trial) == len(where) and max(where, default=0) < instances:
            placing.put(trial, list(where))
    homeless = set(gpus) - set(placing.at)
    while homeless:
        trial = min(homeless, key=lambda name: (-gpus[name], name))
        homeless.remove(trial)
        homeless |= placing.settle(trial)
    return {trial: tuple(where) for trial, where in placing.at.items()}


@dataclass(slots=True)
class _Placing:
    """A placement that is being made."""

    gpus: Mapping[str, int]
    size: int  # of an instance
    free: list[int]  # GPUs by instance
    at: dict[str, list[int]] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)  # placed in this round: they stay

    def put(self, trial: str, where: list[int]) -> None:
        """Put a trial on instances."""
        for instance in where:
            self.free[instance] -= 1
        self.at[trial] = where

    def settle(self, trial: str) -> set[str]:
        """Place a trial for good and return those that lost their place by it."""
        displaced: set[str] = set()
        where: list[int] = []
        while len(where) < self.gpus[trial]:
            unit = min(self.gpus[trial] - len(where), self.size)
            if max(self.free) < unit:
                displaced |= self._make_space(trial, unit)
            unit = min(unit, max(self.free))
            roomy = [instance for instance, free in enumerate(self.free) if free >= unit]
            best = min(roomy, key=lambda instance: (self.free[instance], instance))
            self.free[best] -= unit
            where += [best] * unit
        self.at[trial] = where
        self.settled.add(trial)
        return displaced

    def _make_space(self, trial: str, unit: int) -> set[str]:
        """Displace smaller trials from the instance on which the fewest GPUs have to go."""
        leaving: list[str] = []
        fewest = math.inf
        for instance in range(len(self.free)):
            plan = self._would_go(instance, trial, unit)
            if plan is None:
                continue
            gpus = sum(self.gpus[smaller] for smaller in plan)
            if gpus < fewest:
                fewest, leaving = gpus, plan
        for smaller in leaving:
            for instance in self.at.pop(smaller):
                self.free[instance] += 1
        return set(leaving)

    def _would_go(self, instance: int, trial: str, unit: int) -> list[str] | None:
        """Name smaller trials that would have to leave an instance; None: that is not enough."""
        movable = []
        for smaller, where in self.at.items():
            if instance in where and self._is_movable(smaller, trial):
                movable.append(smaller)
        free, leaving = self.free[instance], list[str]()
        for smaller in sorted(movable, key=lambda name: (self.gpus[name], name)):
            if free >= unit:
                break
            free += self.at[smaller].count(instance)
            leaving.append(smaller)
        if free < unit:
            return None
        return leaving

    def _is_movable(self, candidate: str, trial: str) -> bool:
        return candidate not in self.settled and self.gpus[candidate] < self.gpus[trial]


@dataclass(slots=True, kw_only=True)
class Placed:
    """The counts over all placements."""

    rounds: int = 0  # placements
    wrong: int = 0  # trials that are missing, or have another number of GPUs
    oversubscribed: int = 0  # placements
    fitting: int = 0  # trials that fit on an instance
    split: int = 0  # of these, on several
    unchanged: int = 0  # trials that had their number of GPUs before
    moved: int = 0  # of these


def replaced(histories: int) -> Placed:
    """Place so many random studies, each ``TIMES`` times."""
    counts, chance = Placed(), np.random.default_rng(SEED)
    for _ in range(histories):
        instances = int(chance.integers(LEAST_INSTANCES, MOST_INSTANCES + 1))
        last: Placement = {}
        for time in range(TIMES):
            gpus = _next(chance, last, instances * GPUS, time)
            placement = place(gpus, last, instances, GPUS) or {}
            _count(counts, gpus, last, placement)
            last = placement
    return counts


def alg3(finding: Finding, extent: Points) -> None:
    """Count oversubscribed instances, trials that are split, and those that are moved."""
    counts = replaced(extent.placements)
    n_over = counts.oversubscribed + counts.wrong
    finding.line("over", float(n_over), of=counts.rounds)
    finding.line("split", float(counts.split), of=counts.fitting)
    finding.line("moved", percent(counts.moved / counts.unchanged), of=counts.unchanged)


def _next(chance: np.random.Generator, last: Placement, room: int, time: int) -> dict[str, int]:
    """Draw the next trials: some have left, some have other sizes, some are new."""
    gpus: dict[str, int] = {}
    for trial, where in last.items():
        if chance.random() < LEAVES:
            continue
        size = len(where)
        if chance.random() < CHANGES:
            size = int(chance.choice(SIZES))
        if size <= room:
            gpus[trial] = size
            room -= size
    while room and chance.random() < ANOTHER:
        size = int(chance.choice(SIZES))
        if size <= room:
            gpus[f"{time}-{len(gpus)}"] = size
            room -= size
    return gpus


def _count(counts: Placed, gpus: dict[str, int], last: Placement, placement: Placement) -> None:
    gpus_used = Counter[int]()  # GPUs by instance
    for where in placement.values():
        gpus_used.update(where)
    counts.rounds += 1
    counts.oversubscribed += max(gpus_used.values(), default=0) > GPUS
    counts.wrong += len(set(placement) - set(gpus))
    for trial, size in gpus.items():
        where = placement.get(trial, ())
        counts.wrong += len(where) != size
        if size <= GPUS:
            counts.fitting += 1
            counts.split += len(set(where)) > 1
        if len(last.get(trial, ())) == size:
            counts.unchanged += 1
            counts.moved += sorted(where) != sorted(last[trial])
