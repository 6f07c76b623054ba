"""The findings: autoscaling by throughput (Figs. 6, 7), by price (8), stragglers (9, 10), noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from bftrainer.lab.papers.elasticity.replays import Dollars, Extents, OneJob, Slowed
from bftrainer.lab.papers.elasticity.simulator import JOBS, Training
from bftrainer.lab.papers.findings import Finding, less, percent
from bftrainer.lab.papers.paper import Steps

STARTS = {"cifar": range(4, 25, 4), "imagenet": range(32, 65, 4)}
EPOCHS, LONG_EPOCHS = 5, 100  # of ImageNet: trained, and what the paper compares with
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

    def mean_and_most(key: str, values: np.ndarray) -> float:
        most = float(values.max(1).mean())
        found.line(key, float(values.mean()))
        found.line(f"{key}, most", most)
        return most

    gpu_time = each(lambda ours, its: less(ours.used_gpu_s, its.used_gpu_s))
    mean_and_most("time", each(lambda ours, its: less(ours.completion_s, its.completion_s)))
    if job == "cifar":
        mean_and_most("gpu time", gpu_time)
    settled_s = mean_and_most("settled", each(lambda ours, _: ours.settled_s))
    means = {k: float(np.mean([one.completion_s for one in ones])) for k, ones in scaled.items()}
    if job == "imagenet":
        found.line("from 32", means[32])
        found.line("share", percent(settled_s / (LONG_EPOCHS / EPOCHS * means[32])))
        mean_and_most("gpu time", -gpu_time)
        found.line("dearest", float(STARTS[job][int(gpu_time.mean(0).argmin())]))
        beside = each(lambda ours, _: -less(ours.used_gpu_s, largest.used_gpu_s))
        found.line("beside 64", float(beside.mean()))
    ends, end = {one.workers for seed in by_seed for one in seed}, SETTLES_AT[job]
    found.line("size", float(max(ends, key=lambda size: abs(size - end))))
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
    highs, low, high = [], UTILITIES[0], UTILITIES[-1]
    for shape, by_most in records.items():
        minutes = {
            most: [float(np.mean([one.completion_s / 60 for one in ones])) for ones in by_price]
            for most, by_price in by_most.items()
        }
        found.line(shape, minutes[low][-1] / minutes[low][0])
        if shape == "linear":
            found.line("fastest", max(minutes[high]))
        else:
            found.line("target", float(np.mean(minutes[high])))
        highs.append(minutes[high][-1] / minutes[high][0])
        ys = {f"at most {most:,.0f} $": y for most, y in minutes.items()}
        found.chart("fig8", PRICES_PER_H, ys, shape=shape)
    found.line("high", max(highs), holds=max(highs) <= HIGH_RATIO)


def _slowed(extent: Extents, slowdown: float, *, replaces: bool) -> list[Slowed]:
    seeds = extent.seeds("stragglers")
    return [Slowed(slowdown=slowdown, replaces=replaces, seed=seed) for seed in seeds]


def fig9(found: Finding, extent: Extents) -> Steps:
    """How long a straggler trains until its replacement does."""
    records = yield {name: _slowed(extent, s, replaces=True) for name, s in SLOWDOWNS.items()}
    lives_s = {n: np.mean([s for one in ones for s in one.lives_s]) for n, ones in records.items()}
    life_s = float(np.mean([*lives_s.values()]))
    found.line("life", life_s, holds=60.0 <= life_s <= 120.0)
    for name, its_s in lives_s.items():
        found.line("slower", float(its_s), name=name)


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
        found.line(key, percent(float(np.mean([one.workers == 64 for one in ones]))))
