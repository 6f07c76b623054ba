"""Time and cost of a plan in closed form, and by the graph of its tasks with drawn latencies. Pure.

Both draw the same random numbers, which makes plans comparable with few samples.

A stage begins when the one before has ended, so times and costs of stages add up, and a stage
depends on the earlier ones only through the instances that are there. The critical path of the
paper's graph of tasks (``tasks_of``) is the same number.

A stage that needs more instances begins with SCALE and one INIT for each; then there is a TRAIN
for each trial, some after others if there are too few GPUs for all; SYNC ends it. The
critical path of each sample is its time. Its mean is what ``Costs.predict`` says in closed form;
beyond that the samples tell the spread.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from bftrainer.study.plan.problem import Billing, Cloud, Draw, Experiment, PlanStage, ScalingProfile

Floats = npt.NDArray[np.float64]
LEAST = 0.05  # nothing is faster than this share of its mean
FEW = 16  # units drawn one by one; the sum of more is normal


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


class TaskKind(enum.StrEnum):
    """The kind of a task."""

    SCALE = "scale"
    INIT = "init"
    TRAIN = "train"
    SYNC = "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A node of the graph; those before it have smaller numbers."""

    kind: TaskKind
    stage: int
    before: tuple[int, ...]
    number: int = 0  # of the instance or trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Samples of a plan; the last axis of each array are the samples."""

    time_s: Floats
    cost: Floats
    stage_time_s: Floats  # stages x samples
    stage_cost: Floats  # without the minimum charge


def tasks_of(costs: Costs, plan: tuple[int, ...]) -> list[Task]:
    """Return the graph of a plan in topological order."""
    tasks: list[Task] = []
    frontier: tuple[int, ...] = ()
    held = 0

    def add(kind: TaskKind, stage: int, before: tuple[int, ...], number: int = 0) -> int:
        tasks.append(Task(kind=kind, stage=stage, before=before, number=number))
        return len(tasks) - 1

    for index, gpus in enumerate(plan):
        wanted = costs.cloud.instances(gpus)
        if wanted > held:
            scale = (add(TaskKind.SCALE, index, frontier),)
            frontier = tuple(add(TaskKind.INIT, index, scale, n) for n in range(wanted - held))
        at_once = costs.share(index, gpus)[1]
        trains: list[int] = []
        for trial in range(costs.experiment[index].trials):
            before = (trains[trial - at_once],) if trial >= at_once else frontier
            trains.append(add(TaskKind.TRAIN, index, before, trial))
        frontier = (add(TaskKind.SYNC, index, tuple(trains)),)
        held = wanted
    return tasks


def simulate(costs: Costs, plan: tuple[int, ...]) -> Drawn:
    """Draw the latency of every task and return the critical paths and what they cost."""
    tasks = tasks_of(costs, plan)
    ends = _ends(costs, plan, tasks)
    there_s = {task.stage: ends[n] for n, task in enumerate(tasks) if task.kind is TaskKind.SCALE}
    ended_s = [ends[n] for n, task in enumerate(tasks) if task.kind is TaskKind.SYNC]
    cloud, began_s, held = costs.cloud, np.zeros(ends.shape[1]), 0
    missing_s = np.zeros_like(began_s)  # of the minimum charge
    born: list[Floats] = []  # when each instance came; oldest first
    times: list[Floats] = []
    paid: list[Floats] = []
    for index, (gpus, end_s) in enumerate(zip(plan, ended_s, strict=True)):
        wanted = cloud.instances(gpus)
        new, gone = max(0, wanted - held), max(0, held - wanted)
        missing_s += _drawn_shortfall_s(born[:gone], began_s, cloud.minimum_s)
        born = [*born[gone:], *[there_s.get(index, began_s)] * new]
        if cloud.billing is Billing.FUNCTION:  # initialisations at their mean
            used_s = _used_s(costs, index, plan)
            paid_s = used_s / cloud.gpus_per_instance + new * cloud.init_s
        else:
            paid_s = (wanted - new) * (end_s - began_s)
            paid_s += new * (end_s - there_s.get(index, began_s))
        times.append(end_s - began_s)
        paid.append(np.broadcast_to(paid_s, began_s.shape) * cloud.price_s + new * cloud.data_price)
        began_s, held = end_s, wanted
    missing_s += _drawn_shortfall_s(born, began_s, cloud.minimum_s)
    cost = np.sum(paid, axis=0)
    if cloud.billing is Billing.INSTANCE:
        cost = cost + missing_s * cloud.price_s
    return Drawn(time_s=began_s, cost=cost, stage_time_s=np.array(times), stage_cost=np.array(paid))


def _ends(costs: Costs, plan: tuple[int, ...], tasks: list[Task]) -> Floats:
    """Return when each task ends: tasks x samples."""
    ends = np.zeros((len(tasks), _samples(costs)))
    ready: dict[tuple[int, ...], Floats] = {(): np.zeros(ends.shape[1])}
    trains: dict[int, Floats] = {}
    for number, task in enumerate(tasks):
        if task.before not in ready:
            ready[task.before] = ends[list(task.before)].max(0)
        ends[number] = ready[task.before]
        if task.kind is TaskKind.SCALE:
            ends[number] += costs.cloud.scale_s
        elif task.kind is TaskKind.INIT:
            ends[number] += costs.cloud.init_s
        elif task.kind is TaskKind.TRAIN:
            if task.stage not in trains:
                trains[task.stage] = _train_s(costs, task.stage, plan)
            ends[number] += trains[task.stage][:, task.number]
    return ends


def _samples(costs: Costs) -> int:
    return costs.samples if costs.scaling.spread > 0.0 else 1


def _train_s(costs: Costs, index: int, plan: tuple[int, ...]) -> Floats:
    return costs.tasks_s(index, costs.share(index, plan[index])[0])


def _used_s(costs: Costs, index: int, plan: tuple[int, ...]) -> Floats:
    each = costs.share(index, plan[index])[0]
    return np.asarray(each * _train_s(costs, index, plan).sum(1))


def _drawn_shortfall_s(born: list[Floats], now_s: Floats, minimum_s: float) -> Floats:
    """Return the time that instances which go now are paid for beyond their lives."""
    missing = [np.maximum(0.0, minimum_s - (now_s - one)) for one in born]
    return np.sum(missing, axis=0) if missing else np.zeros_like(now_s)
