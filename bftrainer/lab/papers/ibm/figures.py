"""The findings: Tables II to IV, Figs. 5, 6 and 8, and whether an assumption decides the order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from bftrainer.lab.papers.findings import Finding, map_values, percent, tabulate
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
from bftrainer.lab.papers.paper import Steps, per_seed

CELLS = {  # row of Tables III and IV -> batch, whether jobs wait
    "elastic, drop": (ELASTIC, False),
    "baseline, drop": ("random", False),
    "elastic, queue": (ELASTIC, True),
    "baseline, queue": ("random", True),
}
MEASURES = ("sjs", "drop_ratio", "jct_min")
COMPLETED, JCT = "completed", "jct_min"
COMPARABLE = 10.0  # %: "quite comparable", "marginally better"
# More jobs, %, as printed.
PRINTED = {
    "5a": RESULTS["fig5"]["lines"]["a"]["value"],
    "5b": RESULTS["fig5"]["lines"]["b"]["value"],
    "5c": RESULTS["fig5"]["lines"]["c"]["value"],
    "6a": RESULTS["fig6"]["lines"]["a"]["value"],
    "6b": RESULTS["fig6"]["lines"]["b"]["value"],
    "8a": RESULTS["fig8"]["lines"]["max"]["value"],
}

HIGH = 10.0 / BENCHMARK_MINUTES  # jobs per minute: k_max times the base rate, section IV-A
LOW = HIGH / 4.0
# Figs. 5, 6 and 8: one category in 240 minutes; elastic batches beside the baseline's.
_PICTURE = Experiment(
    seed=0, minutes=240.0, batch="random", category=1, high=HIGH, low=HIGH, period_min=240.0
)
FIG5 = {
    "a": _PICTURE,
    "b": replace(_PICTURE, category=2),
    "c": replace(_PICTURE, category=3),
    "d": replace(_PICTURE, category=4),
}
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
POOLS = (40, 20, 16, 12, 10, 8)  # GPUs
ARRIVALS = (1.0, 2.0, 4.0)  # times those of the text
DELTAS_MIN = (0.0, 10.0)  # 0: decisions at every event

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


def table2(finding: Finding, _extent: IbmSeeds) -> None:
    """Scaling factors of category 1 on two GPUs, and what the text has of others."""
    world, table = read_world(ORDERED), TABLES["table2"]
    first, second, *_ = world.categories
    for share, paper in zip(table["columns"], table["rows"]["factor"], strict=True):
        factor = world.factor(first, 2 * share, 2)
        finding.line("factor", factor, paper=paper, share=share)
    finding.line("five", world.factor(first, 160, 5) / world.factor(first, 32, 2))
    best_of_first = sizes_of(world, first, first.b_min).factors.max()
    best_of_second = sizes_of(world, second, second.b_min).factors.max()
    finding.line("categories", float(best_of_first / best_of_second))


def experiments(
    gpus: int, minutes: float, seeds: range, change: SensitivityRow | None = None
) -> dict[str, list[Experiment]]:
    """Return the experiments of the four rows of a table."""
    experiment = Experiment(seed=0, gpus=gpus, minutes=minutes, change=change or SensitivityRow())
    cells = {}
    for name, (batch, waits) in CELLS.items():
        cells[name] = _with_seeds(replace(experiment, batch=batch, waits=waits), seeds)
    return cells


def _with_seeds(experiment: Experiment, seeds: range) -> list[Experiment]:
    return per_seed(partial(replace, experiment), seeds)


def _measures(records: Sequence[ExperimentRecord]) -> dict[str, list[float]]:
    """Return what was measured with each seed, by measure."""
    return tabulate(lambda measure: _column(records, measure), MEASURES)


def _column(records: Sequence[ExperimentRecord], measure: str) -> list[float]:
    return [getattr(record, measure) for record in records]


def _table(table: str, gpus: int, minutes: float, finding: Finding, extent: IbmSeeds) -> Steps:
    records = yield experiments(gpus, minutes, extent.seeds(table))
    ours, published = map_values(_measures, records), TABLES[table]
    for name, values in published["rows"].items():
        for measure, paper in zip(published["columns"], values, strict=True):
            if paper is None:
                continue
            finding.line(measure, float(np.mean(ours[name][measure])), paper=paper, cell=name)
    gain = _gain([records["elastic, drop"], records["baseline, drop"]])
    finding.line("completed", gain)
    if table == "table4":
        waiting_min = _mean(records["baseline, queue"], JCT)
        finding.line("six", waiting_min / _mean(records["baseline, drop"], JCT))
    rows = []
    for name, by_measure in ours.items():
        rows.append((name, *map(_mean_and_spread, by_measure.values())))
    finding.table(("", "SJS efficiency, %", "drop ratio, %", "JCT, min"), rows)


table3, table4 = partial(_table, "table3", 40, 720.0), partial(_table, "table4", 400, 480.0)


def _mean_and_spread(column: Sequence[float]) -> str:
    return f"{np.mean(column):.2f} ± {np.std(column):.2f}"


def _mean_measures(records: Sequence[ExperimentRecord]) -> dict[str, float]:
    return map_values(lambda column: float(np.mean(column)), _measures(records))


def sensitivity(finding: Finding, extent: IbmSeeds) -> Steps:
    """Compare elastic batches with the baseline, one assumption changed in each row."""
    seeds = extent.seeds("sensitivity")
    records = yield {change.name: experiments(40, 720.0, seeds, change) for change in CHANGES}
    rows = []
    for change, cells in records.items():
        means = map_values(_mean_measures, cells)
        ours, baseline, ours_waiting, baseline_waiting = means.values()
        is_ahead = (
            ours["sjs"] > baseline["sjs"]
            and ours["drop_ratio"] < baseline["drop_ratio"]
            and ours["jct_min"] < baseline["jct_min"]
            and ours_waiting["sjs"] > baseline_waiting["sjs"]
            and ours_waiting["jct_min"] < baseline_waiting["jct_min"]
        )
        fewer = baseline["drop_ratio"] - ours["drop_ratio"]
        finding.line("ahead", fewer, holds=is_ahead, change=change)
        rows.append((change, *map(_shown, means.values())))
    finding.table(("SJS %, drop %, JCT min", *CELLS), rows)


def _shown(measures: Mapping[str, float]) -> str:
    return " / ".join(map("{:.1f}".format, measures.values()))


def _pairs(
    pictures: Mapping[str, Experiment], extent: IbmSeeds
) -> dict[str, list[list[Experiment]]]:
    """Return the experiments with elastic batches, and those of the baseline."""
    seeds = extent.seeds("figures")

    def pair(picture: Experiment) -> list[list[Experiment]]:
        elastic = replace(picture, batch=ELASTIC)
        return [_with_seeds(elastic, seeds), _with_seeds(picture, seeds)]

    return map_values(pair, pictures)


def _mean(records: Sequence[ExperimentRecord], measure: str) -> float:
    return float(np.mean(_column(records, measure)))


def _gain(pair: Sequence[Sequence[ExperimentRecord]], measure: str = COMPLETED) -> float:
    """Return by how many percent elastic batches have more, of the means over seeds."""
    elastic, baseline = pair
    return percent(_mean(elastic, measure) / _mean(baseline, measure) - 1.0)


def fig5(finding: Finding, extent: IbmSeeds) -> Steps:
    """Jobs completed beside the baseline, by category; none is gained without elasticity."""
    pairs = yield _pairs(FIG5, extent)
    ours, papers = [], []
    for name, (elastic, baseline) in pairs.items():
        gain = _gain([elastic, baseline])
        line = finding.line(name, gain, holds=elastic == baseline if name == "d" else None)
        ours.append(gain)
        papers.append(line.paper or 0.0)
    labels = [f"category {picture.category}" for picture in FIG5.values()]
    finding.chart("fig5", labels, {"ours": ours, "paper": papers})


def fig6(finding: Finding, extent: IbmSeeds) -> Steps:
    """The same by pattern of arrivals."""
    pairs = yield _pairs(FIG6, extent)
    for name, pair in pairs.items():
        finding.line(name, _gain(pair))


def fig8(finding: Finding, extent: IbmSeeds) -> Steps:
    """The same with the largest and the smallest batch."""
    pairs = yield _pairs(FIG8, extent)
    gains = map_values(_gain, pairs)
    finding.line("max", gains["max"])
    finding.line("min, high", gains["min, high"], holds=abs(gains["min, high"]) <= COMPARABLE)
    finding.line("min, low", gains["min, low"], holds=0.0 < gains["min, low"] <= COMPARABLE)
    ours, smallest_batch = pairs["min, low"]
    finding.line("min, low: JCT", -_gain(pairs["min, low"], JCT))
    finding.line("jct elastic", _mean(ours, JCT))
    finding.line("jct min", _mean(smallest_batch, JCT))


def _candidates(extent: IbmSeeds) -> dict[str, dict[str, list[list[Experiment]]]]:
    """Return the experiments of the figures in each of the settings that could have made them."""
    keys = {"5a": FIG5["a"], "5b": FIG5["b"], "5c": FIG5["c"], "6a": FIG6["a"], "6b": FIG6["b"],
            "8a": FIG8["max"], "8c": FIG8["min, low"]}  # fmt: skip
    its_seeds = replace(extent, figures=extent.mechanism)
    candidates = {}
    for gpus, times, delta_min in product(POOLS, ARRIVALS, DELTAS_MIN):
        change = SensitivityRow(delta_min=delta_min)
        pictures = {}
        for key, picture in keys.items():
            high, low = times * picture.high, times * picture.low
            pictures[key] = replace(picture, gpus=gpus, high=high, low=low, change=change)
        name = f"{gpus} GPUs, arrivals x {times:g}"
        if delta_min:
            name += ", every 10 min"
        candidates[name] = _pairs(pictures, its_seeds)
    return candidates


def mechanism(finding: Finding, extent: IbmSeeds) -> Steps:
    """Search for the cluster, the arrivals and the decisions that would give the figures."""
    records = yield _candidates(extent)
    distances: dict[str, float] = {}  # sum over figures, of logarithms
    rows = {}
    for name, pairs in records.items():
        shorter = -_gain(pairs.pop("8c"), JCT)
        gains = map_values(_gain, pairs)
        distances[name] = sum(
            abs(math.log((1.0 + gain / 100.0) / (1.0 + PRINTED[key] / 100.0)))
            for key, gain in gains.items()
        )
        rows[name] = (name, *map("{:+.0f}".format, gains.values()), f"{shorter:.0f}")
    order = sorted(distances, key=lambda name: distances[name])
    nearest = order[0]
    finding.line("off", percent(math.expm1(distances[nearest] / len(PRINTED))), change=nearest)
    headers = ("setting, nearest first", *(f"Fig. {key}, %" for key in PRINTED), "8c: JCT, %")
    finding.table(headers, [rows[name] for name in order])
