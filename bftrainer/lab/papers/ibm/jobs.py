"""The job categories of Table I, their scaling factors, and the jobs of an experiment.

All rates are relative: a GPU with its largest batch does 1, so that a job's length is its minutes
on one GPU. What the paper leaves out is in ``fitted.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from bftrainer.decide.throughput.batch_curve import best_batch
from bftrainer.model.trainer import BatchRange

Floats = npt.NDArray[np.float64]
GPUS_PER_MACHINE = 2
ELASTIC = "elastic"  # the batch is chosen anew at every size; else it is a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """One row of Table I."""

    model: str
    b_min: int
    b_max: int
    cap: int  # largest batch of one GPU
    fixed: float  # part of t_proc(cap) that does not depend on the batch
    comm: float  # t_comm of two GPUs of a machine over t_proc(cap)
    minutes: float  # length
    is_elastic: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes that a job may have, from ``least`` on, and their scaling factors."""

    least: int
    factors: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class IbmWorld:
    """Categories, network and arrivals: what the paper says, completed by a fit."""

    categories: tuple[Category, ...]
    between_machines: float  # t_comm per byte over that inside a machine
    k_max: int = 10
    # Arrivals, of one job per GPU and mean length: by pool size in the experiments of III and IV
    high: Mapping[int, float] = field(default_factory=dict, hash=False)
    low: Mapping[int, float] = field(default_factory=dict, hash=False)

    def step(self, category: Category, share: int, gpus: int) -> float:
        """Return the time of a step over that of one GPU with its largest batch."""
        comm = 0.0
        if gpus > 1:
            comm = category.comm * 2.0 * (gpus - 1) / gpus  # a ring
        if gpus > GPUS_PER_MACHINE:
            comm *= self.between_machines
        return category.fixed + (1.0 - category.fixed) * share / category.cap + comm

    def factor(self, category: Category, batch: int, gpus: int) -> float:
        """Return the throughput scaling factor, eq. 1."""
        return batch / category.cap / self.step(category, -(-batch // gpus), gpus)


def read_world(fit: str) -> IbmWorld:
    """Return the world of a fit: ``ordered`` or ``free``."""
    text = files(__package__).joinpath("fitted.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    fitted = document["fits"][fit]
    categories = [
        Category(**row, **fitted["categories"].get(name, {}))
        for name, row in document["categories"].items()
    ]
    return IbmWorld(
        categories=tuple(categories),
        between_machines=fitted["between_machines"],
        high={int(gpus): rate for gpus, rate in fitted["high"].items()},
        low={int(gpus): rate for gpus, rate in fitted["low"].items()},
    )


@lru_cache(maxsize=4096)  # a workload has a few hundred pairs of category and batch
def sizes_of(world: IbmWorld, category: Category, batch: str | int) -> Sizes:
    """Return sizes and factors of a job with a fixed batch, or the best one at each size.

    Raises:
        ValueError: no size can process the batch.
    """
    if not category.is_elastic:
        return Sizes(least=1, factors=np.array([world.factor(category, category.cap, 1)]))
    least_batch, most_batch = category.b_min, category.b_max
    if not isinstance(batch, str):
        least_batch = most_batch = batch
    bounds = BatchRange(least=least_batch, most=most_batch, per_worker=category.cap)
    factors: list[float] = []
    least_gpus = 0
    for gpus in range(1, world.k_max + 1):
        rate = partial(world.factor, category, gpus=gpus)
        batch_at_size = best_batch(bounds, gpus, rate)
        if batch_at_size is not None:
            least_gpus = least_gpus or gpus
            factors.append(rate(batch_at_size))
    if not factors:
        raise ValueError(f"no size of {category.model} can process the batch {batch}")
    return Sizes(least=least_gpus, factors=np.array(factors))


@dataclass(frozen=True, slots=True, kw_only=True)
class IbmJob:
    """A job: when it comes, how long it is, what it may have."""

    at_min: float
    minutes: float  # on one GPU with its largest batch
    sizes: Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Poisson arrivals, high for a period, then low, and so on."""

    minutes: float  # until the last one
    high: float  # jobs per minute
    low: float
    period_min: float = 120.0

    def draw(self, chance: np.random.Generator) -> list[float]:
        """Return the times, by thinning of a process of the highest rate."""
        times: list[float] = []
        at_min, highest = 0.0, max(self.high, self.low)
        while (at_min := at_min + chance.exponential(1.0 / highest)) < self.minutes:
            is_high = int(at_min // self.period_min) % 2 == 0
            rate = self.high if is_high else self.low
            if chance.random() * highest < rate:
                times.append(at_min)
        return times


def draw_jobs(
    world: IbmWorld, categories: Sequence[Category], arrivals: Arrivals, batch: str, seed: int
) -> list[IbmJob]:
    """Draw jobs of categories with equal probability; with one seed the same for every ``batch``.

    Args:
        world: gives the scaling factors.
        categories: of the jobs.
        arrivals: when they come.
        batch: ``elastic``, or that of the baseline: ``random``, ``max``, ``min``.
        seed: of arrivals, categories and random batches.
    """
    chance = np.random.Generator(np.random.PCG64(seed))
    times = arrivals.draw(chance)
    numbers = chance.integers(len(categories), size=len(times)).tolist()
    jobs: list[IbmJob] = []
    for at_min, number in zip(times, numbers, strict=True):
        category = categories[number]
        # Drawn for elastic jobs, too, so that others do not depend on it.
        random_batch = int(chance.integers(category.b_min, category.b_max, endpoint=True))
        batches = {"random": random_batch, "max": category.b_max, "min": category.b_min}
        sizes = sizes_of(world, category, batches.get(batch, ELASTIC))
        jobs.append(IbmJob(at_min=at_min, minutes=category.minutes, sizes=sizes))
    return jobs
