"""The findings: autoscaling by throughput (Figs. 6, 7), by price (8), stragglers (9, 10), noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from bftrainer.lab.papers.elasticity.replays import Dollars, Extents, OneJob, Slowed
from bftrainer.lab.papers.elasticity.simulator import JOBS, SlowedOutcome, Training
from bftrainer.lab.papers.findings import Finding, less, map_values, percent, tabulate
from bftrainer.lab.papers.paper import Steps, per_seed

STARTS = {"cifar": range(4, 25, 4), "imagenet": range(32, 65, 4)}
EPOCHS, LONG_EPOCHS = 5, 100  # of ImageNet: trained, and what the paper compares with
SETTLES_AT = {"cifar": 4, "imagenet": 64}
NOISE = 0.1  # relative, of a step
PRICES_PER_H = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
UTILITIES = (100.0, 1000.0, 10_000.0)
HIGH_RATIO = 1.1
SLOWDOWNS = {"4x": 4.0, "2x": 2.0, "1.33x": 4.0 / 3.0}
MOST_LATE = 12.5  # %


def _beside_static(job: str, finding: Finding, extent: Extents) -> Steps:
    """Compare each start with the same number of GPUs throughout."""

    def trials(start: int) -> list[OneJob]:
        return per_seed(partial(OneJob, job=job, start=start), extent.seeds("jobs"))

    static, scaled, largest = yield (
        tabulate(lambda start: OneJob(job=job, start=start), STARTS[job]),
        tabulate(trials, STARTS[job]),
        OneJob(job=job, start=JOBS[job].most),
    )
    by_seed = list(zip(*scaled.values(), strict=True))

    def each(compare: Callable[[Training, Training], float]) -> np.ndarray:
        """Return a value of each trial and the static run from its start, by seed and start."""
        return np.array([list(map(compare, trained, static.values())) for trained in by_seed])

    def mean_and_most(key: str, values: np.ndarray) -> float:
        most_of_seeds = float(values.max(1).mean())
        finding.line(key, float(values.mean()))
        finding.line(f"{key}, most", most_of_seeds)
        return most_of_seeds

    gpu_time = each(lambda ours, its: less(ours.used_gpu_s, its.used_gpu_s))
    mean_and_most("time", each(lambda ours, its: less(ours.completion_s, its.completion_s)))
    if job == "cifar":
        mean_and_most("gpu time", gpu_time)
    settled_s = mean_and_most("settled", each(lambda ours, _: ours.settled_s))
    means = map_values(_mean_completion_s, scaled)
    if job == "imagenet":
        finding.line("from 32", means[32])
        finding.line("share", percent(settled_s / (LONG_EPOCHS / EPOCHS * means[32])))
        mean_and_most("gpu time", -gpu_time)
        finding.line("dearest", float(STARTS[job][int(gpu_time.mean(0).argmin())]))
        beside = each(lambda ours, _: -less(ours.used_gpu_s, largest.used_gpu_s))
        finding.line("beside 64", float(beside.mean()))
    finding.line("size", _farthest_size(scaled, SETTLES_AT[job]))
    static_s = _completions_s(static.values()).tolist()
    ys = {"static": static_s, "autoscaling": [*means.values()]}
    finding.chart("fig6a" if job == "cifar" else "fig7a", map(float, static), ys)


def _completions_s(trials: Iterable[Training | SlowedOutcome]) -> np.ndarray:
    return np.array([trial.completion_s for trial in trials])


def _mean_completion_s(trials: Sequence[Training]) -> float:
    return float(_completions_s(trials).mean())


def _farthest_size(scaled: Mapping[int, Sequence[Training]], goal: int) -> float:
    """Return the number of workers at the end that is farthest from the goal."""
    sizes = set[int]()
    for trials in scaled.values():
        for trial in trials:
            sizes.add(trial.workers)
    return float(max(sizes, key=lambda size: abs(size - goal)))


fig6, fig7 = partial(_beside_static, "cifar"), partial(_beside_static, "imagenet")


def fig8(finding: Finding, extent: Extents) -> Steps:
    """Completion time by the price of a worker: the dearest beside the cheapest."""
    seeds = extent.seeds("jobs")

    def trials(shape: str, worth: float, price_per_h: float) -> list[OneJob]:
        dollars = Dollars(shape=shape, most=worth, price_per_h=price_per_h)
        return per_seed(partial(OneJob, job="cpus", start=4, dollars=dollars), seeds)

    def by_utility(shape: str) -> dict[float, list[list[OneJob]]]:
        """Return the trials by the most that completion is worth, and by price."""
        return tabulate(lambda worth: [trials(shape, worth, p) for p in PRICES_PER_H], UTILITIES)

    records = yield tabulate(by_utility, ("linear", "step"))
    high_ratios, low, high = [], UTILITIES[0], UTILITIES[-1]
    for shape, by_worth in records.items():
        minutes = map_values(lambda by_price: list(map(_mean_minutes, by_price)), by_worth)
        finding.line(shape, minutes[low][-1] / minutes[low][0])
        if shape == "linear":
            finding.line("fastest", max(minutes[high]))
        else:
            finding.line("target", float(np.mean(minutes[high])))
        high_ratios.append(minutes[high][-1] / minutes[high][0])
        ys = {f"at most {worth:,.0f} $": by_price for worth, by_price in minutes.items()}
        finding.chart("fig8", PRICES_PER_H, ys, shape=shape)
    finding.line("high", max(high_ratios), holds=max(high_ratios) <= HIGH_RATIO)


def _mean_minutes(trials: Sequence[Training]) -> float:
    return float((_completions_s(trials) / 60).mean())


def _slowed(extent: Extents, slowdown: float, *, replaces: bool) -> list[Slowed]:
    slowed = partial(Slowed, slowdown=slowdown, replaces=replaces)
    return per_seed(slowed, extent.seeds("stragglers"))


def _by_slowdown(extent: Extents, *, replaces: bool) -> dict[str, list[Slowed]]:
    return map_values(lambda slowdown: _slowed(extent, slowdown, replaces=replaces), SLOWDOWNS)


def _mean_life_s(outcomes: Sequence[SlowedOutcome]) -> float:
    """Return the mean life of all stragglers that were replaced, s."""
    lives_s: list[float] = []
    for outcome in outcomes:
        lives_s += outcome.lives_s
    return float(np.mean(lives_s))


def fig9(finding: Finding, extent: Extents) -> Steps:
    """How long a straggler trains until its replacement does."""
    records = yield _by_slowdown(extent, replaces=True)
    lives_s = map_values(_mean_life_s, records)
    life_s = float(np.mean([*lives_s.values()]))
    finding.line("life", life_s, holds=60.0 <= life_s <= 120.0)
    for name, its_s in lives_s.items():
        finding.line("slower", its_s, name=name)


def fig10(finding: Finding, extent: Extents) -> Steps:
    """Completion time with stragglers: replaced, kept, and without any."""
    records = yield {
        "kept": _by_slowdown(extent, replaces=False),
        "replaced": _by_slowdown(extent, replaces=True),
        "no stragglers": dict.fromkeys(SLOWDOWNS, _slowed(extent, 1.0, replaces=False)),
    }
    times = map_values(lambda by_name: map_values(_completions_s, by_name), records)
    kept_s, replaced_s, undisturbed_s = times.values()
    delays = []
    for name in SLOWDOWNS:
        finding.line(name, percent(float(np.mean(1.0 - replaced_s[name] / kept_s[name]))))
        delays.append(percent(float(np.mean(replaced_s[name] / undisturbed_s[name] - 1.0))))
    delay = max(delays)
    finding.line("late", delay, holds=delay <= MOST_LATE)
    ys = {}
    for way, by_name in times.items():
        ys[way] = [float(np.mean(by_name[name])) / 60 for name in SLOWDOWNS]
    finding.chart("fig10", SLOWDOWNS, ys)


def noise(finding: Finding, extent: Extents) -> Steps:
    """Share of trials that reach 64 GPUs, of the paper's rule and of ours."""
    trial = partial(OneJob, job="imagenet", start=32, step_noise=NOISE)
    seeds = extent.seeds("noise")
    records = yield {
        "one window": per_seed(trial, seeds),
        "two errors": per_seed(partial(trial, is_patient=True), seeds),
    }
    for key, trials in records.items():
        finding.line(key, percent(float(np.mean([trained.workers == 64 for trained in trials]))))
