"""The progress of a study by number of nodes, and the time at which it is done. Pure.

Trials do not take equally long, and a stage waits for the longest one. By then the nodes of the
others are free, so that it ends on as many as it can use: that is added to the stage's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from bftrainer.study.deadline.futures import Counts
from bftrainer.study.plan.problem import ScalingProfile, rung_stages
from bftrainer.study.rungs import Asha, Full, Median, Pbt, Sha, Stopping
from bftrainer.study.trials import StudyRule

Floats = NDArray[np.float64]
SPREAD = 0.05  # standard deviation of trials' times, as ``study plan --spread`` takes it
MOST_NODES = 200_000  # of a pool and a reserve; more are not told apart
LEAST_UNIT_S = 1e-6  # a unit is not told to be shorter: rates stay finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Trials that train before those of the next part begin."""

    trials: int
    units: float  # of one trial, on the average


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The training that a study has to do, and the speed of a trial."""

    parts: tuple[Part, ...]
    scaling: ScalingProfile  # its GPUs are nodes here; its spread is that of trials
    parallel: int | None = None  # trials at once; None: as the pool has room

    @property
    def most_nodes(self) -> int:
        """Nodes beyond which nothing gets faster, at most ``MOST_NODES``."""
        return min(MOST_NODES, max(self._wide(part) for part in self.parts) * self._n_max)

    def rates(self) -> Floats:
        """Return the share of each part done in a second by 0 to ``most_nodes`` nodes."""
        most = max(self.scaling.n_min, min(self._n_max, self.most_nodes))
        sizes = np.arange(self.scaling.n_min, most + 1)
        per_s = np.array([1.0 / self._mean_s(size) for size in sizes.tolist()])
        return np.stack([1.0 / self._part_s(part, sizes, per_s) for part in self.parts])

    def least_s(self) -> float:
        """Return how long the study takes on as many nodes as it can use."""
        unit_s = self._mean_s(self._n_max)
        waves = ((part, -(-part.trials // self._wide(part))) for part in self.parts)
        return sum(part.units * count * unit_s + self._longer_s(part) for part, count in waves)

    @property
    def _n_max(self) -> int:
        return self.scaling.n_max or max(self.scaling.gpus)

    def _mean_s(self, size: int) -> float:
        return max(LEAST_UNIT_S, self.scaling.mean_s(size))

    def _wide(self, part: Part) -> int:
        return min(part.trials, self.parallel or part.trials)

    def _longer_s(self, part: Part) -> float:
        """Return how much longer the longest trial of a part is, on as many nodes as it can use.

        The mean of the longest of as many normal ones as train at once, by Blom (1958).
        """
        wide = self._wide(part)
        longest = NormalDist().inv_cdf((wide - 0.375) / (wide + 0.25)) if wide > 1 else 0.0
        return self.scaling.spread * longest * part.units * self._mean_s(self._n_max)

    def _part_s(self, part: Part, sizes: Counts, per_s: Floats) -> Floats:
        """Return how long a part takes by nodes, if their number does not change.

        Trials that find no node follow the others in waves; in the last one, fewer trials share
        the nodes. Shares are fractions: some trials have one node more than others.

        Args:
            part: which one.
            sizes: that a trial may have, ascending.
            per_s: units that a trial of each size does in a second.
        """
        scaling, nodes = self.scaling, np.arange(self.most_nodes + 1)
        at_once = np.minimum(nodes // scaling.n_min, self._wide(part))
        at_once[: scaling.n_min] = 1  # of which none can train
        waves = -(-part.trials // at_once)
        last = part.trials - (waves - 1) * at_once
        wave_s, last_s = (
            1.0 / np.interp(nodes / trials, sizes, per_s) for trials in (at_once, last)
        )
        length_s: Floats = part.units * ((waves - 1) * wave_s + last_s) + self._longer_s(part)
        length_s[: scaling.n_min] = np.inf
        return np.minimum.accumulate(length_s)  # more nodes are never slower, some may stay idle


def parts_of(rule: StudyRule) -> tuple[tuple[Part, ...], str]:
    """Return the parts of a rule's study, and what is assumed of it ("" if nothing is).

    Rungs with the same budget are one part, of whatever bracket.
    """
    note = ""
    if isinstance(rule, Asha | Stopping):
        stages = rung_stages(
            Sha(trials=rule.trials, least=rule.least, most=rule.most, eta=rule.eta)
        )
        note = "Trials are taken to climb as in the rule sha."
    elif isinstance(rule, Median):
        stages = rung_stages(Full(trials=rule.trials, most=rule.most))
        note = "Nobody is taken to be stopped before the end: the study may be faster."
    elif isinstance(rule, Pbt):
        stages = rung_stages(Full(trials=rule.population, most=rule.most))
    else:
        stages = rung_stages(rule)
    parts: list[Part] = []
    for budget in sorted({stage.budget for stage in stages}):
        here = [stage for stage in stages if stage.budget == budget]
        trials = sum(stage.trials for stage in here)
        units = sum(stage.trials * stage.units for stage in here)
        parts.append(Part(trials=trials, units=units / trials))
    return tuple(parts), note


def finish_s(nodes: Counts, rates: Floats, step_s: float) -> Floats:
    """Return when each row of ``nodes`` is through all stages; infinity: not within its steps.

    Args:
        nodes: usable nodes, one row for each future, one column for each step.
        rates: share of a stage that is done in a second, one row for each stage, one column for
            each number of nodes from 0 on; the last one counts for more nodes, too.
        step_s: how long a step is.
    """
    steps = nodes.shape[1]
    rows, at = np.arange(len(nodes)), np.zeros(len(nodes))
    held = np.minimum(nodes, rates.shape[1] - 1)
    for rate in rates:
        done = np.zeros((len(nodes), steps + 1))
        np.cumsum(rate[held] * step_s, axis=1, out=done[:, 1:])
        goal = _between(done, rows, np.minimum(at, steps)) + 1.0
        step = (done < goal[:, None] - 1e-9).sum(axis=1)  # the first at which it is done
        is_done = (step <= steps) & np.isfinite(at)
        step = np.clip(step, 1, steps)
        low, high = done[rows, step - 1], done[rows, step]
        part = (goal - low) / np.where(high > low, high - low, 1.0)
        # A stage that is done at once does not go back behind the one before.
        at = np.where(is_done, np.maximum(at, step - 1 + np.clip(part, 0.0, 1.0)), np.inf)
    return at * step_s


def _between(done: Floats, rows: Counts, at: Floats) -> Floats:
    step = np.minimum(at.astype(np.int64), done.shape[1] - 2)
    low, high = done[rows, step], done[rows, step + 1]
    found: Floats = low + (at - step) * (high - low)
    return found
