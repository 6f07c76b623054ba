"""One experiment of section 7: its setting and its record. Both are plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bftrainer.decide.policies.scaling_rule import Condition, Payoff, Points, Throughput
from bftrainer.lab.papers.elasticity.setting import ElasticityScenario
from bftrainer.lab.papers.elasticity.simulator import (
    JOBS,
    ElasticJob,
    ElasticJobOutcome,
    SlowedJob,
    SlowedOutcome,
    autoscaled,
    static,
)

THRESHOLD = 0.1  # S, section 7.1
TARGET_S, ZERO_AT_S = 3600.0, 20_000.0  # of the step function, of the linear one


@dataclass(frozen=True, slots=True, kw_only=True)
class Dollars:
    """The utility of completion and the price of a worker."""

    shape: str  # linear, step
    most: float
    price_per_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OneJob:
    """A job of sections 7.1 and 7.3."""

    job: str
    start: int  # workers
    seed: int | None  # None: the number of workers stays
    dollars: Dollars | None = None  # None: the condition of the throughput
    is_patient: bool = False
    step_noise: float | None = None  # None: that of the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowed:
    """A job of section 7.4."""

    slowdown: float
    replaces: bool
    seed: int


Experiment = OneJob | Slowed


def play(_: ElasticityScenario, run: Experiment) -> ElasticJobOutcome | SlowedOutcome:
    """Play one experiment."""
    if isinstance(run, Slowed):
        chance = np.random.default_rng(run.seed)
        return SlowedJob(slowdown=run.slowdown, replaces=run.replaces, chance=chance).run()
    job = JOBS[run.job]()
    if run.step_noise is not None:
        job = replace(job, step_noise=run.step_noise)
    if run.seed is None:
        return static(job, run.start)
    chance = np.random.default_rng((run.seed, run.start))

    def condition(past_s: float, left: float) -> Condition:
        if run.dollars is None:
            errors = 2.0 if run.is_patient else 0.0
            return Throughput(threshold=THRESHOLD, standard_errors=errors)
        return Payoff(
            utility=utility(run.dollars, job, run.start),
            price=run.dollars.price_per_h / 3600.0,
            past_s=past_s,
            left_samples=left,
        )

    return autoscaled(job, run.start, condition, chance, is_patient=run.is_patient)


def utility(dollars: Dollars, job: ElasticJob, start: int) -> Points:
    """Return a utility function of section 4.2.2, its gaps bridged."""
    if dollars.shape == "linear":
        return ((0.0, dollars.most), (ZERO_AT_S, 0.0))
    return ((TARGET_S, dollars.most), (job.samples / job.rate(start), 0.0))


def longest_first(run: Experiment) -> tuple[bool, ...]:
    """Order runs: those with stragglers take longest."""
    return (not isinstance(run, Slowed), not (isinstance(run, Slowed) and run.replaces))


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return float(np.mean(values))
