"""One experiment of section 7 on 64 GPUs or 60 machines without. It and its record are data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bftrainer.decide.policies.scaling_rule import Condition, Payoff, Points, Throughput
from bftrainer.lab.papers.elasticity.simulator import (
    JOBS,
    ElasticJob,
    SlowedJob,
    SlowedOutcome,
    Training,
    autoscaled,
    static,
)
from bftrainer.lab.papers.paper import Extent

THRESHOLD = 0.1  # S, section 7.1
TARGET_S, ZERO_AT_S = 3600.0, 20_000.0  # of the step function, of the linear one


@dataclass(frozen=True, slots=True, kw_only=True)
class Extents(Extent):
    """Numbers of seeds."""

    jobs: int = 30  # Figs. 6 to 8
    stragglers: int = 10  # Figs. 9 and 10
    noise: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Dollars:
    """The utility of completion and the price of a worker."""

    shape: str  # linear, step
    most: float
    price_per_h: float

    def utility(self, job: ElasticJob, start: int) -> Points:
        """Return a utility function of section 4.2.2, its gaps bridged."""
        if self.shape == "linear":
            return ((0.0, self.most), (ZERO_AT_S, 0.0))
        return ((TARGET_S, self.most), (job.samples / job.rate(start), 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class OneJob:
    """A job of sections 7.1 and 7.3."""

    job: str
    start: int  # workers
    seed: int | None = None  # None: the number of workers stays
    dollars: Dollars | None = None  # None: the condition of the throughput
    is_patient: bool = False
    step_noise: float | None = None  # None: that of the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowed:
    """A job of section 7.4."""

    slowdown: float
    replaces: bool
    seed: int


def play(_: None, run: OneJob | Slowed) -> Training | SlowedOutcome:
    """Play one experiment."""
    if isinstance(run, Slowed):
        chance = np.random.default_rng(run.seed)
        return SlowedJob(slowdown=run.slowdown, replaces=run.replaces, chance=chance).run()
    job, dollars = JOBS[run.job], run.dollars
    if run.step_noise is not None:
        job = replace(job, step_noise=run.step_noise)
    if run.seed is None:
        return static(job, run.start)
    chance = np.random.default_rng((run.seed, run.start))

    def condition(past_s: float, left_samples: float) -> Condition:
        if dollars is None:
            errors = 2.0 if run.is_patient else 0.0
            return Throughput(threshold=THRESHOLD, standard_errors=errors)
        return Payoff(
            utility=dollars.utility(job, run.start),
            price=dollars.price_per_h / 3600.0,
            past_s=past_s,
            left_samples=left_samples,
        )

    return autoscaled(job, run.start, condition, chance, is_patient=run.is_patient)
