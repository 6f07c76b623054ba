"""The findings: the other schedulers, and what learning adds to them.

A percentage of the paper can be read in two ways, as so much less time, or as in Table 2, whose
percentages are of the time of DL2; both are shown.
"""

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
from bftrainer.lab.papers.dl2.setting import (
    ALL_REDUCE,
    LARGE,
    RESULTS,
    TABLES,
    TESTBED,
    Amounts,
    Setting,
)
from bftrainer.lab.papers.findings import Finding, percent
from bftrainer.lab.papers.paper import Steps

PLACES = {"testbed": TESTBED, "large": LARGE}
BASELINES = ("drf", "optimus", "fitted", "tetris", "srtf", "capped", "capped tetris", "greedy")
WITH_TRUE_SPEEDS = ("optimus", "greedy")
JUDGED = {("testbed", "optimus"), ("testbed", "fitted"), ("large", "optimus")}
_traces = partial(Amounts.seeds, number="traces", first=2000)  # not learnt from
_learners = partial(Amounts.seeds, first=10)
CLOSE = 3.0  # %: what differs by less is as good
TENS, HUNDREDS = 90, 900  # steps, where the paper gives no more than these words


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


def _improved(
    extent: Amounts, setting: Setting, learners: str, iterations: int, *, is_offline: bool = False
) -> list[Improved]:
    traces = _traces(extent)
    return [
        Improved(setting=setting.name, seed=seed, iterations=iterations, traces=traces,
                 is_offline=is_offline)
        for seed in _learners(extent, learners)
    ]  # fmt: skip


def _published(
    extent: Amounts, learners: str, *, steps: int | None = None, updates: int = 0
) -> list[Imitated]:
    return [
        Imitated(teacher="drf", seed=seed, traces=_traces(extent), is_papers=True, steps=steps,
                 updates=updates)
        for seed in _learners(extent, learners)
    ]  # fmt: skip


def _both(found: Finding, key: str, ours: float) -> None:
    """Compare with a percentage in both readings."""
    for reading in ("less", "ratio"):
        found.line(f"{key}, {reading}", ours)


def _mean(times: list[Times]) -> Times:
    """Return the mean of the seeds, by trace."""
    return tuple(np.mean(times, axis=0).tolist())


def baselines(found: Finding, extent: Amounts) -> Steps:
    """Compare each rule, and the better of those with true speeds, trace by trace, with DRF."""
    records = yield {place: _by_rules(one, BASELINES, extent) for place, one in PLACES.items()}
    for place, times in records.items():
        base = times.pop("drf")
        times["ceiling"] = tuple(map(min, *(times[rule] for rule in WITH_TRUE_SPEEDS)))
        del times["greedy"]
        for rule, of in times.items():
            ours, key = against(of, base), f"{place}: {rule}"
            if (place, rule) in JUDGED:
                _both(found, key, ours)
            else:
                found.line(key, ours)


def code(found: Finding, _: Amounts) -> None:
    """Return what the published code does that the paper does not say, and how Table 2 counts."""
    table = TABLES["differences"]
    found.table(table["columns"], ((name, *cells) for name, cells in table["rows"].items()))
    whole, without_critic, *_ = RESULTS["table2"]["lines"]["slots"]["values"]
    found.line("table2", percent(without_critic / whole - 1.0))


def warm_up(found: Finding, extent: Amounts) -> Steps:
    """Compare networks with the DRF that they imitate; of the paper's the farthest seed."""

    def imitated(teacher: str) -> list[Imitated]:
        traces = _traces(extent)
        return [
            Imitated(teacher=teacher, seed=seed, traces=traces)
            for seed in _learners(extent, "learners")
        ]

    base, networks = yield (
        _drf(extent),
        {
            "tens": _published(extent, "published", steps=TENS),
            "all": _published(extent, "published"),
            "shared": imitated("drf"),
            "greedy": imitated("greedy"),
        },
    )
    for key, times in networks.items():
        ours = max((against(of, base) for of in times), key=abs)
        found.line(key, ours, holds=abs(ours) <= CLOSE if key == "tens" else None, steps=TENS)


def learnt(found: Finding, extent: Amounts) -> Steps:
    """Compare networks that learnt from DRF with the others, on traces not learnt from."""
    tried: list[Tried]
    rules, away, tried, offline = yield (
        _by_rules(TESTBED, ("drf", "fitted", "tetris"), extent),
        _drf(extent, ABSENT),
        _improved(extent, TESTBED, "learners", extent.iterations),
        _improved(extent, TESTBED, "offline", extent.iterations, is_offline=True),
    )
    base = rules["drf"]
    for seed, one in zip(_learners(extent, "learners"), tried, strict=True):
        better = sum(mine < drf for mine, drf in zip(one.best, base, strict=True))
        found.line(
            "seed", against(one.best, base), iterations=extent.iterations, seed=seed,
            better=better, traces=len(base),
        )  # fmt: skip
        ys = {f"seed {seed}": [value for _, value in one.curve]}
        found.chart("fig10", (float(at) for at, _ in one.curve), ys)
    best = _mean([one.best for one in tried])
    ours, tetris = against(best, base), against(rules["tetris"], base)
    _both(found, "drf", ours)
    _both(found, "optimus", against(best, rules["fitted"]))
    _both(found, "offline", against(best, _mean([one.best for one in offline])))
    found.line("tetris", tetris, holds=ours + CLOSE < tetris < -CLOSE)
    found.line("last", against(_mean([one.last for one in tried]), base))
    found.line("absent", against(_mean([one.absent for one in tried]), away))


def fig14(found: Finding, extent: Amounts) -> Steps:
    """Compare the same networks, told of wrong epochs, with DRF and with the right ones."""
    tried: list[Tried]
    base, tried = yield (
        _drf(extent),
        _improved(extent, TESTBED, "learners", extent.iterations),
    )
    wrong = _mean([one.wrong for one in tried])
    _both(found, "drf", against(wrong, base))
    more = against(wrong, _mean([one.best for one in tried]))
    found.line("more", more, holds=0.0 < more <= CLOSE)


def published(found: Finding, extent: Amounts) -> Steps:
    """Compare the paper's learner with DRF, and with where it began."""
    base, before, after, none, alone = yield (
        _drf(extent),
        _published(extent, "published"),
        _published(extent, "published", updates=extent.updates),
        _published(extent, "published", steps=0),
        _published(extent, "published", steps=0, updates=HUNDREDS),
    )
    for seed, times in zip(_learners(extent, "published"), after, strict=True):
        found.line("seed", against(times, base), seed=seed, updates=extent.updates)
    _both(found, "drf", against(_mean(after), base))
    added = against(_mean(after), _mean(before))
    found.line("added", added, holds=added < -CLOSE)
    found.line("none", first := against(_mean(none), base))
    ours = against(_mean(alone), base)
    found.line("alone", ours, holds=ours <= CLOSE < first, updates=HUNDREDS)


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
    found.line(
        "learnt", against(_mean([one.best for one in learners]), base), iterations=iterations
    )
