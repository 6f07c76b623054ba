"""How fast a number of nodes gets through each stage of a study. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bftrainer.study.plan.scaling import Scaling
from bftrainer.study.plan.staging import RungStage, rung_stages
from bftrainer.study.rungs.asha import Asha
from bftrainer.study.rungs.median import Median
from bftrainer.study.rungs.none import Full
from bftrainer.study.rungs.pbt import Pbt
from bftrainer.study.rungs.sha import Sha
from bftrainer.study.rungs.stopping import Stopping
from bftrainer.study.trials import Rule

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Trials that train before those of the next part begin."""

    trials: int
    units: float  # of one trial, on the average


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a study has to train, and how fast a trial is."""

    parts: tuple[Part, ...]
    scaling: Scaling  # its GPUs are nodes here
    parallel: int | None = None  # trials at once; None: as the pool has room

    @property
    def most_nodes(self) -> int:
        """Nodes beyond which nothing gets faster."""
        n_max = self.scaling.n_max or max(self.scaling.gpus)
        return max(self._wide(part) for part in self.parts) * n_max

    def rates(self) -> Floats:
        """Return the share of each part done in a second by 0 to ``most_nodes`` nodes."""
        return np.stack([1.0 / self._part_s(part) for part in self.parts])

    def least_s(self) -> float:
        """Return how long the study takes on as many nodes as it can use."""
        return float(sum(self._part_s(part)[-1] for part in self.parts))

    def _wide(self, part: Part) -> int:
        return min(part.trials, self.parallel or part.trials)

    def _part_s(self, part: Part) -> Floats:
        """Return how long a part takes by nodes, if their number does not change.

        Trials that find no node follow the others in waves; in the last one, fewer trials share
        the nodes. Shares are fractions: some trials have one node more than others.
        """
        scaling, nodes = self.scaling, np.arange(self.most_nodes + 1)
        at_once = np.minimum(nodes // scaling.n_min, self._wide(part))
        at_once[: scaling.n_min] = 1  # of which none can train
        waves = -(-part.trials // at_once)
        last = part.trials - (waves - 1) * at_once
        unit_s = (waves - 1) * self._unit_s(nodes / at_once) + self._unit_s(nodes / last)
        length_s: Floats = part.units * unit_s
        length_s[: scaling.n_min] = np.inf
        return np.minimum.accumulate(length_s)  # more nodes are never slower, some may stay idle

    def _unit_s(self, share: Floats) -> Floats:
        scaling = self.scaling
        n_max = scaling.n_max or max(scaling.gpus)
        sizes = np.arange(scaling.n_min, n_max + 1)
        per_s = [1.0 / scaling.mean_s(size) for size in sizes.tolist()]
        unit_s: Floats = 1.0 / np.interp(share, sizes, per_s)
        return unit_s


def parts_of(rule: Rule) -> tuple[tuple[Part, ...], str]:
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
    return _merged(stages), note


def _merged(stages: Sequence[RungStage]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for budget in sorted({stage.budget for stage in stages}):
        here = [stage for stage in stages if stage.budget == budget]
        trials = sum(stage.trials for stage in here)
        units = sum(stage.trials * stage.units for stage in here)
        parts.append(Part(trials=trials, units=units / trials))
    return tuple(parts)
