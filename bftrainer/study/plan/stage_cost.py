"""Time and cost of a plan in closed form, and drawn latencies of its tasks. Pure.

Common random numbers make plans comparable with few samples. The closed form and the graph of
tasks (``dag``) draw from here.

A stage begins when the one before has ended, so times and costs of stages add up, and a stage
depends on the earlier ones only through the instances that are there. The critical path of the
paper's graph (``dag``) is the same number.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from bftrainer.study.plan.problem import Billing, Cloud, Draw, Experiment, Scaling, Stage

Floats = npt.NDArray[np.float64]
LEAST = 0.05  # nothing is faster than this share of its mean
FEW = 16  # units drawn one by one; the sum of more is normal


def unit_draws(scaling: Scaling, stage: Stage, index: int, samples: int, seed: int) -> Floats:
    """Return the length of each trial of a stage in mean units: samples x trials."""
    if scaling.spread == 0.0:
        return np.full((1, stage.trials), float(stage.units))
    random = np.random.default_rng((seed, index))
    shape = (samples, stage.trials)
    if scaling.draw is Draw.TASK:
        return stage.units * _varied(random.standard_normal(shape), scaling.spread)
    if stage.units <= FEW:
        each = random.standard_normal((*shape, stage.units))
        return np.asarray(_varied(each, scaling.spread).sum(2))
    mean, variance = _moments(scaling.spread)
    sums = stage.units * mean + math.sqrt(stage.units * variance) * random.standard_normal(shape)
    return np.maximum(LEAST * stage.units, sums)


def _varied(normal: Floats, spread: float) -> Floats:
    return np.maximum(LEAST, 1.0 + spread * normal)


@cache
def _moments(spread: float) -> tuple[float, float]:
    """Mean and variance of one unit: a normal number that is cut off below."""
    z = np.linspace(-8.0, 8.0, 20_001)
    weight = np.exp(-z * z / 2.0)
    weight /= weight.sum()
    x = _varied(z, spread)
    mean = float(weight @ x)
    return mean, float(weight @ x**2) - mean**2


SAMPLES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What a stage takes: the means of all samples."""

    gpus: int
    instances: int  # held through the stage; idle ones are paid
    grow_s: float  # until the instances are there
    length_s: float  # of the training
    cost: float

    @property
    def time_s(self) -> float:
        """From the end of the stage before to the end of this one."""
        return self.grow_s + self.length_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, and what it takes."""

    stages: tuple[StageCost, ...]
    time_s: float
    cost: float
    bound: float | None = None  # no plan that is in time costs less; None: nobody computed it

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPUs of each stage: what defines the plan."""
        return tuple(stage.gpus for stage in self.stages)


@dataclass(eq=False)
class Costs:
    """Times and costs of the plans of one study; remembers what it has computed."""

    experiment: Experiment
    scaling: Scaling
    cloud: Cloud
    samples: int = SAMPLES
    seed: int = 0
    _shares: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _runs: dict[tuple[int, int, int], tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def draws(self) -> tuple[Floats, ...]:
        """Lengths of the trials of each stage in mean units: samples x trials."""
        return tuple(
            unit_draws(self.scaling, stage, i, self.samples, self.seed)
            for i, stage in enumerate(self.experiment)
        )

    def share(self, index: int, gpus: int) -> tuple[int, int]:
        """Return how many GPUs each trial of a stage gets, and how many trials train at once."""
        key = index, gpus
        if key not in self._shares:
            self._shares[key] = self.scaling.share(gpus, self.experiment[index].trials)
        return self._shares[key]

    def tasks_s(self, index: int, each: int) -> Floats:
        """Return how long each trial of a stage trains on so many GPUs: samples x trials."""
        return self.draws[index] * self.scaling.mean_s(each) + self.scaling.start_s

    def run(self, index: int, gpus: int) -> tuple[float, float]:
        """Return how long a stage trains on some GPUs, and the GPU-seconds that its trials use.

        Both are infinite if the GPUs are too few for a trial.
        """
        each, at_once = self.share(index, gpus)
        if at_once == 0:
            return math.inf, math.inf
        key = index, each, at_once
        if key not in self._runs:
            tasks_s = self.tasks_s(index, each)
            together = at_once >= self.experiment[index].trials
            lengths_s = tasks_s.max(1) if together else _chains(tasks_s, at_once)
            self._runs[key] = float(lengths_s.mean()), float(each * tasks_s.sum(1).mean())
        return self._runs[key]

    def grow_s(self, new: int) -> float:
        """Return how long it takes until so many new instances are usable."""
        return self.cloud.scale_s + self.cloud.init_s if new > 0 else 0.0

    def stage(self, index: int, gpus: int, before: int) -> StageCost:
        """Return what a stage takes on some GPUs if so many instances are there before.

        Those that it does not need go at its beginning. The minimum charge is in ``predict``.
        """
        cloud = self.cloud
        wanted = cloud.instances(gpus)
        new, grow_s = max(0, wanted - before), self.grow_s(wanted - before)
        length_s, gpu_s = self.run(index, gpus)
        if cloud.billing is Billing.FUNCTION:
            paid_s = gpu_s / cloud.gpus_per_instance + new * cloud.init_s
        else:
            paid_s = (wanted - new) * grow_s + wanted * length_s
            paid_s += new * max(0.0, grow_s - cloud.scale_s)
        return StageCost(
            gpus=gpus,
            instances=wanted,
            grow_s=grow_s,
            length_s=length_s,
            cost=paid_s * cloud.price_s + new * cloud.data_price,
        )

    def predict(self, plan: tuple[int, ...]) -> Planned:
        """Return what a plan takes: so many GPUs for each stage."""
        stages: list[StageCost] = []
        before = 0
        for index, gpus in enumerate(plan):
            stages.append(self.stage(index, gpus, before))
            before = stages[-1].instances
        cost = sum(stage.cost for stage in stages)
        if self.cloud.minimum_s > 0.0 and self.cloud.billing is Billing.INSTANCE:
            cost += _shortfall_s(stages, self.cloud) * self.cloud.price_s
        return Planned(stages=tuple(stages), time_s=sum(s.time_s for s in stages), cost=cost)


def _chains(tasks_s: Floats, at_once: int) -> Floats:
    """Return the longest chain of each sample; trial i follows trial i - at_once."""
    missing = -tasks_s.shape[1] % at_once
    padded = np.pad(tasks_s, ((0, 0), (0, missing))).reshape(len(tasks_s), -1, at_once)
    return np.asarray(padded.sum(1).max(1))


def _shortfall_s(stages: list[StageCost], cloud: Cloud) -> float:
    """Return the time that instances are paid for beyond their lives; the oldest go first."""
    born: deque[tuple[int, float]] = deque()  # how many, and when; oldest first
    now_s = missing_s = 0.0
    held = 0
    for stage, after in zip(stages, [*stages[1:], None], strict=True):
        if stage.instances > held:
            born.append((stage.instances - held, now_s + cloud.scale_s))
        now_s += stage.time_s
        held = stage.instances
        going = held - min(held, 0 if after is None else after.instances)
        while going > 0:
            count, since_s = born.popleft()
            gone = min(count, going)
            missing_s += gone * max(0.0, cloud.minimum_s - (now_s - since_s))
            if count > gone:
                born.appendleft((count - gone, since_s))
            going -= gone
    return missing_s
