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
from bftrainer.lab.papers.findings import Finding, map_values, percent, tabulate
from bftrainer.lab.papers.paper import Steps, per_seed

PLACES = {"testbed": TESTBED, "large": LARGE}
BASELINES = ("drf", "optimus", "fitted", "tetris", "srtf", "capped", "capped tetris", "greedy")
JUDGED = {("testbed", "optimus"), ("testbed", "fitted"), ("large", "optimus")}
_traces = partial(Amounts.seeds, number="traces", first=2000)  # not learnt from
_learners = partial(Amounts.seeds, first=10)
CLOSE = 3.0  # %: what differs by less is as good
TENS, HUNDREDS = 90, 900  # steps, where the paper gives no more than these words


def _by_rules(
    setting: Setting, rules: tuple[str, ...], extent: Amounts, absent: float = 0.0
) -> dict[str, list[ByRule]]:
    """Return the plays of each rule, trace by trace."""

    def plays(rule: str) -> list[ByRule]:
        play = partial(ByRule, setting=setting.name, rule=rule, absent=absent)
        return [play(trace=trace) for trace in _traces(extent)]

    return tabulate(plays, rules)


def _drf(extent: Amounts, absent: float = 0.0) -> list[ByRule]:
    return _by_rules(TESTBED, ("drf",), extent, absent)["drf"]


def _improved(
    extent: Amounts, setting: Setting, learners: str, iterations: int, *, is_offline: bool = False
) -> list[Improved]:
    improved = partial(
        Improved, setting=setting.name, iterations=iterations, traces=_traces(extent),
        is_offline=is_offline,
    )  # fmt: skip
    return per_seed(improved, _learners(extent, learners))


def _published(
    extent: Amounts, learners: str, *, steps: int | None = None, updates: int = 0
) -> list[Imitated]:
    imitation = partial(
        Imitated, teacher="drf", traces=_traces(extent), is_papers=True, steps=steps,
        updates=updates,
    )  # fmt: skip
    return per_seed(imitation, _learners(extent, learners))


def _both(finding: Finding, key: str, ours: float) -> None:
    """Compare with a percentage in both readings."""
    for reading in ("less", "ratio"):
        finding.line(f"{key}, {reading}", ours)


def _mean(times: list[Times]) -> Times:
    """Return the mean of the seeds, by trace."""
    return tuple(np.mean(times, axis=0).tolist())


def _mean_of(tries: list[Tried], field: str) -> Times:
    """Return the mean of the seeds of one of the times that were tried."""
    return _mean([getattr(attempt, field) for attempt in tries])


def baselines(finding: Finding, extent: Amounts) -> Steps:
    """Compare each rule, and the better of those with true speeds, trace by trace, with DRF."""
    records = yield map_values(lambda setting: _by_rules(setting, BASELINES, extent), PLACES)
    for place, times_of in records.items():
        base = times_of.pop("drf")
        optimus, greedy = times_of["optimus"], times_of.pop("greedy")
        times_of["ceiling"] = tuple(map(min, optimus, greedy))
        for rule, times in times_of.items():
            ours, key = against(times, base), f"{place}: {rule}"
            if (place, rule) in JUDGED:
                _both(finding, key, ours)
            else:
                finding.line(key, ours)


def code(finding: Finding, _: Amounts) -> None:
    """Return what the published code does that the paper does not say, and how Table 2 counts."""
    table = TABLES["differences"]
    finding.table(table["columns"], [(name, *cells) for name, cells in table["rows"].items()])
    whole, without_critic, *_ = RESULTS["table2"]["lines"]["slots"]["values"]
    finding.line("table2", percent(without_critic / whole - 1.0))


def warm_up(finding: Finding, extent: Amounts) -> Steps:
    """Compare networks with the DRF that they imitate; of the paper's the farthest seed."""

    def imitations(teacher: str) -> list[Imitated]:
        imitation = partial(Imitated, teacher=teacher, traces=_traces(extent))
        return per_seed(imitation, _learners(extent, "learners"))

    base, networks = yield (
        _drf(extent),
        {
            "tens": _published(extent, "published", steps=TENS),
            "all": _published(extent, "published"),
            "shared": imitations("drf"),
            "greedy": imitations("greedy"),
        },
    )
    for key, by_seed in networks.items():
        ours = max((against(times, base) for times in by_seed), key=abs)
        finding.line(key, ours, holds=abs(ours) <= CLOSE if key == "tens" else None, steps=TENS)


def learnt(finding: Finding, extent: Amounts) -> Steps:
    """Compare networks that learnt from DRF with the others, on traces not learnt from."""
    tries: list[Tried]
    rules, base_absent, tries, offline = yield (
        _by_rules(TESTBED, ("drf", "fitted", "tetris"), extent),
        _drf(extent, ABSENT),
        _improved(extent, TESTBED, "learners", extent.iterations),
        _improved(extent, TESTBED, "offline", extent.iterations, is_offline=True),
    )
    base = rules["drf"]
    for seed, attempt in zip(_learners(extent, "learners"), tries, strict=True):
        better = int(np.less(attempt.best, base).sum())
        finding.line(
            "seed", against(attempt.best, base), iterations=extent.iterations, seed=seed,
            better=better, traces=len(base),
        )  # fmt: skip
        iterations, values = zip(*attempt.curve, strict=True)
        finding.chart("fig10", map(float, iterations), {f"seed {seed}": values})
    best = _mean_of(tries, "best")
    ours, tetris = against(best, base), against(rules["tetris"], base)
    _both(finding, "drf", ours)
    _both(finding, "optimus", against(best, rules["fitted"]))
    _both(finding, "offline", against(best, _mean_of(offline, "best")))
    finding.line("tetris", tetris, holds=ours + CLOSE < tetris < -CLOSE)
    finding.line("last", against(_mean_of(tries, "last"), base))
    finding.line("absent", against(_mean_of(tries, "absent"), base_absent))


def fig14(finding: Finding, extent: Amounts) -> Steps:
    """Compare the same networks, told of wrong epochs, with DRF and with the right ones."""
    tries: list[Tried]
    base, tries = yield (
        _drf(extent),
        _improved(extent, TESTBED, "learners", extent.iterations),
    )
    wrong = _mean_of(tries, "wrong")
    _both(finding, "drf", against(wrong, base))
    loss = against(wrong, _mean_of(tries, "best"))
    finding.line("more", loss, holds=0.0 < loss <= CLOSE)


def published(finding: Finding, extent: Amounts) -> Steps:
    """Compare the paper's learner with DRF, and with where it began."""
    base, before, after, untrained, alone = yield (
        _drf(extent),
        _published(extent, "published"),
        _published(extent, "published", updates=extent.updates),
        _published(extent, "published", steps=0),
        _published(extent, "published", steps=0, updates=HUNDREDS),
    )
    for seed, times in zip(_learners(extent, "published"), after, strict=True):
        finding.line("seed", against(times, base), seed=seed, updates=extent.updates)
    _both(finding, "drf", against(_mean(after), base))
    change = against(_mean(after), _mean(before))
    finding.line("added", change, holds=change < -CLOSE)
    at_random = against(_mean(untrained), base)
    finding.line("none", at_random)
    ours = against(_mean(alone), base)
    finding.line("alone", ours, holds=ours <= CLOSE < at_random, updates=HUNDREDS)


def all_reduce(finding: Finding, extent: Amounts) -> Steps:
    """Compare jobs without servers with DRF."""
    iterations = extent.all_reduce
    times_of, learners = yield (
        _by_rules(ALL_REDUCE, ("drf", "srtf", "optimus"), extent),
        _improved(extent, ALL_REDUCE, "published", iterations),
    )
    base = times_of.pop("drf")
    for rule, times in times_of.items():
        finding.line(rule, against(times, base))
    best = _mean_of(learners, "best")
    finding.line("learnt", against(best, base), iterations=iterations)
