"""The findings: autoscaling by throughput (Figs. 6, 7), by price (8), stragglers (9, 10), noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from bftrainer.lab.papers.elasticity.replays import Dollars, Extents, OneJob, Slowed
from bftrainer.lab.papers.elasticity.simulator import JOBS, Training
from bftrainer.lab.papers.findings import Finding, less, percent
from bftrainer.lab.papers.paper import Steps

STARTS = {"cifar": range(4, 25, 4), "imagenet": range(32, 65, 4)}
SETTLES_AT = {"cifar": 4, "imagenet": 64}
NOISE = 0.1  # relative, of a step
PRICES_PER_H = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
UTILITIES = (100.0, 1000.0, 10_000.0)
HIGH_RATIO = 1.1
SLOWDOWNS = {"4x": 4.0, "2x": 2.0, "1.33x": 4.0 / 3.0}
MOST_LATE = 12.5  # %


def _beside_static(job: str, found: Finding, extent: Extents) -> Steps:
    """Compare each start with the same number of GPUs throughout."""
    kept, scaled, largest = yield (
        {k: OneJob(job=job, start=k) for k in STARTS[job]},
        {k: [OneJob(job=job, start=k, seed=s) for s in extent.seeds("jobs")] for k in STARTS[job]},
        OneJob(job=job, start=JOBS[job].most),
    )
    by_seed = list(zip(*scaled.values(), strict=True))

    def each(of: Callable[[Training, Training], float]) -> np.ndarray:
        """Return a value of each trial and the static run from its start, by seed and start."""
        return np.array([list(map(of, seed, kept.values())) for seed in by_seed])

    def mean_and_most(key: str, values: np.ndarray, *, is_by_sign: bool = False) -> None:
        for name, value in ((key, values.mean(1)), (f"{key}, most", values.max(1))):
            ours = float(value.mean())
            found.line(name, ours, holds=ours > 0.0 if is_by_sign else None)

    gpu_time = each(lambda ours, its: less(ours.used_gpu_s, its.used_gpu_s))
    mean_and_most("time", each(lambda ours, its: less(ours.completion_s, its.completion_s)))
    if job == "cifar":
        mean_and_most("gpu time", gpu_time)
    mean_and_most("settled", each(lambda ours, _: ours.settled_s))
    means = {k: float(np.mean([one.completion_s for one in ones])) for k, ones in scaled.items()}
    if job == "imagenet":
        found.line("from 32", means[32])
        mean_and_most("gpu time", -gpu_time, is_by_sign=True)
        beside = float(each(lambda o, _: -less(o.used_gpu_s, largest.used_gpu_s)).mean())
        found.line("beside 64", beside, holds=beside > 0.0)
    ends, end = {one.workers for seed in by_seed for one in seed}, SETTLES_AT[job]
    found.line("size", float(max(ends, key=lambda size: abs(size - end))), holds=ends == {end})
    ys = {"static": [one.completion_s for one in kept.values()], "autoscaling": [*means.values()]}
    found.chart("fig6a" if job == "cifar" else "fig7a", map(float, kept), ys)


fig6, fig7 = partial(_beside_static, "cifar"), partial(_beside_static, "imagenet")


def fig8(found: Finding, extent: Extents) -> Steps:
    """Completion time by the price of a worker: the dearest beside the cheapest."""

    def trials(dollars: Dollars) -> list[OneJob]:
        seeds = extent.seeds("jobs")
        return [OneJob(job="cpus", start=4, seed=seed, dollars=dollars) for seed in seeds]

    records = yield {
        shape: {
            most: [trials(Dollars(shape=shape, most=most, price_per_h=p)) for p in PRICES_PER_H]
            for most in UTILITIES
        }
        for shape in ("linear", "step")
    }
    for shape, by_most in records.items():
        minutes = {
            most: [float(np.mean([one.completion_s / 60 for one in ones])) for ones in by_price]
            for most, by_price in by_most.items()
        }
        low, high = (minutes[most][-1] / minutes[most][0] for most in (UTILITIES[0], UTILITIES[-1]))
        found.line(shape, low)
        found.line(f"{shape}, high", high, holds=high <= HIGH_RATIO)
        ys = {f"at most {most:,.0f} $": y for most, y in minutes.items()}
        found.chart("fig8", PRICES_PER_H, ys, shape=shape)


def _slowed(extent: Extents, slowdown: float, *, replaces: bool) -> list[Slowed]:
    seeds = extent.seeds("stragglers")
    return [Slowed(slowdown=slowdown, replaces=replaces, seed=seed) for seed in seeds]


def fig9(found: Finding, extent: Extents) -> Steps:
    """How long a straggler trains until its replacement does."""
    records = yield {name: _slowed(extent, s, replaces=True) for name, s in SLOWDOWNS.items()}
    for name, ones in records.items():
        life_s = float(np.mean([life for one in ones for life in one.lives_s]))
        found.line(name, life_s, holds=60.0 <= life_s <= 120.0)


def fig10(found: Finding, extent: Extents) -> Steps:
    """Completion time with stragglers: replaced, kept, and without any."""
    records = yield {
        "kept": {name: _slowed(extent, s, replaces=False) for name, s in SLOWDOWNS.items()},
        "replaced": {name: _slowed(extent, s, replaces=True) for name, s in SLOWDOWNS.items()},
        "no stragglers": dict.fromkeys(SLOWDOWNS, _slowed(extent, 1.0, replaces=False)),
    }
    times = {
        way: {name: np.array([one.completion_s for one in ones]) for name, ones in by_name.items()}
        for way, by_name in records.items()
    }
    kept, replaced, none = times.values()
    saved = {n: percent(float(np.mean(1.0 - replaced[n] / kept[n]))) for n in SLOWDOWNS}
    late = max(percent(float(np.mean(replaced[n] / none[n] - 1.0))) for n in SLOWDOWNS)
    for name, share in saved.items():
        found.line(name, share)
    is_ordered = all(more > fewer > 0.0 for more, fewer in pairwise(saved.values()))
    found.line("order", None, holds=is_ordered)
    found.line("late", late, holds=late <= MOST_LATE)
    ys = {way: [float(np.mean(of[n])) / 60 for n in SLOWDOWNS] for way, of in times.items()}
    found.chart("fig10", SLOWDOWNS, ys)


def noise(found: Finding, extent: Extents) -> Steps:
    """Share of trials that reach 64 GPUs, of the paper's rule and of ours."""
    one = partial(OneJob, job="imagenet", start=32, step_noise=NOISE)
    records = yield {
        key: [one(seed=seed, is_patient=is_patient) for seed in extent.seeds("noise")]
        for key, is_patient in (("one window", False), ("two errors", True))
    }
    for key, ones in records.items():
        share = percent(float(np.mean([one.workers == 64 for one in ones])))
        found.line(key, share, holds=share >= 90.0)
