"""Sections 5.2 and 5.3: what diverse trainers make of the machine (Figs. 13 and 14)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import harmonic_mean, mean

import numpy as np

from bftrainer.lab.papers.bftrainer.replays import PaperReplay, Record
from bftrainer.lab.papers.bftrainer.runtimes import (
    BOTH,
    EFFICIENCY,
    LABEL,
    THROUGHPUT,
    by_p_jmax,
    run_of,
    runtimes_h,
)
from bftrainer.lab.papers.bftrainer.scenario import EXPECTED, Sweeps
from bftrainer.lab.papers.bftrainer.series import Series
from bftrainer.lab.papers.findings import Chart, Plotted, Reproduced, percent
from bftrainer.lab.papers.paper import Records
from bftrainer.lab.workloads import NETWORKS
from bftrainer.lab.workloads.networks import SAMPLES
from milp.problem import Objective

N_TRAINERS = 1000
LARGEST = 64  # nodes of one trainer


def all_t_fwd(extent: Sweeps) -> tuple[PaperReplay, ...]:
    """Return a replay per objective and forward-looking time."""
    return tuple(run_of(o, t_fwd_s=t) for o in BOTH for t in extent.diverse_t_fwd_s)


def utilization(record: Record) -> float:
    """Return U, %, against the same trainers on N_eq static nodes.

    There each trainer has N_eq / P_jmax nodes and processes as many samples as any other, so slow
    networks run longer. Rates therefore count by time: the harmonic mean over all networks. (The U
    of a replay takes the trainers that ran.)
    """
    found = record.metrics
    share = found.n_eq / record.run.p_jmax
    curves = [network.curve for network in NETWORKS.values()]
    rate = harmonic_mean(
        float(np.interp(share, (0, *c.sizes), (0.0, *c.samples_per_s))) for c in curves
    )
    series = record.series
    span_s = float(series.at_s[-1] - series.at_s[0])
    return percent(found.a_e / (rate * record.run.p_jmax * span_s))


def fig13(records: Records, extent: Sweeps) -> Reproduced:
    """U against T_fwd with both objectives."""
    times = extent.diverse_t_fwd_s
    ours = {o: tuple(utilization(records[run_of(o, t_fwd_s=t)]) for t in times) for o in BOTH}
    lead = min(e - s for e, s in zip(ours[EFFICIENCY], ours[THROUGHPUT], strict=True))
    return Reproduced(
        lines=(
            EXPECTED.line("fig13", "lead", lead, holds=lead > 0),
            EXPECTED.line("fig13", "least", min(map(min, ours.values()))),
            EXPECTED.line("fig13", "largest", max(map(max, ours.values()))),
        ),
        charts=(
            Chart(
                name="fig13",
                title="Diverse trainers: utilization efficiency, P_jmax 10",
                x_label="forward-looking time (s)",
                y_label="U (%)",
                plotted=tuple(Plotted(label=LABEL[o], x=times, y=ours[o]) for o in BOTH),
            ),
        ),
    )


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


def fig14(records: Records, extent: Sweeps) -> Reproduced:
    """Resource integral, runtime and U against P_jmax."""
    found = {o: [records[run] for run in by_p_jmax(o, extent)] for o in BOTH}
    integral = {o: [_integral_kh(r) for r in found[o]] for o in BOTH}
    runtime = {o: [_mean_runtime_h(r) for r in found[o]] for o in BOTH}
    u = {o: [utilization(r) for r in found[o]] for o in BOTH}
    # U is flat beyond P_jmax 25: half a point more or less says nothing.
    grows = all(b > a - 1.0 for a, b in pairwise(u[EFFICIENCY]))
    pool = records[run_of(EFFICIENCY)].series
    more, longer = integral[EFFICIENCY], runtime[EFFICIENCY]

    def chart(name: str, title: str, y_label: str, ys: Mapping[Objective, list[float]]) -> Chart:
        return Chart(
            name=name,
            title=title,
            x_label="P_jmax",
            y_label=y_label,
            plotted=tuple(
                Plotted(label=LABEL[o], x=tuple(map(float, extent.p_jmax)), y=tuple(ys[o]))
                for o in BOTH
            ),
        )

    return Reproduced(
        lines=(
            EXPECTED.line("fig14", "integral", 100.0 * (more[-1] / more[0] - 1.0)),
            EXPECTED.line("fig14", "runtime", longer[-1] / longer[0]),
            EXPECTED.line("fig14", "beyond, P_jmax 5", _beyond(pool, 5)),
            EXPECTED.line("fig14", "beyond, P_jmax 10", _beyond(pool, 10)),
            EXPECTED.line("fig14", "U", u[EFFICIENCY][-1] - u[EFFICIENCY][0], holds=grows),
        ),
        charts=(
            chart("fig14a", "Resource integral of 1,000 trainers", "thousand node-hours", integral),
            chart("fig14b", "Runtime, mean over networks", "hours", runtime),
            chart("fig14c", "Utilization efficiency", "U (%)", u),
        ),
    )
