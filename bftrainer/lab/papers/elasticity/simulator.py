"""One job that is measured, and resized by the rule of the policies (section 4.1).

New workers boot while the others train, then all pause for a moment. A size is measured in windows
of some steps. As in the paper one window decides; beyond it (``is_patient``) as many as the
condition needs, at most ``MOST_WINDOWS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bftrainer.decide.policies.scaling_rule import Condition, next_size
from bftrainer.decide.throughput.fit import MeasuredSize
from bftrainer.lab.papers.elasticity.jobs import EVERY_STEPS, Job

MOST_WINDOWS = 20
Chance = np.random.Generator
# What the condition of a decision is, by seconds so far and samples left.
ConditionAt = Callable[[float, float], Condition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a job; times in s."""

    completion_s: float
    gpu_s: float  # of members
    booting_gpu_s: float  # of workers that boot
    settled_at: int  # workers at the end
    settled_s: float  # when that size was reached for good

    @property
    def used_gpu_s(self) -> float:
        """GPU time, booting workers included."""
        return self.gpu_s + self.booting_gpu_s


@dataclass(slots=True, kw_only=True)
class Measured:
    """The windows seen so far, by workers."""

    is_patient: bool
    windows: dict[int, list[float]] = field(default_factory=dict)  # samples per second

    def known(self, workers: int) -> dict[int, MeasuredSize]:
        """Return the sizes that can be compared at this number of workers."""
        fewest = 2 if self.is_patient else 1
        is_long = len(self.windows[workers]) >= MOST_WINDOWS  # so it is decided as it is
        several = [np.array(seen) for seen in self.windows.values() if len(seen) > 1]
        spreads = [float(seen.std(ddof=1) / seen.mean()) for seen in several]
        spread = math.fsum(spreads) / len(spreads) if spreads else 0.0
        return {
            k: MeasuredSize(
                k,
                math.fsum(seen) / len(seen),
                0.0 if is_long else spread / math.sqrt(len(seen)),
            )
            for k, seen in self.windows.items()
            if len(seen) >= fewest
        }


@dataclass(slots=True, kw_only=True)
class Training:
    """A job so far."""

    job: Job
    workers: int
    now_s: float = 0.0
    done: float = 0.0
    gpu_s: float = 0.0
    booting_gpu_s: float = 0.0

    def train(self, seconds: float) -> None:
        """Train, at most to the end."""
        rate = self.job.rate(self.workers)
        seconds = min(seconds, (self.job.samples - self.done) / rate)
        self.done += seconds * rate
        self._pass(seconds)

    def resize(self, workers: int, boot_s: float) -> None:
        """Change the number of workers; new ones boot first."""
        if workers > self.workers:
            began_s = self.now_s
            self.train(boot_s)
            self.booting_gpu_s += (workers - self.workers) * (self.now_s - began_s)
        self._pass(self.job.join_s if workers > self.workers else self.job.leave_s)
        self.workers = workers

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds
        self.gpu_s += seconds * self.workers


def static(job: Job, workers: int) -> Outcome:
    """Train with one number of workers."""
    training = Training(job=job, workers=workers)
    training.train(math.inf)
    return _outcome(training, 0.0)


def autoscaled(
    job: Job, start: int, condition_at: ConditionAt, chance: Chance, *, is_patient: bool = False
) -> Outcome:
    """Train with the size that the rule chooses, until it stays."""
    training, measured = Training(job=job, workers=start), Measured(is_patient=is_patient)
    settled_s = math.nan
    while math.isnan(settled_s) and training.done < job.samples:
        k = training.workers
        noise = np.exp(job.step_noise * chance.standard_normal(EVERY_STEPS))
        took_s = float((job.step_s(k) * noise).sum())
        training.train(took_s)
        measured.windows.setdefault(k, []).append(EVERY_STEPS * job.batch(k) / took_s)
        known = measured.known(k)
        condition = condition_at(training.now_s, job.samples - training.done)
        goal = _next(job, k, known, condition)
        if goal != k:
            deviation = job.boot_noise * chance.standard_normal() - job.boot_noise**2 / 2
            training.resize(goal, job.boot_s * math.exp(deviation))  # boot_s in the mean
        if _is_settled(job, goal, known, condition):
            settled_s = training.now_s
    training.train(math.inf)
    return _outcome(training, settled_s)


def _next(job: Job, k: int, known: dict[int, MeasuredSize], condition: Condition) -> int:
    return next_size(k, known, condition, step=job.unit, least=job.least, most=job.most)


def _is_settled(job: Job, k: int, known: dict[int, MeasuredSize], condition: Condition) -> bool:
    """Return whether the rule stays at a size, and not to measure on."""
    if k not in known or _next(job, k, known, condition) != k:
        return False
    neighbours = [known[n] for n in (k - job.unit, k + job.unit) if n in known]
    return all(
        condition.holds(min(known[k], other), max(known[k], other)) is not None
        for other in neighbours
    )


def _outcome(training: Training, settled_s: float) -> Outcome:
    return Outcome(
        completion_s=training.now_s,
        gpu_s=training.gpu_s,
        booting_gpu_s=training.booting_gpu_s,
        settled_at=training.workers,
        settled_s=settled_s,
    )
