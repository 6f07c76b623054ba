"""The findings: the other schedulers at 500 servers, and what learning adds to them."""

from __future__ import annotations

from functools import partial

import numpy as np

from bftrainer.lab.papers.dl2.replays import (
    ABSENT,
    ByRule,
    Imitated,
    Improved,
    Times,
    Tried,
    against,
)
from bftrainer.lab.papers.dl2.setting import ALL_REDUCE, LARGE, TABLES, TESTBED, Amounts, Setting
from bftrainer.lab.papers.findings import Finding
from bftrainer.lab.papers.paper import Steps

BASELINES = ("optimus", "fitted", "tetris", "srtf", "capped")
WITH_TRUE_SPEEDS = ("optimus", "greedy")
_traces = partial(Amounts.seeds, number="traces", first=2000)  # not learnt from
_learners = partial(Amounts.seeds, first=10)
CLOSE = 3.0  # %: so far may a warmed-up network be from its teacher


def _by_rules(
    setting: Setting, rules: tuple[str, ...], extent: Amounts, absent: float = 0.0
) -> dict[str, list[ByRule]]:
    """Return the plays of each rule, trace by trace."""
    return {
        rule: [
            ByRule(setting=setting.name, rule=rule, trace=trace, absent=absent)
            for trace in _traces(extent)
        ]
        for rule in rules
    }


def _drf(extent: Amounts, absent: float = 0.0) -> list[ByRule]:
    return _by_rules(TESTBED, ("drf",), extent, absent)["drf"]


def _improved(extent: Amounts, setting: Setting, learners: str, iterations: int) -> list[Improved]:
    traces = _traces(extent)
    return [
        Improved(setting=setting.name, seed=seed, iterations=iterations, traces=traces)
        for seed in _learners(extent, learners)
    ]


def baselines(found: Finding, extent: Amounts) -> Steps:
    """Compare each with DRF."""
    base, times = yield (
        _by_rules(LARGE, ("drf",), extent)["drf"],
        _by_rules(LARGE, BASELINES, extent),
    )
    for rule, of in times.items():
        ours = against(of, base)
        found.line(rule, ours, holds=ours < 0.0 if rule == "tetris" else None)


def ceiling(found: Finding, extent: Amounts) -> Steps:
    """Compare the better of the rules that know the true speeds, trace by trace, with DRF."""
    clusters = {"large": LARGE, "testbed": TESTBED}
    rules = ("drf", *WITH_TRUE_SPEEDS)
    records = yield {key: _by_rules(one, rules, extent) for key, one in clusters.items()}
    for key, times in records.items():
        base, *known = times.values()
        found.line(key, against(tuple(map(min, *known)), base))


def code(found: Finding, _: Amounts) -> None:
    """Return what the published code does that the paper does not say."""
    table = TABLES["differences"]
    found.table(table["columns"], ((name, *cells) for name, cells in table["rows"].items()))


def warm_up(found: Finding, extent: Amounts) -> Steps:
    """Compare networks with the DRF that they imitate."""
    seeds, published = (
        _learners(extent, "learners"),
        _learners(extent, "published"),
    )

    def imitated(seeds: range, teacher: str = "drf", *, is_papers: bool = False) -> list[Imitated]:
        traces = _traces(extent)
        return [
            Imitated(teacher=teacher, seed=seed, traces=traces, is_papers=is_papers)
            for seed in seeds
        ]

    base, networks = yield (
        _drf(extent),
        {
            "shared": imitated(seeds),
            "dense": imitated(published, is_papers=True),
            "greedy": imitated(seeds, "greedy"),
        },
    )
    for key, times in networks.items():
        for seed, of in zip(published if key == "dense" else seeds, times, strict=True):
            ours = against(of, base)
            holds = None if key == "greedy" else abs(ours) <= CLOSE
            found.line(key, ours, holds=holds, seed=seed)


def fig10(found: Finding, extent: Amounts) -> Steps:
    """Compare networks that learnt from DRF with DRF, on traces that were not learnt from."""
    tried: list[Tried]
    base, fitted, away, tried = yield (
        _drf(extent),
        _by_rules(TESTBED, ("fitted",), extent)["fitted"],
        _drf(extent, ABSENT),
        _improved(extent, TESTBED, "learners", extent.iterations),
    )
    seeds = _learners(extent, "learners")
    best = [against(one.best, base) for one in tried]
    for seed, one, ours in zip(seeds, tried, best, strict=True):
        better = sum(mine < drf for mine, drf in zip(one.best, base, strict=True))
        found.line(
            "seed", ours, iterations=extent.iterations, seed=seed, better=better, traces=len(base)
        )
        ys = {f"seed {seed}": [value for _, value in one.curve]}
        found.chart("fig10", (float(at) for at, _ in one.curve), ys)
    found.line("mean", float(np.mean(best)))
    found.line("last", float(np.mean([against(one.last, base) for one in tried])))
    found.line("optimus", against(fitted, base))
    found.line("absent", float(np.mean([against(one.absent, away) for one in tried])))


def published(found: Finding, extent: Amounts) -> Steps:
    """Compare the paper's learner with the DRF that it began from."""
    base, learners = yield (
        _drf(extent),
        {
            seed: Imitated(
                teacher="drf", seed=seed, traces=_traces(extent), is_papers=True,
                updates=extent.updates,
            )
            for seed in _learners(extent, "published")
        },
    )  # fmt: skip
    times: Times
    for seed, times in learners.items():
        found.line("seed", against(times, base), seed=seed, updates=extent.updates)


def all_reduce(found: Finding, extent: Amounts) -> Steps:
    """Compare jobs without servers with DRF."""
    iterations = extent.all_reduce
    times, learners = yield (
        _by_rules(ALL_REDUCE, ("drf", "srtf", "optimus"), extent),
        _improved(extent, ALL_REDUCE, "published", iterations),
    )
    base = times.pop("drf")
    for rule, of in times.items():
        found.line(rule, against(of, base))
    mean = float(np.mean([against(one.best, base) for one in learners]))
    found.line("learnt", mean, iterations=iterations)
