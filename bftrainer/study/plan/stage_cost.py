"""Time and cost of a plan in closed form, and by drawn lengths of its trials. Pure.

Both draw the same random numbers, which makes plans comparable with few samples.

A stage begins when the one before has ended, so times and costs of stages add up, and a stage
depends on the earlier ones only through the instances that are there: one that needs more waits for
them, then each trial trains, some after others if there are too few GPUs for all. The critical path
of the paper's graph of tasks is the sum of these waits and of the longest chains of trials. Its
mean is what ``Costs.predict`` says; beyond that the samples tell the spread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from bftrainer.study.plan.problem import Billing, Cloud, Draw, Experiment, PlanStage, ScalingProfile

Floats = npt.NDArray[np.float64]
Seconds = TypeVar("Seconds", float, Floats)  # their mean, or samples
LEAST = 0.05  # nothing is faster than this share of its mean
FEW = 16  # units drawn one by one; the sum of more is normal
SAMPLES = 20


def unit_draws(
    scaling: ScalingProfile, stage: PlanStage, index: int, samples: int, seed: int
) -> Floats:
    """Return the length of each trial of a stage in mean units: samples x trials."""
    if scaling.spread == 0.0:
        return np.full((1, stage.trials), float(stage.units))
    random = np.random.default_rng((seed, index))
    shape = (samples, stage.trials)
    if scaling.draw is Draw.TASK:
        return stage.units * _varied(random.standard_normal(shape), scaling.spread)
    if stage.units <= FEW:
        units_drawn = random.standard_normal((*shape, stage.units))
        return np.asarray(_varied(units_drawn, scaling.spread).sum(2))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """The resources, time and cost of a stage: the means of all samples."""

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
    scaling: ScalingProfile
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

    def drawn(self, index: int, gpus: int) -> tuple[Floats, Floats]:
        """Return how long a stage trains on some GPUs, and its trials together, by samples."""
        gpus_per_trial, at_once = self.share(index, gpus)
        tasks_s = self.draws[index] * self.scaling.mean_s(gpus_per_trial) + self.scaling.start_s
        if at_once >= self.experiment[index].trials:
            return tasks_s.max(1), tasks_s.sum(1)
        # Trial i follows trial i - at_once.
        missing = -tasks_s.shape[1] % at_once
        chains = np.pad(tasks_s, ((0, 0), (0, missing))).reshape(len(tasks_s), -1, at_once)
        return np.asarray(chains.sum(1).max(1)), tasks_s.sum(1)

    def run(self, index: int, gpus: int) -> tuple[float, float]:
        """Return how long a stage trains on some GPUs, and the GPU-seconds that its trials use.

        Both are infinite if the GPUs are too few for a trial.
        """
        gpus_per_trial, at_once = self.share(index, gpus)
        if at_once == 0:
            return math.inf, math.inf
        key = index, gpus_per_trial, at_once
        if key not in self._runs:
            lengths_s, trials_s = self.drawn(index, gpus)
            self._runs[key] = float(lengths_s.mean()), float(gpus_per_trial * trials_s.mean())
        return self._runs[key]

    def grow_s(self, new: int) -> float:
        """Return how long it takes until so many new instances are usable."""
        return self.cloud.scale_s + self.cloud.init_s if new > 0 else 0.0

    def stage(self, index: int, gpus: int, before: int) -> StageCost:
        """Return what a stage takes on some GPUs if so many instances are there before.

        Those that it does not need go at its beginning. The minimum charge is in ``predict``.
        """
        instances = self.cloud.instances(gpus)
        length_s, gpu_s = self.run(index, gpus)
        return StageCost(
            gpus=gpus,
            instances=instances,
            grow_s=self.grow_s(instances - before),
            length_s=length_s,
            cost=self.paid(instances, before, length_s, gpu_s),
        )

    def paid(self, instances: int, before: int, length_s: Seconds, gpu_s: Seconds) -> Seconds:
        """Return what so many instances cost that train so long, if so many were there before."""
        cloud = self.cloud
        new_instances = max(0, instances - before)
        grow_s = self.grow_s(instances - before)
        if cloud.billing is Billing.FUNCTION:
            paid_s = gpu_s / cloud.gpus_per_instance + new_instances * cloud.init_s
        else:
            # Old instances are paid while they wait for the new ones, those once they are there.
            paid_s = (instances - new_instances) * grow_s + instances * length_s
            paid_s += new_instances * max(0.0, grow_s - cloud.scale_s)
        return paid_s * cloud.price_s + new_instances * cloud.data_price

    def predict(self, plan: tuple[int, ...]) -> Planned:
        """Return what a plan takes: so many GPUs for each stage."""
        stages: list[StageCost] = []
        instances: list[int] = []
        times_s: list[float] = []
        for index, gpus in enumerate(plan):
            before = instances[-1] if instances else 0
            stage = self.stage(index, gpus, before)
            stages.append(stage)
            instances.append(stage.instances)
            times_s.append(stage.time_s)
        cost = sum(stage.cost for stage in stages)
        cost += self.minimum_charge(instances, times_s)
        return Planned(stages=tuple(stages), time_s=sum(times_s), cost=cost)

    def minimum_charge(
        self, instances: Sequence[int], times_s: Sequence[Seconds]
    ) -> Seconds | float:
        """Return the cost of the time that instances are paid for beyond their lives.

        The oldest go first.
        """
        cloud = self.cloud
        if cloud.minimum_s <= 0.0 or cloud.billing is not Billing.INSTANCE:
            return 0.0
        groups = deque[tuple[int, Seconds | float]]()  # how many, and since when; oldest first
        now_s: Seconds | float = 0.0
        missing_s: Seconds | float = 0.0
        count_before = 0
        for count, next_count, time_s in zip(instances, [*instances[1:], 0], times_s, strict=True):
            if count > count_before:
                groups.append((count - count_before, now_s + cloud.scale_s))
            now_s = now_s + time_s
            count_before = count
            to_end = max(0, count - next_count)
            while to_end > 0:
                n_oldest, since_s = groups.popleft()
                n_ended = min(n_oldest, to_end)
                too_short_s = np.maximum(0.0, cloud.minimum_s - (now_s - since_s))
                missing_s = missing_s + n_ended * too_short_s
                if n_oldest > n_ended:
                    groups.appendleft((n_oldest - n_ended, since_s))
                to_end -= n_ended
        return missing_s * cloud.price_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Samples of a plan; the last axis of each array are the samples."""

    time_s: Floats
    cost: Floats
    stage_time_s: Floats  # stages x samples
    stage_cost: Floats  # without the minimum charge


def simulate(costs: Costs, plan: tuple[int, ...]) -> Drawn:
    """Draw the length of every trial and return the critical paths and what they cost."""
    times: list[Floats] = []
    paid: list[Floats] = []
    instances = list(map(costs.cloud.instances, plan))
    before = 0
    for index, gpus in enumerate(plan):
        count = instances[index]
        lengths_s, trials_s = costs.drawn(index, gpus)
        times.append(costs.grow_s(count - before) + lengths_s)
        gpus_per_trial, _ = costs.share(index, gpus)
        paid.append(costs.paid(count, before, lengths_s, gpus_per_trial * trials_s))
        before = count
    stage_time_s, stage_cost = np.array(times), np.array(paid)
    return Drawn(
        time_s=stage_time_s.sum(0),
        cost=stage_cost.sum(0) + costs.minimum_charge(instances, times),
        stage_time_s=stage_time_s,
        stage_cost=stage_cost,
    )
