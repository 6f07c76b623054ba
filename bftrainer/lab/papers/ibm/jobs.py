"""The job categories of Table I and their throughput scaling factors (section III-B, eq. 1 and 2).

All rates are relative: a GPU with its largest batch does 1, so that a job's length is its minutes
on one GPU. What the paper leaves out is in ``fitted.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
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
    """What a job may have: sizes from ``least`` on, and their scaling factors."""

    least: int
    factors: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Categories, network and arrivals: what the paper says, completed by a fit."""

    categories: tuple[Category, ...]
    between_machines: float  # t_comm per byte over that inside a machine
    k_max: int = 10
    # Arrivals, of one job per GPU and mean length: by pool size in the experiments of III and IV
    high: tuple[tuple[int, float], ...] = ()
    low: tuple[tuple[int, float], ...] = ()

    def step(self, category: Category, share: int, gpus: int) -> float:
        """Return the time of a step over that of one GPU with its largest batch."""
        comm = 0.0 if gpus == 1 else category.comm * 2.0 * (gpus - 1) / gpus  # a ring
        if gpus > GPUS_PER_MACHINE:
            comm *= self.between_machines
        return category.fixed + (1.0 - category.fixed) * share / category.cap + comm

    def factor(self, category: Category, batch: int, gpus: int) -> float:
        """Return the throughput scaling factor, eq. 1."""
        return batch / category.cap / self.step(category, -(-batch // gpus), gpus)


def read_world(fit: str) -> World:
    """Return the world of a fit: ``ordered`` or ``free``."""
    text = files(__package__).joinpath("fitted.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    fitted = document["fits"][fit]
    categories = [
        Category(**row, **fitted["categories"].get(name, {}))
        for name, row in document["categories"].items()
    ]
    return World(
        categories=tuple(categories),
        between_machines=fitted["between_machines"],
        high=tuple((int(gpus), rate) for gpus, rate in fitted["high"].items()),
        low=tuple((int(gpus), rate) for gpus, rate in fitted["low"].items()),
    )


@lru_cache(maxsize=4096)  # a workload has a few hundred pairs of category and batch
def sizes_of(world: World, category: Category, batch: str | int) -> Sizes:
    """Return sizes and factors of a job with a fixed batch, or the best one at each size.

    Raises:
        ValueError: no size can process the batch.
    """
    if not category.is_elastic:
        return Sizes(least=1, factors=np.array([world.factor(category, category.cap, 1)]))
    least_batch, most_batch = (
        (category.b_min, category.b_max) if isinstance(batch, str) else (batch, batch)
    )
    bounds = BatchRange(least=least_batch, most=most_batch, per_worker=category.cap)
    factors: list[float] = []
    least = 0
    for gpus in range(1, world.k_max + 1):
        rate = _rate(world, category, gpus)
        chosen = best_batch(bounds, gpus, rate)
        if chosen is not None:
            least = least or gpus
            factors.append(rate(chosen))
    if not factors:
        raise ValueError(f"no size of {category.model} can process the batch {batch}")
    return Sizes(least=least, factors=np.array(factors))


def _rate(world: World, category: Category, gpus: int) -> Callable[[int], float]:
    return lambda batch: world.factor(category, batch, gpus)


def with_caps_of_the_largest_batch(world: World) -> World:
    """Return a world in which the largest batch of every category fits one GPU."""
    return replace(world, categories=tuple(replace(one, cap=one.b_max) for one in world.categories))
