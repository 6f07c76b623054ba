"""Section 5.1: identical trials of ShuffleNet, the forward-looking time, MILP and heuristic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np

from bftrainer.lab.papers.bftrainer import diverse
from bftrainer.lab.papers.bftrainer.replays import REPLAYER_SHARE, PaperReplay, Record
from bftrainer.lab.papers.bftrainer.scenario import PAPER_NODES, TABLES, Sweeps
from bftrainer.lab.papers.bftrainer.series import (
    Column,
    Series,
    Windows,
    share_followed,
    static_outcome,
    windows_of,
)
from bftrainer.lab.papers.findings import Finding, map_values, percent, ratio, tabulate
from bftrainer.lab.papers.paper import Steps
from bftrainer.lab.workloads import NETWORKS

EQUAL = PaperReplay(policy="equal-share")
HEURISTIC = PaperReplay(policy=REPLAYER_SHARE)
MILP = PaperReplay()
LONGEST_S = 300.0  # the paper's axes of T_fwd end here
CURVE = NETWORKS["shufflenet"].curve
WINDOW_H = 6.0
BAR_H = 12.0  # Fig. 6
TWICE, FIVE_TIMES = 2.0, 5.0  # the heuristic's outcome, section 5.1.2
WORSE = 1.0  # below this part of the heuristic's outcome the MILP is worse


def _sweep(extent: Sweeps) -> dict[float, PaperReplay]:
    """Return a replay per forward-looking time on the paper's axes."""
    times_s = [t_fwd_s for t_fwd_s in extent.t_fwd_s if t_fwd_s <= LONGEST_S]
    return tabulate(lambda t_fwd_s: PaperReplay(t_fwd_s=t_fwd_s), times_s)


def fig6(finding: Finding, _: Sweeps) -> Steps:
    """Idle nodes in each twelve hours."""
    windows = windows_of((yield MILP).series, BAR_H)
    published = TABLES["fig6"]["rows"]["idle"]
    bars = zip(windows.hours, windows.n_eq, published, strict=False)
    for begin_h, n_eq, paper in bars:
        ours = percent(float(n_eq) / PAPER_NODES)
        end_h = begin_h + BAR_H
        finding.line("bar", ours, paper=paper, first=f"{begin_h:g}", last=f"{end_h:g}")


def fig7a(finding: Finding, _: Sweeps) -> Steps:
    """Share of decisions that are followed by a preemption within T_fwd."""
    series = (yield MILP).series
    within_s = tuple(map(float, range(10, 301, 10)))
    gaps_s = np.diff(series.at_s)
    events = [percent(float(np.mean(gaps_s <= limit_s))) for limit_s in within_s]
    losses = list(map(percent, share_followed(series, within_s)))
    at_170 = within_s.index(170.0)
    finding.line("loss", losses[at_170])
    finding.line("any event", events[at_170])
    ys = {"any event follows": events, "a trainer loses nodes": losses}
    finding.chart("fig7a", within_s, ys)


def _rescale_per_event(record: Record) -> float:
    return float(record.series.rescale.sum()) / len(record.series.rescale)


def fig7b(finding: Finding, extent: Sweeps) -> Steps:
    """Cost of rescales per event."""
    shortest_sighted = PaperReplay(t_fwd_s=diverse.LEAST_S)
    sweep, by_heuristic, by_milp = yield _sweep(extent), HEURISTIC, shortest_sighted
    milp = list(map(_rescale_per_event, sweep.values()))
    heuristic = _rescale_per_event(by_heuristic)
    growth = ratio(milp[-1], milp[0])
    finding.line("heuristic", heuristic)
    finding.line("over MILP", ratio(heuristic, _rescale_per_event(by_milp)))
    finding.line("growth", growth, holds=milp == sorted(milp) and (growth or 0.0) >= 2.0)
    finding.chart("fig7b", sweep, {"MILP": np.divide(milp, 1e3).tolist()}, heuristic=heuristic)


def _return_on_cost(series: Series) -> float:
    """Return the samples processed over those that rescales cost; 0 if they cost nothing."""
    return ratio(float(series.gross().sum()), float(series.rescale.sum())) or 0.0


def fig8(finding: Finding, extent: Sweeps) -> Steps:
    """Return on investment: outcome up to the next event over the cost of the decision."""
    records = yield _sweep(extent)
    sweep = map_values(attrgetter("series"), records)
    returns = map_values(lambda series: float(series.gross().mean()), sweep)
    ratios = list(map(_return_on_cost, sweep.values()))
    is_falling = ratios == sorted(ratios, reverse=True)
    late = [value for t_fwd_s, value in returns.items() if t_fwd_s >= diverse.SATURATED_S]
    rise = 100.0 * (late[0] / returns[min(sweep)] - 1.0)
    fall = ratio(ratios[0], ratios[-1])
    finding.line("return on cost", fall, holds=is_falling and (fall or 0.0) >= 2.0)
    finding.line("return", rise, holds=rise >= 1.0 and max(late) < 1.01 * min(late))
    finding.chart("fig8-roi", sweep, {"ours": ratios})
    millions = np.divide(list(returns.values()), 1e6).tolist()
    finding.chart("fig8-return", sweep, {"ours": millions})


def _saturation_s(by_t_fwd: Mapping[float, float]) -> float | None:
    """Return the T_fwd after the last one whose U is half a point below the most; None: none is."""
    enough = max(by_t_fwd.values()) - 0.5
    last_low_s = max((t_fwd_s for t_fwd_s, u in by_t_fwd.items() if u < enough), default=0.0)
    return min((t_fwd_s for t_fwd_s in by_t_fwd if t_fwd_s > last_low_s), default=None)


def fig9(finding: Finding, extent: Sweeps) -> Steps:
    """U against T_fwd."""
    sweep, heuristic, equal = yield _sweep(extent), HEURISTIC, EQUAL
    ours = map_values(attrgetter("u"), sweep)
    lowest, highest = min(ours.values()), max(ours.values())
    line = finding.line("heuristic", heuristic.u)
    finding.line("equal share", equal.u)
    finding.line("saturation", _saturation_s(ours))
    diverse.gains(finding, ours)
    finding.line("axis", highest, holds=lowest >= 78.0 and highest <= 84.0)
    finding.chart("fig9", sweep, {"MILP": tuple(ours.values())})
    levels = {"heuristic": (heuristic.u,) * 2, "heuristic, paper": (line.paper or 0.0,) * 2}
    finding.chart("fig9", (min(sweep), max(sweep)), levels)


def exact_replay(finding: Finding, extent: Sweeps) -> Steps:
    """U beside another program's exact replay of the published bookkeeping."""
    times_s, rows = TABLES["exact-replay"]["columns"], TABLES["exact-replay"]["rows"]
    milps = [PaperReplay(t_fwd_s=t_fwd_s) for t_fwd_s in times_s if t_fwd_s in extent.t_fwd_s]
    by_name = [HEURISTIC, *milps]
    at_random = map(partial(replace, is_any_node=True), by_name)
    records = yield [*by_name, *at_random]
    for record in records:
        run = record.run
        policy, setting = "heuristic", "heuristic"
        if run.policy == MILP.policy:
            policy, setting = "MILP", f"MILP, T_fwd {run.t_fwd_s:g} s"
        finding.line(
            "U",
            record.u,
            paper=rows[policy][times_s.index(run.t_fwd_s)],
            of=setting,
            nodes="at random" if run.is_any_node else "by name",
        )


def _u_of_windows(windows: Windows, p_jmax: int) -> Column:
    """Return U of each six hours, %."""
    static = static_outcome(CURVE, windows.n_eq, p_jmax, 3600.0 * WINDOW_H)
    u = np.divide(windows.outcome, static, out=np.zeros_like(static), where=static > 0)
    return 100.0 * u


def _linear_u(windows: Windows) -> Column:
    """Return U of each six hours, %, with A_s as if nodes scaled linearly."""
    ideal = windows.n_eq * CURVE.samples_per_s[0] * 3600.0 * WINDOW_H
    u: Column = 100.0 * windows.outcome[ideal > 0] / ideal[ideal > 0]
    return u


def _third_best(values: Column) -> float:
    return float(np.sort(values)[-3:].min())


def fig10(finding: Finding, _: Sweeps) -> Steps:
    """U in each six hours."""
    by_milp, by_heuristic = yield MILP, HEURISTIC
    windows = windows_of(by_milp.series, WINDOW_H)
    milp, linear = _u_of_windows(windows, by_milp.run.p_jmax), _linear_u(windows)
    heuristic_windows = windows_of(by_heuristic.series, WINDOW_H)
    heuristic = _u_of_windows(heuristic_windows, by_heuristic.run.p_jmax)
    ahead = 100.0 * (milp[heuristic > 0] / heuristic[heuristic > 0] - 1.0)
    finding.line("mean", float(milp.mean()))
    finding.line("mean, linear", float(linear.mean()))
    finding.line("third best", _third_best(milp))
    finding.line("third best, linear", _third_best(linear))
    finding.line("lead", float(ahead.max(initial=0.0)))
    ys = {"heuristic": heuristic.tolist(), "MILP": milp.tolist()}
    finding.chart("fig10", windows.hours[:-1].tolist(), ys)


def fig11(finding: Finding, _: Sweeps) -> Steps:
    """Costs in each six hours."""
    by_milp, by_heuristic = yield MILP, HEURISTIC
    milp = windows_of(by_milp.series, WINDOW_H)
    heuristic = windows_of(by_heuristic.series, WINDOW_H)
    preemption = ratio(float(milp.preemption.sum()), float(heuristic.preemption.sum()))
    rescale = ratio(float(heuristic.rescale.sum()), float(milp.rescale.sum()))
    is_alike = is_more = None
    if preemption is not None:
        is_alike = abs(preemption - 1.0) < 0.1
    if rescale is not None:
        is_more = rescale > 2.0
    finding.line("preemption", preemption, holds=is_alike)
    finding.line("rescale", rescale, holds=is_more)
    for key, kind in (("fig11a", "preemption"), ("fig11b", "rescale")):
        ys = {
            "heuristic": (getattr(heuristic, kind) / 1e9).tolist(),
            "MILP": (getattr(milp, kind) / 1e9).tolist(),
        }
        finding.chart(key, milp.hours[:-1].tolist(), ys)


def speedup(finding: Finding, _: Sweeps) -> Steps:
    """Outcome between contiguous events, MILP over heuristic."""
    by_milp, by_heuristic = yield MILP, HEURISTIC
    milp, heuristic = by_milp.series.net(), by_heuristic.series.net()
    # There is no ratio where the heuristic's costs exceed what it processes.
    factor = milp[heuristic > 0] / heuristic[heuristic > 0]
    finding.line("worse", percent(float(np.mean(milp < WORSE * heuristic))))
    finding.line("twice", percent(float(np.mean(factor >= TWICE))))
    finding.line("five times", percent(float(np.mean(factor >= FIVE_TIMES))))
    finding.line("mean", float(factor.mean()))
