"""Draws the jobs of an experiment (section IV-A)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bftrainer.lab.papers.ibm.jobs import ELASTIC, Category, Sizes, World, sizes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
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
        at_min, most = 0.0, max(self.high, self.low)
        while (at_min := at_min + chance.exponential(1.0 / most)) < self.minutes:
            is_high = int(at_min // self.period_min) % 2 == 0
            if chance.random() * most < (self.high if is_high else self.low):
                times.append(at_min)
        return times


def draw_jobs(
    world: World, categories: Sequence[Category], arrivals: Arrivals, batch: str, seed: int
) -> list[Job]:
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
    drawn = [categories[i] for i in chance.integers(len(categories), size=len(times)).tolist()]
    random = [
        int(chance.integers(one.b_min, one.b_max, endpoint=True)) for one in drawn
    ]  # drawn for elastic jobs, too, so that others do not depend on it
    found: list[Job] = []
    for at_min, category, number in zip(times, drawn, random, strict=True):
        fixed = {"random": number, "max": category.b_max, "min": category.b_min}.get(batch, ELASTIC)
        sizes = sizes_of(world, category, fixed)
        found.append(Job(at_min=at_min, minutes=category.minutes, sizes=sizes))
    return found
