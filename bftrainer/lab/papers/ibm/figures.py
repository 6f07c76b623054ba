"""The findings: Tables II to IV, Figs. 5, 6 and 8, and whether an assumption decides the order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from bftrainer.lab.papers.findings import Finding, percent
from bftrainer.lab.papers.ibm.jobs import ELASTIC, read_world, sizes_of
from bftrainer.lab.papers.ibm.replays import (
    BENCHMARK_MINUTES,
    FREE,
    ORDERED,
    RESULTS,
    TABLES,
    Experiment,
    ExperimentRecord,
    IbmSeeds,
    SensitivityRow,
)
from bftrainer.lab.papers.paper import Steps

CELLS = {  # row of Tables III and IV -> batch, whether jobs wait
    "elastic, drop": (ELASTIC, False),
    "baseline, drop": ("random", False),
    "elastic, queue": (ELASTIC, True),
    "baseline, queue": ("random", True),
}
MEASURES = ("sjs", "drop_ratio", "jct_min")
COMPLETED, JCT = "completed", "jct_min"
COMPARABLE = 10.0  # %: "quite comparable", "marginally better"
PRINTED = {  # more jobs, %
    f"{figure}{key[0] if figure != 8 else 'a'}": RESULTS[f"fig{figure}"]["lines"][key]["value"]
    for figure, key in ((5, "a"), (5, "b"), (5, "c"), (6, "a"), (6, "b"), (8, "max"))
}

HIGH = 10.0 / BENCHMARK_MINUTES  # jobs per minute: k_max times the base rate, section IV-A
LOW = HIGH / 4.0
# Figs. 5, 6 and 8: one category in 240 minutes; elastic batches beside the baseline's.
_PICTURE = Experiment(
    seed=0, minutes=240.0, batch="random", category=1, high=HIGH, low=HIGH, period_min=240.0
)
FIG5 = {name: replace(_PICTURE, category=k) for k, name in enumerate("abcd", start=1)}
FIG6 = {
    "a": replace(_PICTURE, high=LOW, low=LOW),
    "b": replace(_PICTURE, low=LOW, period_min=60.0),
}
FIG8 = {
    "max": replace(_PICTURE, batch="max"),
    "min, high": replace(_PICTURE, batch="min"),
    "min, low": replace(_PICTURE, batch="min", high=LOW, low=LOW),
}

# What could have made the figures; the largest batch needs 8 GPUs.
MECHANISMS = {
    f"{gpus} GPUs, arrivals x {times:g}{', every 10 min' if delta_min else ''}": (
        gpus, times, SensitivityRow(delta_min=delta_min)
    )
    for gpus in (40, 20, 16, 12, 10, 8)
    for times in (1.0, 2.0, 4.0)
    for delta_min in (0.0, 10.0)
}  # fmt: skip

CHANGES = (
    SensitivityRow(name="free fit: category 1 need not scale best", fit=FREE),
    SensitivityRow(name="the largest batch fits one GPU", largest_batch_fits=True),
    SensitivityRow(name="t_comm halved", network=0.5),
    SensitivityRow(name="t_comm doubled", network=2.0),
    SensitivityRow(name="k_max 20", k_max=20),
    SensitivityRow(name="decisions every 10 min", delta_min=10.0),
    SensitivityRow(name="decisions every 15 min", delta_min=15.0),
    SensitivityRow(name="arrivals of the text, per GPU", arrivals=(1.0, 0.25)),
    SensitivityRow(name="arrivals never overtake", overtakes=False),
    SensitivityRow(name="who waits may be overtaken", passes_over=True),
)


def table2(found: Finding, _extent: IbmSeeds) -> None:
    """Scaling factors of category 1 on two GPUs, and what the text has of others."""
    world, table = read_world(ORDERED), TABLES["table2"]
    for share, paper in zip(table["columns"], table["rows"]["factor"], strict=True):
        factor = world.factor(world.categories[0], 2 * share, 2)
        found.line("factor", factor, paper=paper, share=share)
    one, two, *_ = world.categories
    found.line("five", world.factor(one, 160, 5) / world.factor(one, 32, 2))
    best = [sizes_of(world, of, of.b_min).factors.max() for of in (one, two)]
    found.line("categories", float(best[0] / best[1]))


def experiments(
    gpus: int, minutes: float, seeds: range, change: SensitivityRow | None = None
) -> dict[str, list[Experiment]]:
    """Return the experiments of the four rows of a table."""
    one = Experiment(seed=0, gpus=gpus, minutes=minutes, change=change or SensitivityRow())
    return {
        name: [replace(one, batch=batch, waits=waits, seed=seed) for seed in seeds]
        for name, (batch, waits) in CELLS.items()
    }


def _measures(
    cells: Mapping[str, Sequence[ExperimentRecord]],
) -> dict[str, dict[str, list[float]]]:
    """Return what was measured with each seed, by row and measure."""
    return {
        name: {measure: [getattr(one, measure) for one in ones] for measure in MEASURES}
        for name, ones in cells.items()
    }


def _table(table: str, gpus: int, minutes: float, found: Finding, extent: IbmSeeds) -> Steps:
    records = yield experiments(gpus, minutes, extent.seeds(table))
    ours, published = _measures(records), TABLES[table]
    for name, values in published["rows"].items():
        for measure, paper in zip(published["columns"], values, strict=True):
            if paper is None:
                continue
            found.line(measure, float(np.mean(ours[name][measure])), paper=paper, cell=name)
    more = _more([records["elastic, drop"], records["baseline, drop"]])
    found.line("completed", more)
    if table == "table4":
        found.line(
            "six", _mean(records["baseline, queue"], JCT) / _mean(records["baseline, drop"], JCT)
        )
    found.table(
        ("", "SJS efficiency, %", "drop ratio, %", "JCT, min"),
        (
            (name, *(f"{np.mean(of[m]):.2f} ± {np.std(of[m]):.2f}" for m in MEASURES))
            for name, of in ours.items()
        ),
    )


table3, table4 = partial(_table, "table3", 40, 720.0), partial(_table, "table4", 400, 480.0)


def sensitivity(found: Finding, extent: IbmSeeds) -> Steps:
    """Compare elastic batches with the baseline, one assumption changed in each row."""
    seeds = extent.seeds("sensitivity")
    records = yield {one.name: experiments(40, 720.0, seeds, one) for one in CHANGES}
    rows = []
    for change, cells in records.items():
        means = {
            name: {measure: float(np.mean(values)) for measure, values in of.items()}
            for name, of in _measures(cells).items()
        }
        ours, other, waiting, others_waiting = means.values()
        is_ahead = (
            ours["sjs"] > other["sjs"]
            and ours["drop_ratio"] < other["drop_ratio"]
            and ours["jct_min"] < other["jct_min"]
            and waiting["sjs"] > others_waiting["sjs"]
            and waiting["jct_min"] < others_waiting["jct_min"]
        )
        fewer = other["drop_ratio"] - ours["drop_ratio"]
        found.line("ahead", fewer, holds=is_ahead, change=change)
        shown = (" / ".join(f"{value:.1f}" for value in of.values()) for of in means.values())
        rows.append((change, *shown))
    found.table(("SJS %, drop %, JCT min", *CELLS), rows)


def _pairs(
    pictures: Mapping[str, Experiment], extent: IbmSeeds
) -> dict[str, list[list[Experiment]]]:
    """Return the experiments with elastic batches, and those of the baseline."""
    seeds = extent.seeds("figures")
    return {
        name: [[replace(of, seed=s) for s in seeds] for of in (replace(one, batch=ELASTIC), one)]
        for name, one in pictures.items()
    }


def _mean(ones: Sequence[ExperimentRecord], measure: str) -> float:
    return float(np.mean([getattr(one, measure) for one in ones]))


def _more(pair: Sequence[Sequence[ExperimentRecord]], measure: str = COMPLETED) -> float:
    """Return by how many percent elastic batches have more, of the means over seeds."""
    ours, other = (_mean(ones, measure) for ones in pair)
    return percent(ours / other - 1.0)


def fig5(found: Finding, extent: IbmSeeds) -> Steps:
    """Jobs completed beside the baseline, by category; none is gained without elasticity."""
    pairs = yield _pairs(FIG5, extent)
    gains = {name: _more(pair) for name, pair in pairs.items()}
    lines = [
        found.line(name, gain, holds=pairs["d"][0] == pairs["d"][1] if name == "d" else None)
        for name, gain in gains.items()
    ]
    ys = {"ours": tuple(gains.values()), "paper": tuple(line.paper or 0.0 for line in lines)}
    found.chart("fig5", (f"category {one.category}" for one in FIG5.values()), ys)


def fig6(found: Finding, extent: IbmSeeds) -> Steps:
    """The same by pattern of arrivals."""
    for name, pair in (yield _pairs(FIG6, extent)).items():
        found.line(name, _more(pair))


def fig8(found: Finding, extent: IbmSeeds) -> Steps:
    """The same with the largest and the smallest batch."""
    pairs = yield _pairs(FIG8, extent)
    gains = {name: _more(pair) for name, pair in pairs.items()}
    found.line("max", gains["max"])
    found.line("min, high", gains["min, high"], holds=abs(gains["min, high"]) <= COMPARABLE)
    found.line("min, low", gains["min, low"], holds=0.0 < gains["min, low"] <= COMPARABLE)
    ours, other = pairs["min, low"]
    found.line("min, low: JCT", -_more(pairs["min, low"], JCT))
    found.line("jct elastic", _mean(ours, JCT))
    found.line("jct min", _mean(other, JCT))


def mechanism(found: Finding, extent: IbmSeeds) -> Steps:
    """Search for the cluster, the arrivals and the decisions that would give the figures."""
    keys = {"5a": FIG5["a"], "5b": FIG5["b"], "5c": FIG5["c"], "6a": FIG6["a"], "6b": FIG6["b"],
            "8a": FIG8["max"], "8c": FIG8["min, low"]}  # fmt: skip
    records = yield {
        name: _pairs(
            {
                key: replace(one, gpus=gpus, high=times * one.high, low=times * one.low, change=how)
                for key, one in keys.items()
            },
            replace(extent, figures=extent.mechanism),
        )
        for name, (gpus, times, how) in MECHANISMS.items()
    }
    off: dict[str, float] = {}
    rows = {}
    for name, pairs in records.items():
        gains = {key: _more(pair) for key, pair in pairs.items() if key != "8c"}
        shorter = -_more(pairs["8c"], JCT)
        off[name] = sum(abs(math.log((1.0 + gains[key] / 100.0) / (1.0 + PRINTED[key] / 100.0)))
                        for key in gains)  # fmt: skip
        rows[name] = (*(f"{gain:+.0f}" for gain in gains.values()), f"{shorter:.0f}")
    order = sorted(off, key=lambda name: off[name])
    found.line("off", percent(math.expm1(off[order[0]] / len(PRINTED))), change=order[0])
    found.table(("setting, nearest first", *(f"Fig. {key}, %" for key in PRINTED), "8c: JCT, %"),
                ((name, *rows[name]) for name in order))  # fmt: skip
