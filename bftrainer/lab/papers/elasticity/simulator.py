"""One job that is measured and resized by the rule of the policies, and one with stragglers.

The paper plots step times without numbers; ``expected.json`` says what was assumed in their place.

New workers boot while the others train, then all pause for a moment. A size is measured in windows
of some steps. As in the paper one window decides; beyond it (``is_patient``) as many as the
condition needs, at most ``MOST_WINDOWS``.

Stragglers are found by the daemon's own detector (``decide.throughput.stragglers``), asked every
10 steps; one leaves when the worker that replaces it joins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bftrainer.decide.policies.scaling_rule import Condition, next_size
from bftrainer.decide.throughput.fit import MeasuredSize
from bftrainer.decide.throughput.stragglers import Field, entered, record_report

EVERY_STEPS = 10  # N: measured before a decision
STEP_NOISE, BOOT_NOISE = 0.03, 0.15  # relative deviation of one step, of one boot

BATCH = 1024  # of CIFAR-10
EPOCH_OF_CIFAR, EPOCH_OF_IMAGENET = 50_000, 1_281_167  # samples
STEP_AT_4_S, SLOWER_AT_24 = 0.2, 0.2
LOCAL_BATCH, MOST_BATCH = 64, 4096  # of ImageNet, section 7.1.2
SECONDS_ON_32, FASTER_ON_64 = 4300.0, 1.85
COMPUTE_S, FIXED_S, PER_WORKER_S = 27.0, 0.55, 0.0045  # of a step of CIFAR-10 on CPUs
MOST_WINDOWS = 20

# Of the job with stragglers (section 7.4)
STEPS = 100 * EPOCH_OF_CIFAR // BATCH + 1
START, EVERY_SLOW, MOST_SLOW = 4, 4, 10  # workers at first; every 4th is slow, up to 10
BOOT_S, JOIN_S = (60.0, 120.0), 3.179
THRESHOLD = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticJob:
    """A job and what changes of its size cost."""

    step_s: Callable[[int], float]  # by workers
    batch: Callable[[int], int]  # samples per step, by workers
    samples: float
    most: int  # workers
    boot_s: float  # until new workers can join; the others train
    join_s: float  # nobody trains
    leave_s: float
    least: int = 4
    unit: int = 4  # K
    step_noise: float = STEP_NOISE
    boot_noise: float = BOOT_NOISE

    def rate(self, workers: int) -> float:
        """Samples per second."""
        return self.batch(workers) / self.step_s(workers)


def wait_s(workers: int) -> float:
    """Return what a step on CPUs takes besides computation."""
    return FIXED_S + PER_WORKER_S * workers


def _imagenet_batch(workers: int) -> int:
    return min(LOCAL_BATCH * workers, MOST_BATCH)


def _imagenet_step_s(workers: int) -> float:
    faster = 1.0 + (FASTER_ON_64 - 1.0) * (workers - 32) / 32
    return _imagenet_batch(workers) / (5.0 * EPOCH_OF_IMAGENET / SECONDS_ON_32 * faster)


JOBS = {
    # ResNet-56 on GPUs, 200 epochs, one global batch (section 7.1.1); pauses: Table 1
    "cifar": ElasticJob(
        step_s=lambda k: STEP_AT_4_S * (1.0 + SLOWER_AT_24 * (k - 4) / 20),
        batch=lambda _: BATCH,
        samples=200.0 * EPOCH_OF_CIFAR,
        most=24,
        boot_s=50.0,
        join_s=3.179,
        leave_s=2.612,
    ),
    # ResNet-50 on GPUs, 5 epochs, one batch per GPU up to a limit (section 7.1.2)
    "imagenet": ElasticJob(
        step_s=_imagenet_step_s,
        batch=_imagenet_batch,
        samples=5.0 * EPOCH_OF_IMAGENET,
        most=64,
        boot_s=45.0,
        join_s=6.813,
        leave_s=4.376,
    ),
    # ResNet-56 on 60 machines, 50 epochs (section 7.3)
    "cpus": ElasticJob(
        step_s=lambda k: COMPUTE_S / k + wait_s(k),
        batch=lambda _: BATCH,
        samples=50.0 * EPOCH_OF_CIFAR,
        most=60,
        boot_s=60.0,
        join_s=3.179,
        leave_s=2.612,
    ),
}

Chance = np.random.Generator
# What the condition of a decision is, by seconds so far and samples left.
ConditionAt = Callable[[float, float], Condition]


@dataclass(slots=True, kw_only=True)
class StepWindows:
    """The windows seen so far, by workers."""

    is_patient: bool
    windows: dict[int, list[float]] = field(default_factory=dict)  # samples per second

    def known(self, workers: int) -> dict[int, MeasuredSize]:
        """Return the sizes that can be compared at this number of workers."""
        fewest = 2 if self.is_patient else 1
        is_long = len(self.windows[workers]) >= MOST_WINDOWS  # so it is decided as it is
        spread = self._spread()
        sizes = {}
        for size, rates in self.windows.items():
            if len(rates) < fewest:
                continue
            error = 0.0
            if not is_long:
                error = spread / math.sqrt(len(rates))
            sizes[size] = MeasuredSize(size, math.fsum(rates) / len(rates), error)
        return sizes

    def _spread(self) -> float:
        """Return the relative deviation of a window, the mean of all sizes that tell it."""
        spreads = []
        for rates in self.windows.values():
            if len(rates) > 1:
                column = np.array(rates)
                spreads.append(float(column.std(ddof=1) / column.mean()))
        if not spreads:
            return 0.0
        return math.fsum(spreads) / len(spreads)


@dataclass(slots=True, kw_only=True)
class Training:
    """A job so far, and at its end; times in s."""

    workers: int
    completion_s: float = 0.0  # until now
    done: float = 0.0  # samples
    gpu_s: float = 0.0  # of members
    booting_gpu_s: float = 0.0  # of workers that boot
    settled_s: float = math.nan  # when the number of workers was reached for good

    @property
    def used_gpu_s(self) -> float:
        """GPU time, booting workers included."""
        return self.gpu_s + self.booting_gpu_s

    def train(self, job: ElasticJob, seconds: float) -> None:
        """Train, at most to the end."""
        rate = job.rate(self.workers)
        seconds = min(seconds, (job.samples - self.done) / rate)
        self.done += seconds * rate
        self._pass(seconds)

    def resize(self, job: ElasticJob, workers: int, boot_s: float) -> None:
        """Change the number of workers; new ones boot first."""
        if workers > self.workers:
            began_s = self.completion_s
            self.train(job, boot_s)
            self.booting_gpu_s += (workers - self.workers) * (self.completion_s - began_s)
            self._pass(job.join_s)
        else:
            self._pass(job.leave_s)
        self.workers = workers

    def _pass(self, seconds: float) -> None:
        self.completion_s += seconds
        self.gpu_s += seconds * self.workers


def static(job: ElasticJob, workers: int) -> Training:
    """Train with one number of workers."""
    training = Training(workers=workers, settled_s=0.0)
    training.train(job, math.inf)
    return training


def autoscaled(
    job: ElasticJob,
    start: int,
    condition_at: ConditionAt,
    chance: Chance,
    *,
    is_patient: bool = False,
) -> Training:
    """Train with the size that the rule chooses, until it stays."""
    training, steps = Training(workers=start), StepWindows(is_patient=is_patient)
    while math.isnan(training.settled_s) and training.done < job.samples:
        k = training.workers
        noise = np.exp(job.step_noise * chance.standard_normal(EVERY_STEPS))
        took_s = float((job.step_s(k) * noise).sum())
        training.train(job, took_s)
        steps.windows.setdefault(k, []).append(EVERY_STEPS * job.batch(k) / took_s)
        sizes = steps.known(k)
        condition = condition_at(training.completion_s, job.samples - training.done)
        goal = _next(job, k, sizes, condition)
        if goal != k:
            deviation = job.boot_noise * chance.standard_normal() - job.boot_noise**2 / 2
            training.resize(job, goal, job.boot_s * math.exp(deviation))  # boot_s in the mean
        if _is_settled(job, goal, sizes, condition):
            training.settled_s = training.completion_s
    training.train(job, math.inf)
    return training


def _next(job: ElasticJob, k: int, sizes: dict[int, MeasuredSize], condition: Condition) -> int:
    return next_size(k, sizes, condition, step=job.unit, least=job.least, most=job.most)


def _is_settled(
    job: ElasticJob, k: int, sizes: dict[int, MeasuredSize], condition: Condition
) -> bool:
    """Return whether the rule stays at a size, and not to measure on."""
    if k not in sizes or _next(job, k, sizes, condition) != k:
        return False
    for neighbour in (k - job.unit, k + job.unit):
        if neighbour in sizes:
            smaller, larger = sorted((sizes[k], sizes[neighbour]))
            if condition.holds(smaller, larger) is None:
                return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowedOutcome:
    """The result of the job."""

    completion_s: float
    lives_s: tuple[float, ...]  # of stragglers that were replaced
    workers: int  # at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coming:
    ready_s: float
    name: str
    slowdown: float
    replaces: str = ""  # empty: nobody


@dataclass(slots=True, kw_only=True)
class SlowedJob:
    """The job so far."""

    slowdown: float
    replaces: bool
    chance: np.random.Generator
    now_s: float = 0.0
    spawned: int = 0
    at_size: int = 0  # steps
    slow_of: dict[str, float] = field(default_factory=dict)  # by worker
    joined_s: dict[str, float] = field(default_factory=dict)
    coming: list[_Coming] = field(default_factory=list)
    lives_s: list[float] = field(default_factory=list)
    stragglers: Field = field(default_factory=Field)

    def run(self) -> SlowedOutcome:
        """Train to the end."""
        self.slow_of = {f"first-{i}": 1.0 for i in range(START)}
        for step in range(STEPS):
            self._train()
            if self.replaces and step % EVERY_STEPS == 0:
                self._replace()
            self._spawn()
            joining = [worker for worker in self.coming if worker.ready_s <= self.now_s]
            for worker in joining:
                self._join(worker)
        return SlowedOutcome(
            completion_s=self.now_s, lives_s=tuple(self.lives_s), workers=len(self.slow_of)
        )

    def _train(self) -> None:
        count = len(self.slow_of)
        own_s = {name: COMPUTE_S / count * slow for name, slow in self.slow_of.items()}
        self.now_s += max(own_s.values()) + wait_s(count)
        self.at_size += 1
        if not self.replaces or max(self.slow_of.values()) == 1.0:
            return  # nobody to be found
        for name, seconds in own_s.items():
            self.stragglers = record_report(
                self.stragglers,
                name,
                generation=self.stragglers.generation,
                own_s=seconds,
                share=BATCH // count,
                threshold=THRESHOLD,
            )

    def _replace(self) -> None:
        being_replaced = {worker.replaces for worker in self.coming}
        for name in sorted(self.stragglers.slow().keys() - being_replaced):
            new_name = f"{name}'"
            self.coming.append(
                _Coming(ready_s=self._boot_s(), name=new_name, slowdown=1.0, replaces=name)
            )

    def _spawn(self) -> None:
        is_growing = any(not worker.replaces for worker in self.coming)
        if is_growing or self.at_size < EVERY_STEPS or self.spawned >= EVERY_SLOW * MOST_SLOW:
            return
        self.spawned += 1
        slowdown = self.slowdown if self.spawned % EVERY_SLOW == 0 else 1.0
        name = f"new-{self.spawned}"
        self.coming.append(_Coming(ready_s=self._boot_s(), name=name, slowdown=slowdown))

    def _boot_s(self) -> float:
        return self.now_s + float(self.chance.uniform(*BOOT_S))

    def _join(self, worker: _Coming) -> None:
        self.coming.remove(worker)
        self.now_s += JOIN_S
        self.slow_of[worker.name] = worker.slowdown
        self.joined_s[worker.name] = self.now_s
        if worker.replaces:
            del self.slow_of[worker.replaces]
            self.lives_s.append(self.now_s - self.joined_s[worker.replaces])
        else:
            self.at_size = 0
        generation = self.stragglers.generation + 1
        self.stragglers = entered(self.stragglers, generation, list(self.slow_of))
