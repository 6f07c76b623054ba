"""The other schedulers at 500 servers, and what learning adds to them."""

from __future__ import annotations

import numpy as np

from bftrainer.lab.papers.dl2.replays import ABSENT, ByRule, Imitated, Improved, Run, Tried, against
from bftrainer.lab.papers.dl2.setting import ALL_REDUCE, EXPECTED, LARGE, TESTBED, Amounts, Setting
from bftrainer.lab.papers.findings import Chart, Plotted, Reproduced, Table
from bftrainer.lab.papers.paper import Records

BASELINES = ("optimus", "fitted", "tetris", "srtf", "capped")
WITH_TRUE_SPEEDS = ("optimus", "greedy")


def completion(
    records: Records, setting: Setting, rule: str, extent: Amounts, absent: float = 0.0
) -> tuple[float, ...]:
    """Return a rule's completion time of each trace."""
    runs = by_rule(setting, rule, extent, absent)
    return tuple(records[run] for run in runs)


def by_rule(
    setting: Setting, rule: str, extent: Amounts, absent: float = 0.0
) -> tuple[ByRule, ...]:
    """Return the plays of a rule."""
    return tuple(
        ByRule(setting=setting.name, rule=rule, trace=trace, absent=absent)
        for trace in extent.test()
    )


def runs(extent: Amounts) -> tuple[ByRule, ...]:
    """Return all baselines at 500 servers."""
    return tuple(run for rule in ("drf", *BASELINES) for run in by_rule(LARGE, rule, extent))


def find(records: Records, extent: Amounts) -> Reproduced:
    """Compare each with DRF."""
    base = completion(records, LARGE, "drf", extent)
    lines = []
    for rule in BASELINES:
        ours = against(completion(records, LARGE, rule, extent), base)
        holds = ours < 0.0 if rule == "tetris" else None
        lines.append(EXPECTED.line("baselines", rule, ours, holds=holds))
    return Reproduced(lines=tuple(lines))


def ceiling_runs(extent: Amounts) -> tuple[ByRule, ...]:
    """Return the rules that know the true speeds, on both clusters."""
    return tuple(
        run
        for setting in (LARGE, TESTBED)
        for rule in ("drf", *WITH_TRUE_SPEEDS)
        for run in by_rule(setting, rule, extent)
    )


def ceiling(records: Records, extent: Amounts) -> Reproduced:
    """Compare the better of them, trace by trace, with DRF."""
    lines = []
    for key, setting in (("large", LARGE), ("testbed", TESTBED)):
        known = [completion(records, setting, rule, extent) for rule in WITH_TRUE_SPEEDS]
        best = tuple(map(min, *known))
        base = completion(records, setting, "drf", extent)
        lines.append(EXPECTED.line("ceiling", key, against(best, base)))
    return Reproduced(lines=tuple(lines))


def differences(_: Records, __: Amounts) -> Reproduced:
    """Return what the published code does that the paper does not say."""
    table = EXPECTED.tables["differences"]
    rows = tuple((name, *cells) for name, cells in table["rows"].items())
    return Reproduced(lines=(), tables=(Table(headers=tuple(table["columns"]), rows=rows),))


CLOSE = 3.0  # %: so far may a warmed-up network be from its teacher


def _imitated(extent: Amounts, seed: int, teacher: str = "drf", *, is_papers: bool) -> Imitated:
    return Imitated(teacher=teacher, seed=seed, traces=extent.test(), is_papers=is_papers)


def _improved(extent: Amounts, setting: Setting, seed: int) -> Improved:
    iterations = extent.iterations if setting is TESTBED else extent.all_reduce
    return Improved(setting=setting.name, seed=seed, iterations=iterations, traces=extent.test())


def _papers(extent: Amounts, seed: int) -> Imitated:
    return Imitated(
        teacher="drf", seed=seed, traces=extent.test(), is_papers=True, updates=extent.updates
    )


def warm_up_runs(extent: Amounts) -> tuple[Run, ...]:
    """Return networks that imitate."""
    seeds, published = extent.seeds(extent.learners), extent.seeds(extent.published)
    return (
        *by_rule(TESTBED, "drf", extent),
        *(_imitated(extent, seed, is_papers=False) for seed in seeds),
        *(_imitated(extent, seed, is_papers=True) for seed in published),
        *(_imitated(extent, seed, "greedy", is_papers=False) for seed in seeds),
    )


def warm_up(records: Records, extent: Amounts) -> Reproduced:
    """Compare networks with the DRF that they imitate."""
    base, lines = completion(records, TESTBED, "drf", extent), []
    for key, number in (("shared", extent.learners), ("dense", extent.published)):
        for seed in extent.seeds(number):
            ours = against(records[_imitated(extent, seed, is_papers=key == "dense")], base)
            holds = abs(ours) <= CLOSE
            lines.append(EXPECTED.line("warm-up", key, ours, holds=holds, seed=seed))
    for seed in extent.seeds(extent.learners):
        ours = against(records[_imitated(extent, seed, "greedy", is_papers=False)], base)
        lines.append(EXPECTED.line("warm-up", "greedy", ours, seed=seed))
    return Reproduced(lines=tuple(lines))


def fig10_runs(extent: Amounts) -> tuple[Run, ...]:
    """Return the learners here, and what they are compared with."""
    return (
        *by_rule(TESTBED, "drf", extent),
        *by_rule(TESTBED, "fitted", extent),
        *by_rule(TESTBED, "drf", extent, ABSENT),
        *(_improved(extent, TESTBED, seed) for seed in extent.seeds(extent.learners)),
    )


def fig10(records: Records, extent: Amounts) -> Reproduced:
    """Compare networks that learnt from DRF with DRF, on traces that were not learnt from."""
    base = completion(records, TESTBED, "drf", extent)
    away = completion(records, TESTBED, "drf", extent, ABSENT)
    seeds = extent.seeds(extent.learners)
    tried: list[Tried] = [records[_improved(extent, TESTBED, seed)] for seed in seeds]
    best = [against(one.best, base) for one in tried]
    lines = []
    for seed, one, ours in zip(seeds, tried, best, strict=True):
        better = sum(mine < drf for mine, drf in zip(one.best, base, strict=True))
        lines.append(
            EXPECTED.line(
                "fig10",
                "seed",
                ours,
                iterations=extent.iterations,
                seed=seed,
                better=better,
                traces=len(base),
            )
        )
    last = float(np.mean([against(one.last, base) for one in tried]))
    absent = float(np.mean([against(one.absent, away) for one in tried]))
    fitted = against(completion(records, TESTBED, "fitted", extent), base)
    lines += [
        EXPECTED.line("fig10", "mean", float(np.mean(best))),
        EXPECTED.line("fig10", "last", last),
        EXPECTED.line("fig10", "optimus", fitted),
        EXPECTED.line("fig10", "absent", absent),
    ]
    plotted = tuple(
        Plotted(
            label=f"seed {seed}",
            x=tuple(float(at) for at, _ in one.curve),
            y=tuple(value for _, value in one.curve),
        )
        for seed, one in zip(seeds, tried, strict=True)
    )
    chart = Chart(
        name="fig10",
        title="Validation while it learns",
        x_label="iteration",
        y_label="mean completion time (slots)",
        plotted=plotted,
    )
    return Reproduced(lines=tuple(lines), charts=(chart,))


def papers_runs(extent: Amounts) -> tuple[Run, ...]:
    """Return the paper's learners."""
    published = extent.seeds(extent.published)
    return (*by_rule(TESTBED, "drf", extent), *(_papers(extent, seed) for seed in published))


def papers(records: Records, extent: Amounts) -> Reproduced:
    """Compare the paper's learner with the DRF that it began from."""
    base = completion(records, TESTBED, "drf", extent)
    return Reproduced(
        lines=tuple(
            EXPECTED.line(
                "published",
                "seed",
                against(records[_papers(extent, seed)], base),
                seed=seed,
                updates=extent.updates,
            )
            for seed in extent.seeds(extent.published)
        )
    )


def all_reduce_runs(extent: Amounts) -> tuple[Run, ...]:
    """Return rules and learners without servers."""
    return (
        *(run for rule in ("drf", "srtf", "optimus") for run in by_rule(ALL_REDUCE, rule, extent)),
        *(_improved(extent, ALL_REDUCE, seed) for seed in extent.seeds(extent.published)),
    )


def all_reduce(records: Records, extent: Amounts) -> Reproduced:
    """Compare with DRF."""
    base = completion(records, ALL_REDUCE, "drf", extent)
    lines = [
        EXPECTED.line(
            "all-reduce", rule, against(completion(records, ALL_REDUCE, rule, extent), base)
        )
        for rule in ("srtf", "optimus")
    ]
    seeds = extent.seeds(extent.published)
    ours = [against(records[_improved(extent, ALL_REDUCE, seed)].best, base) for seed in seeds]
    mean, iterations = float(np.mean(ours)), extent.all_reduce
    lines.append(EXPECTED.line("all-reduce", "learnt", mean, iterations=iterations))
    return Reproduced(lines=tuple(lines))
