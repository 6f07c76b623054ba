"""Section 5.1: identical trials of ShuffleNet, the forward-looking time, MILP and heuristic."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from bftrainer.lab.papers.bftrainer import diverse
from bftrainer.lab.papers.bftrainer.replays import EQUAL, HEURISTIC, MILP, PaperReplay, Record
from bftrainer.lab.papers.bftrainer.scenario import PAPER_NODES, TABLES, Sweeps
from bftrainer.lab.papers.bftrainer.series import (
    Column,
    Windows,
    share_followed,
    static_outcome,
    windows_of,
)
from bftrainer.lab.papers.findings import Finding, percent, ratio
from bftrainer.lab.papers.paper import Steps
from bftrainer.lab.workloads import NETWORKS

LONGEST_S = 300.0  # the paper's axes of T_fwd end here
CURVE = NETWORKS["shufflenet"].curve
WINDOW_H = 6.0
BAR_H = 12.0  # Fig. 6
TWICE, FIVE_TIMES = 2.0, 5.0  # the heuristic's outcome, section 5.1.2
WORSE = 1.0  # below this part of the heuristic's outcome the MILP is worse


def _sweep(extent: Sweeps) -> dict[float, PaperReplay]:
    """Return a replay per forward-looking time on the paper's axes."""
    return {t: PaperReplay(t_fwd_s=t) for t in extent.t_fwd_s if t <= LONGEST_S}


def fig6(found: Finding, _: Sweeps) -> Steps:
    """Idle nodes in each twelve hours."""
    windows = windows_of((yield MILP).series, BAR_H)
    published = TABLES["fig6"]["rows"]["idle"]
    for first, n_eq, its in zip(windows.hours, windows.n_eq, published, strict=False):
        ours = percent(float(n_eq) / PAPER_NODES)
        found.line("bar", ours, paper=its, first=f"{first:g}", last=f"{first + BAR_H:g}")


def fig7a(found: Finding, _: Sweeps) -> Steps:
    """Share of decisions that are followed by a preemption within T_fwd."""
    series = (yield MILP).series
    within_s = tuple(float(t) for t in range(10, 301, 10))
    gaps = np.diff(series.at_s)
    events = [percent(float(np.mean(gaps <= t))) for t in within_s]
    losses = [percent(share) for share in share_followed(series, within_s)]
    at_170 = within_s.index(170.0)
    found.line("loss", losses[at_170])
    found.line("any event", events[at_170])
    ys = {"any event follows": events, "a trainer loses nodes": losses}
    found.chart("fig7a", within_s, ys)


def _rescale_per_event(record: Record) -> float:
    return float(record.series.rescale.sum()) / len(record.series.rescale)


def fig7b(found: Finding, extent: Sweeps) -> Steps:
    """Cost of rescales per event."""
    sweep, other, least = yield _sweep(extent), HEURISTIC, PaperReplay(t_fwd_s=diverse.LEAST_S)
    milp, heuristic = [_rescale_per_event(r) for r in sweep.values()], _rescale_per_event(other)
    growth = ratio(milp[-1], milp[0])
    found.line("heuristic", heuristic)
    found.line("over MILP", ratio(heuristic, _rescale_per_event(least)))
    found.line("growth", growth, holds=milp == sorted(milp) and (growth or 0.0) >= 2.0)
    found.chart("fig7b", sweep, {"MILP": [c / 1e3 for c in milp]}, heuristic=heuristic)


def fig8(found: Finding, extent: Sweeps) -> Steps:
    """Return on investment: outcome up to the next event over the cost of the decision."""
    sweep = {t: record.series for t, record in (yield _sweep(extent)).items()}
    returns = {t: float(series.gross().mean()) for t, series in sweep.items()}
    ratios = [
        ratio(float(series.gross().sum()), float(series.rescale.sum())) or 0.0
        for series in sweep.values()
    ]
    falls = all(later <= sooner for sooner, later in pairwise(ratios))
    late = [r for t, r in returns.items() if t >= diverse.SATURATED_S]
    rise = 100.0 * (late[0] / returns[min(sweep)] - 1.0)
    fall = ratio(ratios[0], ratios[-1])
    found.line("return on cost", fall, holds=falls and (fall or 0.0) >= 2.0)
    found.line("return", rise, holds=rise >= 1.0 and max(late) < 1.01 * min(late))
    found.chart("fig8-roi", sweep, {"ours": ratios})
    found.chart("fig8-return", sweep, {"ours": [r / 1e6 for r in returns.values()]})


def fig9(found: Finding, extent: Sweeps) -> Steps:
    """U against T_fwd."""
    sweep, heuristic, equal = yield _sweep(extent), HEURISTIC, EQUAL
    ours = {t: record.u for t, record in sweep.items()}
    least, most = min(ours.values()), max(ours.values())
    line = found.line("heuristic", heuristic.u)
    found.line("equal share", equal.u)
    low = [t for t, u in ours.items() if u < most - 0.5]
    found.line("saturation", min((t for t in ours if t > max(low, default=0.0)), default=None))
    diverse.gains(found, ours)
    found.line("axis", most, holds=least >= 78.0 and most <= 84.0)
    found.chart("fig9", sweep, {"MILP": tuple(ours.values())})
    both = {"heuristic": (heuristic.u,) * 2, "heuristic, paper": (line.paper or 0.0,) * 2}
    found.chart("fig9", (min(sweep), max(sweep)), both)


def exact_replay(found: Finding, extent: Sweeps) -> Steps:
    """U beside another program's exact replay of the published bookkeeping."""
    times, rows = TABLES["exact-replay"]["columns"], TABLES["exact-replay"]["rows"]
    by_name = (HEURISTIC, *(PaperReplay(t_fwd_s=t) for t in times if t in extent.t_fwd_s))
    records = yield (*by_name, *(replace(run, is_any_node=True) for run in by_name))
    for record in records:
        run = record.run
        is_milp = run.policy == MILP.policy
        found.line(
            "U",
            record.u,
            paper=rows["MILP" if is_milp else "heuristic"][times.index(run.t_fwd_s)],
            of=f"MILP, T_fwd {run.t_fwd_s:g} s" if is_milp else "heuristic",
            nodes="at random" if run.is_any_node else "by name",
        )


def _u_of_windows(record: Record) -> tuple[Windows, Column]:
    windows = windows_of(record.series, WINDOW_H)
    static = static_outcome(CURVE, windows.n_eq, record.run.p_jmax, 3600.0 * WINDOW_H)
    u = np.divide(windows.outcome, static, out=np.zeros_like(static), where=static > 0)
    return windows, 100.0 * u


def _linear_u(record: Record) -> Column:
    """Return U of each six hours, %, with A_s as if nodes scaled linearly."""
    windows = windows_of(record.series, WINDOW_H)
    ideal = windows.n_eq * CURVE.samples_per_s[0] * 3600.0 * WINDOW_H
    u: Column = 100.0 * windows.outcome[ideal > 0] / ideal[ideal > 0]
    return u


def fig10(found: Finding, _: Sweeps) -> Steps:
    """U in each six hours."""
    records = yield MILP, HEURISTIC
    (windows, milp), (_windows, heuristic) = map(_u_of_windows, records)
    linear = _linear_u(records[0])
    ahead = 100.0 * (milp[heuristic > 0] / heuristic[heuristic > 0] - 1.0)
    found.line("mean", float(milp.mean()))
    found.line("mean, linear", float(linear.mean()))
    found.line("third best", float(np.sort(milp)[-3:][0]))
    found.line("third best, linear", float(np.sort(linear)[-3:][0]))
    found.line("lead", float(ahead.max(initial=0.0)))
    ys = {"heuristic": heuristic.tolist(), "MILP": milp.tolist()}
    found.chart("fig10", windows.hours[:-1].tolist(), ys)


def fig11(found: Finding, _: Sweeps) -> Steps:
    """Costs in each six hours."""
    milp, heuristic = (windows_of(r.series, WINDOW_H) for r in (yield MILP, HEURISTIC))
    preemption = ratio(float(milp.preemption.sum()), float(heuristic.preemption.sum()))
    rescale = ratio(float(heuristic.rescale.sum()), float(milp.rescale.sum()))
    is_alike = None if preemption is None else abs(preemption - 1.0) < 0.1
    found.line("preemption", preemption, holds=is_alike)
    found.line("rescale", rescale, holds=None if rescale is None else rescale > 2.0)
    for key, kind in (("fig11a", "preemption"), ("fig11b", "rescale")):
        both = {"heuristic": heuristic, "MILP": milp}
        ys = {label: (getattr(of, kind) / 1e9).tolist() for label, of in both.items()}
        found.chart(key, milp.hours[:-1].tolist(), ys)


def speedup(found: Finding, _: Sweeps) -> Steps:
    """Outcome between contiguous events, MILP over heuristic."""
    milp, heuristic = (record.series.net() for record in (yield MILP, HEURISTIC))
    # There is no ratio where the heuristic's costs exceed what it processes.
    factor = milp[heuristic > 0] / heuristic[heuristic > 0]
    found.line("worse", percent(float(np.mean(milp < WORSE * heuristic))))
    found.line("twice", percent(float(np.mean(factor >= TWICE))))
    found.line("five times", percent(float(np.mean(factor >= FIVE_TIMES))))
    found.line("mean", float(factor.mean()))
