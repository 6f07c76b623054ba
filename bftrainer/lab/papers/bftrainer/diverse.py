"""Sections 5.2 to 5.4: diverse trainers, runtimes, U by network and by rescale cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from operator import attrgetter
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
from bftrainer.lab.papers.findings import Finding, map_values, percent, tabulate
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
    replay = partial(run_of, objective, is_to_the_end=extent.is_to_the_end)
    return tabulate(lambda p_jmax: replay(p_jmax=p_jmax), extent.p_jmax)


def hours_to_the_end(record: Record) -> float | None:
    """Return the log time until the last trainer is complete, h; None if one is not."""
    ends_s = [trainer.finished_s for trainer in record.trainers]
    if None in ends_s:
        return None
    begin_s = float(record.series.at_s[0])
    return (max(filter(None, ends_s)) - begin_s) / 3600.0


def runtimes_h(record: Record) -> dict[str, float]:
    """Return the mean runtime of each network's completed trainers, h."""
    hours_of: dict[str, list[float]] = {name: [] for name in NAMES}
    for trainer in record.trainers:
        if trainer.started_s is not None and trainer.finished_s is not None:
            hours = (trainer.finished_s - trainer.started_s) / 3600.0
            hours_of[trainer.network].append(hours)
    return {name: mean(hours) for name, hours in hours_of.items() if hours}


def _paper_h(objective: Objective, p_jmax: int) -> dict[str, float]:
    """Return a column of the objective's table."""
    table = TABLES[TABLE_ID[objective]]
    place = table["columns"].index(p_jmax)
    return {name: row[place] for name, row in table["rows"].items()}


def _is_missing(records: Mapping[Objective, Mapping[int, Record | None]]) -> bool:
    return any(None in by_p.values() for by_p in records.values())


def _times_apart(hours: Mapping[str, float]) -> float:
    """Return the longest runtime over the shortest."""
    return max(hours.values()) / min(hours.values())


def fig12(finding: Finding, extent: Sweeps) -> Steps:
    """Runtime by network with both objectives, and DenseNet's over AlexNet's."""
    records = yield tabulate(lambda objective: by_p_jmax(objective, extent), BOTH)
    if _is_missing(records):
        finding.skip(NO_TWO_WEEKS)
        return
    ours = tabulate(lambda objective: runtimes_h(records[objective][10]), BOTH)
    papers = tabulate(lambda objective: _paper_h(objective, 10), BOTH)
    fair, unfair = _times_apart(ours[EFFICIENCY]), _times_apart(ours[THROUGHPUT])
    finding.line("similar", fair, holds=4.0 * fair <= unfair)
    ratios = []  # by P_jmax, where both networks have a completed trainer
    for record in records[THROUGHPUT].values():
        hours = runtimes_h(record)
        if {"AlexNet", "DenseNet"} <= set(hours):
            ratios.append(hours["DenseNet"] / hours["AlexNet"])
    finding.line("DenseNet, mean", mean(ratios) if ratios else None)
    finding.line("DenseNet, largest", max(ratios, default=None))
    for runtimes, source in ((ours, ""), (papers, ", paper")):
        ys = {}
        for objective in BOTH:
            heights = [runtimes[objective].get(name, 0.0) for name in NAMES]
            ys[LABEL[objective] + source] = heights
        finding.chart("fig12", NAMES, ys)


def _compare(objective: Objective, finding: Finding, extent: Sweeps) -> Steps:
    """Compare the runtimes of a table."""
    records = yield by_p_jmax(objective, extent)
    papers = tabulate(lambda p_jmax: _paper_h(objective, p_jmax), records)
    networks = tuple(TABLES[TABLE_ID[objective]]["rows"])
    if _is_missing({objective: records}):
        finding.skip(NO_TWO_WEEKS, *(key for key in finding.known if key not in CELLS))
        for p_jmax, name in product(records, networks):
            finding.line(
                "cell", None, paper=papers[p_jmax][name], missing=NO_TWO_WEEKS, network=name,
                p_jmax=p_jmax,
            )  # fmt: skip
        return
    ours = map_values(runtimes_h, records)
    ratios = []
    for p_jmax, runtimes in ours.items():
        ratios += [hours / papers[p_jmax][name] for name, hours in runtimes.items()]
    finding.line("median", median(ratios))
    _lengths(finding, records.values())
    if objective == EFFICIENCY:
        few, many = ours[min(ours)], ours[max(ours)]
        for name in ("AlexNet", "VGG-16"):
            is_in_both = name in few and name in many
            finding.line(name, many[name] / few[name] if is_in_both else None)
    for p_jmax, name in product(ours, networks):
        hours = ours[p_jmax].get(name)
        finding.line("cell", hours, paper=papers[p_jmax][name], network=name, p_jmax=p_jmax)
    rows = []
    for name in networks:
        row = [name]
        for p_jmax, runtimes in ours.items():
            cell = f"{runtimes[name]:.2f}" if name in runtimes else "-"
            row.append(f"{cell} ({papers[p_jmax][name]:g})")
        rows.append(row)
    headers = ("mean runtime in h (paper)", *(f"P_jmax {p_jmax}" for p_jmax in ours))
    finding.table(headers, rows)


def _lengths(finding: Finding, records: Iterable[Record]) -> None:
    """Add the shortest and the longest replay; none if a replay did not complete all trainers."""
    spans_h = []
    for record in records:
        span_h = hours_to_the_end(record)
        if span_h is None:
            finding.line("shortest", None)
            finding.line("longest", None)
            return
        spans_h.append(span_h)
    finding.line("shortest", min(spans_h))
    finding.line("longest", max(spans_h))


table3, table4 = partial(_compare, THROUGHPUT), partial(_compare, EFFICIENCY)


def ties(finding: Finding, extent: Sweeps) -> Steps:
    """What changes where equal nodes are drawn at random."""
    run = by_p_jmax(EFFICIENCY, extent)[10]
    records = yield run, replace(run, is_any_node=True)
    if None in records:
        finding.skip(NO_TWO_WEEKS)
        return
    by_name, at_random = map(runtimes_h, records)
    names = by_name.keys() & at_random.keys()
    changes = [abs(at_random[name] / by_name[name] - 1.0) for name in names]
    finding.line("median", percent(median(changes)))
    finding.line("most", percent(max(changes)))
    finding.line("within", int(np.less(changes, SHARES[Inputs.TRAINERS]).sum()))
    before, after = map(utilization, records)
    finding.line("U", percent(abs(after / before - 1.0)))


def utilization(record: Record, average: Average = harmonic_mean) -> float:
    """Return U, %, against the same trainers on N_eq static nodes.

    There each trainer has N_eq / P_jmax nodes and processes as many samples as any other, so slow
    networks run longer. Rates therefore count by time: the harmonic mean over all networks, unless
    another is given. (The U of a replay takes the trainers that ran.)
    """
    metrics = record.metrics
    share = metrics.n_eq / record.run.p_jmax
    rates = []
    for network in NETWORKS.values():
        curve = network.curve
        rates.append(float(np.interp(share, (0, *curve.sizes), (0.0, *curve.samples_per_s))))
    rate = average(rates)
    series = record.series
    span_s = float(series.at_s[-1] - series.at_s[0])
    return percent(metrics.a_e / (rate * record.run.p_jmax * span_s))


def gains(finding: Finding, by_t_fwd: Mapping[float, float]) -> None:
    """Tell whether U grows up to T_fwd 120 s, by a tick of the paper's axis, and then is flat."""
    late = [u for t_fwd_s, u in by_t_fwd.items() if t_fwd_s >= SATURATED_S]
    gain = by_t_fwd[SATURATED_S] - by_t_fwd[LEAST_S]
    finding.line("gain", gain, holds=gain >= 1.0 and max(late) - min(late) < 1.0)


def _by_t_fwd(objective: Objective, extent: Sweeps) -> list[PaperReplay]:
    """Return a replay per forward-looking time of Fig. 13."""
    return [run_of(objective, t_fwd_s=t_fwd_s) for t_fwd_s in extent.diverse_t_fwd_s]


def fig13(finding: Finding, extent: Sweeps) -> Steps:
    """U against T_fwd with both objectives."""
    times_s = extent.diverse_t_fwd_s
    records = yield tabulate(lambda objective: _by_t_fwd(objective, extent), BOTH)
    ours = map_values(lambda by_time: list(map(utilization, by_time)), records)
    leads = np.subtract(ours[EFFICIENCY], ours[THROUGHPUT])
    lead = float(leads.min())
    finding.line("lead", lead, holds=lead >= 1.0)
    gains(finding, dict(zip(times_s, ours[EFFICIENCY], strict=True)))
    values = [*ours[EFFICIENCY], *ours[THROUGHPUT]]
    finding.line("axis", max(values), holds=min(values) >= 78.0 and max(values) <= 87.0)
    all_records = [*records[EFFICIENCY], *records[THROUGHPUT]]
    arithmetic = max(utilization(record, mean) for record in all_records)
    finding.line("axis, arithmetic", arithmetic)
    finding.chart("fig13", times_s, _labelled(ours))


def _labelled(by_objective: Mapping[Objective, list[float]]) -> dict[str, list[float]]:
    return {LABEL[objective]: values for objective, values in by_objective.items()}


def _integral_kh(record: Record) -> float:
    """Return the node-hours (thousands) of all trainers, extrapolated from what was processed."""
    metrics = record.metrics
    per_sample = metrics.resource_integral_node_h / metrics.a_e
    return per_sample * N_TRAINERS * SAMPLES / 1e3


def _mean_runtime_h(record: Record) -> float:
    """Return the mean over networks; the number of completed trainers does not matter."""
    return mean(runtimes_h(record).values())


def _beyond(series: Series, p_jmax: int) -> float:
    """Return the share of node-time that trainers of at most 64 nodes cannot use, %."""
    for_s = np.diff(series.at_s)
    beyond = np.maximum(series.pool - p_jmax * LARGEST, 0.0)
    return percent(float((beyond * for_s).sum() / (series.pool * for_s).sum()))


def fig14(finding: Finding, extent: Sweeps) -> Steps:
    """Resource integral, runtime and U against P_jmax."""
    records = yield tabulate(lambda objective: by_p_jmax(objective, extent), BOTH)
    if _is_missing(records):
        finding.skip(NO_TWO_WEEKS)
        return

    def measure(measure_of: Callable[[Record], float]) -> dict[Objective, list[float]]:
        return map_values(lambda by_p: list(map(measure_of, by_p.values())), records)

    integral, runtime, u = map(measure, (_integral_kh, _mean_runtime_h, utilization))
    ours = u[EFFICIENCY]
    # U is flat beyond P_jmax 25: half a point more or less says nothing.
    is_growing = all(later > sooner - 1.0 for sooner, later in pairwise(ours))
    finding.line("integral", 100.0 * (integral[EFFICIENCY][-1] / integral[EFFICIENCY][0] - 1.0))
    finding.line("runtime", 100.0 * (runtime[EFFICIENCY][-1] / runtime[EFFICIENCY][0] - 1.0))
    for p_jmax in (5, 10):
        share = _beyond(records[EFFICIENCY][p_jmax].series, p_jmax)
        finding.line(f"beyond, P_jmax {p_jmax}", share)
    finding.line("U", ours[-1] - ours[0], holds=is_growing and ours[-1] - ours[0] >= 10.0)
    finding.line("step", ours[1] - ours[0], holds=ours[1] - ours[0] >= 5.0)
    for key, values in (("fig14a", integral), ("fig14b", runtime), ("fig14c", u)):
        finding.chart(key, map(float, extent.p_jmax), _labelled(values))


def fig15(finding: Finding, extent: Sweeps) -> Steps:
    """U by network of Table 2, over the first hours."""
    hours = extent.networks_hours
    runs = {}
    for key, network in NETWORKS.items():
        runs[network.name] = PaperReplay(workload=key, hours=hours)
    records = yield runs
    ours = map_values(attrgetter("u"), records)
    lowest = min(ours.values())
    for name in ("AlexNet", "DenseNet"):
        finding.line(name, ours[name])
    finding.line("least", lowest, holds=lowest > 75.0)
    finding.chart("fig15", ours, {"ours": tuple(ours.values())}, hours=hours)


def alexnet_trials(finding: Finding, _: Sweeps) -> Steps:
    """Time at which all of AlexNet's trials are complete."""
    record = yield PaperReplay(workload="alexnet")
    finding.line("AlexNet", hours_to_the_end(record))


def fig16(finding: Finding, extent: Sweeps) -> Steps:
    """U against rescale cost."""
    factors = extent.cost_factors
    records = yield [PaperReplay(cost_factor=factor) for factor in factors]
    ours = list(map(attrgetter("u"), records))
    growth = (100.0 - ours[-1]) / (100.0 - ours[0])
    finding.line("loss", growth, holds=growth < 0.5 * factors[-1] / factors[0])
    is_falling = ours == sorted(ours, reverse=True)
    finding.line("U", ours[-1] / ours[0], holds=is_falling and ours[-1] >= 0.9 * ours[0])
    finding.chart("fig16", map(float, factors), {"ours": ours})


def statements(finding: Finding, extent: Sweeps) -> Steps:
    """93%: the best of all settings, and all readings of it.

    Those of Fig. 9 and of the other objective are lower (results fig9, fig13).
    """
    many = max(extent.p_jmax)
    lengths = [False]
    if extent.is_to_the_end:
        lengths.append(True)
    readings = [
        run_of(EFFICIENCY, p_jmax=many, t_fwd_s=t_fwd_s, is_to_the_end=is_long)
        for t_fwd_s, is_long in product((TABLES_T_FWD_S, SATURATED_S), lengths)
    ]
    sweep, records = yield [*by_p_jmax(EFFICIENCY, extent).values()], readings
    candidates = [record for record in [*sweep, *records] if record is not None]
    best = max(candidates, key=utilization)
    finding.line("best", utilization(best), p_jmax=best.run.p_jmax, t_fwd_s=best.run.t_fwd_s)
    for run, record in zip(readings, records, strict=True):
        span = f"{extent.hours or PAPER_HOURS:g} h"
        if run.is_to_the_end:
            span = "until all are complete"
        line = partial(finding.line, "reading", t_fwd_s=run.t_fwd_s, span=span)
        if record is None:
            line(None, missing=NO_TWO_WEEKS)
        else:
            line(utilization(record))
    finding.line("arithmetic", utilization(best, mean))
