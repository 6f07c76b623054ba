"""Sections 5.2 to 5.4: diverse trainers, runtimes, U by network and by rescale cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from statistics import harmonic_mean, mean, median

import numpy as np

from bftrainer.lab.papers.bftrainer.replays import PaperReplay, Record
from bftrainer.lab.papers.bftrainer.scenario import (
    DIVERSE,
    NO_TWO_WEEKS,
    PAPER_HOURS,
    TABLES,
    Sweeps,
)
from bftrainer.lab.papers.bftrainer.series import Series
from bftrainer.lab.papers.findings import Finding, percent
from bftrainer.lab.papers.paper import Steps
from bftrainer.lab.papers.tolerances import SHARES, Inputs
from bftrainer.lab.workloads import N_TRAINERS, NETWORKS, SAMPLES
from milp.problem import Objective

THROUGHPUT, EFFICIENCY = Objective.THROUGHPUT, Objective.SCALING_EFFICIENCY
BOTH = (EFFICIENCY, THROUGHPUT)
LABEL = {THROUGHPUT: "samples per second", EFFICIENCY: "scaling efficiency"}
TABLE_ID = {THROUGHPUT: "table3", EFFICIENCY: "table4"}
# Section 5.3 does not state T_fwd. The published replayer's default is 10 s, and of 10 to 300 s it
# fits Tables 3 and 4 best: a longer one favours trainers more than they show.
TABLES_T_FWD_S = 10.0
CELLS = {"cell"}  # lines that stand for several
LARGEST = 64  # nodes of one trainer
LEAST_S = 10.0  # the shortest T_fwd of the paper's axes
SATURATED_S = 120.0  # from here on U and return change little
Average = Callable[[Iterable[float]], float]
NAMES = tuple(network.name for network in NETWORKS.values())


def run_of(
    objective: Objective,
    *,
    p_jmax: int = 10,
    t_fwd_s: float = TABLES_T_FWD_S,
    is_to_the_end: bool = False,
) -> PaperReplay:
    """Return the replay of one setting."""
    return PaperReplay(
        workload=DIVERSE, objective=objective, p_jmax=p_jmax, t_fwd_s=t_fwd_s,
        is_to_the_end=is_to_the_end,
    )  # fmt: skip


def by_p_jmax(objective: Objective, extent: Sweeps) -> dict[int, PaperReplay]:
    """Return a replay per P_jmax, of the length that section 5.3 has."""
    return {
        p: run_of(objective, p_jmax=p, is_to_the_end=extent.is_to_the_end) for p in extent.p_jmax
    }


def hours_to_the_end(record: Record) -> float | None:
    """Return the log time until the last trainer is complete, h; None if one is not."""
    ends = [trainer.finished_s for trainer in record.trainers]
    begin_s = float(record.series.at_s[0])
    return None if None in ends else (max(filter(None, ends)) - begin_s) / 3600.0


def runtimes_h(record: Record) -> dict[str, float]:
    """Return the mean runtime of each network's completed trainers, h."""
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for t in record.trainers:
        if t.started_s is not None and t.finished_s is not None:
            found[t.network].append((t.finished_s - t.started_s) / 3600.0)
    return {name: mean(hours) for name, hours in found.items() if hours}


def _paper_h(objective: Objective, p_jmax: int) -> dict[str, float]:
    table = TABLES[TABLE_ID[objective]]
    at = table["columns"].index(p_jmax)
    return {name: row[at] for name, row in table["rows"].items()}


def _is_missing(records: Mapping[Objective, Mapping[int, Record | None]]) -> bool:
    return any(record is None for by_p in records.values() for record in by_p.values())


def fig12(found: Finding, extent: Sweeps) -> Steps:
    """Runtime by network with both objectives, and DenseNet's over AlexNet's."""
    records = yield {o: by_p_jmax(o, extent) for o in BOTH}
    if _is_missing(records):
        found.skip(NO_TWO_WEEKS)
        return
    by_p = records[THROUGHPUT]
    ours = {o: runtimes_h(records[o][10]) for o in BOTH}
    paper = {o: _paper_h(o, 10) for o in BOTH}
    fair, unfair = (max(ours[o].values()) / min(ours[o].values()) for o in BOTH)
    found.line("similar", fair, holds=4.0 * fair <= unfair)
    hours = map(runtimes_h, by_p.values())
    apart = [h["DenseNet"] / h["AlexNet"] for h in hours if {"AlexNet", "DenseNet"} <= set(h)]
    found.line("DenseNet, mean", mean(apart) if apart else None)
    found.line("DenseNet, largest", max(apart, default=None))
    for of, whose in ((ours, ""), (paper, ", paper")):
        ys = {LABEL[o] + whose: [of[o].get(name, 0.0) for name in NAMES] for o in BOTH}
        found.chart("fig12", NAMES, ys)


def _compare(objective: Objective, found: Finding, extent: Sweeps) -> Steps:
    """Compare the runtimes of a table."""
    records = yield by_p_jmax(objective, extent)
    paper = {p: _paper_h(objective, p) for p in records}
    networks = tuple(TABLES[TABLE_ID[objective]]["rows"])
    if _is_missing({objective: records}):
        found.skip(NO_TWO_WEEKS, *(key for key in found.known if key not in CELLS))
        for p, name in product(records, networks):
            found.line(
                "cell", None, paper=paper[p][name], missing=NO_TWO_WEEKS, network=name, p_jmax=p
            )
        return
    ours = {p: runtimes_h(record) for p, record in records.items()}
    found.line("median", median(h / paper[p][name] for p in ours for name, h in ours[p].items()))
    spans = [hours_to_the_end(record) for record in records.values()]
    ended = [span for span in spans if span is not None]
    for key, of in (("shortest", min), ("longest", max)):
        found.line(key, of(ended) if len(ended) == len(spans) else None)
    if objective == EFFICIENCY:
        few, many = ours[min(ours)], ours[max(ours)]
        for name in ("AlexNet", "VGG-16"):
            found.line(name, many[name] / few[name] if name in few.keys() & many.keys() else None)
    for p, name in product(ours, networks):
        found.line("cell", ours[p].get(name), paper=paper[p][name], network=name, p_jmax=p)

    def cell(name: str, p: int) -> str:
        now = f"{ours[p][name]:.2f}" if name in ours[p] else "-"
        return f"{now} ({paper[p][name]:g})"

    headers = ("mean runtime in h (paper)", *(f"P_jmax {p}" for p in ours))
    found.table(headers, ((name, *(cell(name, p) for p in ours)) for name in networks))


table3, table4 = partial(_compare, THROUGHPUT), partial(_compare, EFFICIENCY)


def ties(found: Finding, extent: Sweeps) -> Steps:
    """What changes where equal nodes are drawn at random."""
    run = by_p_jmax(EFFICIENCY, extent)[10]
    records = yield run, replace(run, is_any_node=True)
    if None in records:
        found.skip(NO_TWO_WEEKS)
        return
    named, drawn = map(runtimes_h, records)
    changes = [abs(drawn[name] / named[name] - 1.0) for name in named.keys() & drawn.keys()]
    found.line("median", percent(median(changes)))
    found.line("most", percent(max(changes)))
    found.line("within", sum(change < SHARES[Inputs.TRAINERS] for change in changes))
    before, after = map(utilization, records)
    found.line("U", percent(abs(after / before - 1.0)))


def utilization(record: Record, average: Average = harmonic_mean) -> float:
    """Return U, %, against the same trainers on N_eq static nodes.

    There each trainer has N_eq / P_jmax nodes and processes as many samples as any other, so slow
    networks run longer. Rates therefore count by time: the harmonic mean over all networks, unless
    another is given. (The U of a replay takes the trainers that ran.)
    """
    found = record.metrics
    share = found.n_eq / record.run.p_jmax
    curves = [network.curve for network in NETWORKS.values()]
    rate = average(float(np.interp(share, (0, *c.sizes), (0.0, *c.samples_per_s))) for c in curves)
    series = record.series
    span_s = float(series.at_s[-1] - series.at_s[0])
    return percent(found.a_e / (rate * record.run.p_jmax * span_s))


def gains(found: Finding, by_t_fwd: Mapping[float, float]) -> None:
    """Tell whether U grows up to T_fwd 120 s, by a tick of the paper's axis, and then is flat."""
    late = [u for t, u in by_t_fwd.items() if t >= SATURATED_S]
    gain = by_t_fwd[SATURATED_S] - by_t_fwd[LEAST_S]
    found.line("gain", gain, holds=gain >= 1.0 and max(late) - min(late) < 1.0)


def fig13(found: Finding, extent: Sweeps) -> Steps:
    """U against T_fwd with both objectives."""
    times = extent.diverse_t_fwd_s
    records = yield {o: [run_of(o, t_fwd_s=t) for t in times] for o in BOTH}
    ours = {o: [utilization(record) for record in records[o]] for o in BOTH}
    lead = min(e - s for e, s in zip(ours[EFFICIENCY], ours[THROUGHPUT], strict=True))
    found.line("lead", lead, holds=lead >= 1.0)
    gains(found, dict(zip(times, ours[EFFICIENCY], strict=True)))
    both = [u for us in ours.values() for u in us]
    found.line("axis", max(both), holds=min(both) >= 78.0 and max(both) <= 87.0)
    other = (utilization(record, mean) for o in BOTH for record in records[o])
    found.line("axis, arithmetic", max(other))
    found.chart("fig13", times, {LABEL[o]: ours[o] for o in BOTH})


def _integral_kh(record: Record) -> float:
    """Return the node-hours (thousands) of all trainers, extrapolated from what was processed."""
    found = record.metrics
    per_sample = found.resource_integral_node_h / found.a_e
    return per_sample * N_TRAINERS * SAMPLES / 1e3


def _mean_runtime_h(record: Record) -> float:
    """Return the mean over networks; the number of completed trainers does not matter."""
    return mean(runtimes_h(record).values())


def _beyond(series: Series, p_jmax: int) -> float:
    """Return the share of node-time that trainers of at most 64 nodes cannot use, %."""
    for_s = np.diff(series.at_s)
    beyond = np.maximum(series.pool - p_jmax * LARGEST, 0.0)
    return percent(float((beyond * for_s).sum() / (series.pool * for_s).sum()))


def fig14(found: Finding, extent: Sweeps) -> Steps:
    """Resource integral, runtime and U against P_jmax."""
    records = yield {o: by_p_jmax(o, extent) for o in BOTH}
    if _is_missing(records):
        found.skip(NO_TWO_WEEKS)
        return

    def by_objective(of: Callable[[Record], float]) -> dict[str, list[float]]:
        return {LABEL[o]: [of(record) for record in records[o].values()] for o in BOTH}

    integral, runtime, u = map(by_objective, (_integral_kh, _mean_runtime_h, utilization))
    more, longer, ours = (of[LABEL[EFFICIENCY]] for of in (integral, runtime, u))
    # U is flat beyond P_jmax 25: half a point more or less says nothing.
    grows = all(b > a - 1.0 for a, b in pairwise(ours))
    found.line("integral", 100.0 * (more[-1] / more[0] - 1.0))
    found.line("runtime", 100.0 * (longer[-1] / longer[0] - 1.0))
    for p_jmax in (5, 10):
        found.line(f"beyond, P_jmax {p_jmax}", _beyond(records[EFFICIENCY][p_jmax].series, p_jmax))
    found.line("U", ours[-1] - ours[0], holds=grows and ours[-1] - ours[0] >= 10.0)
    found.line("step", ours[1] - ours[0], holds=ours[1] - ours[0] >= 5.0)
    for key, ys in (("fig14a", integral), ("fig14b", runtime), ("fig14c", u)):
        found.chart(key, map(float, extent.p_jmax), ys)


def fig15(found: Finding, extent: Sweeps) -> Steps:
    """U by network of Table 2, over the first hours."""
    hours = extent.networks_hours
    records = yield {one.name: PaperReplay(workload=n, hours=hours) for n, one in NETWORKS.items()}
    ours = {name: record.u for name, record in records.items()}
    least = min(ours.values())
    for name in ("AlexNet", "DenseNet"):
        found.line(name, ours[name])
    found.line("least", least, holds=least > 75.0)
    found.chart("fig15", ours, {"ours": tuple(ours.values())}, hours=hours)


def alexnet_trials(found: Finding, _: Sweeps) -> Steps:
    """Time at which all of AlexNet's trials are complete."""
    record = yield PaperReplay(workload="alexnet")
    found.line("AlexNet", hours_to_the_end(record))


def fig16(found: Finding, extent: Sweeps) -> Steps:
    """U against rescale cost."""
    factors = extent.cost_factors
    ours = [record.u for record in (yield [PaperReplay(cost_factor=f) for f in factors])]
    growth = (100.0 - ours[-1]) / (100.0 - ours[0])
    found.line("loss", growth, holds=growth < 0.5 * factors[-1] / factors[0])
    falls = ours == sorted(ours, reverse=True)
    found.line("U", ours[-1] / ours[0], holds=falls and ours[-1] >= 0.9 * ours[0])
    found.chart("fig16", map(float, factors), {"ours": ours})


def statements(found: Finding, extent: Sweeps) -> Steps:
    """93%: the best of all settings, and all readings of it.

    Those of Fig. 9 and of the other objective are lower (results fig9, fig13).
    """
    many = max(extent.p_jmax)
    lengths = (False, True) if extent.is_to_the_end else (False,)
    times_s = (TABLES_T_FWD_S, SATURATED_S)
    readings = [
        run_of(EFFICIENCY, p_jmax=many, t_fwd_s=t_fwd_s, is_to_the_end=is_long)
        for t_fwd_s, is_long in product(times_s, lengths)
    ]
    played, read = yield [*by_p_jmax(EFFICIENCY, extent).values()], readings
    best = max([record for record in [*played, *read] if record is not None], key=utilization)
    run = best.run
    found.line("best", utilization(best), p_jmax=run.p_jmax, t_fwd_s=run.t_fwd_s)
    for asked, record in zip(readings, read, strict=True):
        is_long = asked.is_to_the_end
        found.line(
            "reading",
            None if record is None else utilization(record),
            missing=NO_TWO_WEEKS if record is None else "",
            t_fwd_s=asked.t_fwd_s,
            span="until all are complete" if is_long else f"{extent.hours or PAPER_HOURS:g} h",
        )
    found.line("arithmetic", utilization(best, mean))
