"""Section 5.1: identical trials of ShuffleNet, the forward-looking time, MILP and heuristic."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from bftrainer.lab.papers.bftrainer import diverse
from bftrainer.lab.papers.bftrainer.diverse import all_p_jmax
from bftrainer.lab.papers.bftrainer.replays import EQUAL, HEURISTIC, MILP, PaperReplay, Record
from bftrainer.lab.papers.bftrainer.scenario import DIVERSE, EXPECTED, Sweeps
from bftrainer.lab.papers.bftrainer.series import (
    Column,
    Windows,
    share_followed,
    static_outcome,
    windows_of,
)
from bftrainer.lab.papers.findings import Chart, Plotted, Reproduced, percent, ratio
from bftrainer.lab.papers.paper import Records
from bftrainer.lab.workloads import NETWORKS

X_LABEL = "forward-looking time (s)"
LONGEST_S = 300.0  # the paper's axes of T_fwd end here


def sweep(extent: Sweeps) -> tuple[PaperReplay, ...]:
    """Return a replay per forward-looking time."""
    return tuple(PaperReplay(t_fwd_s=t) for t in extent.t_fwd_s)


def sweep_and_heuristic(extent: Sweeps) -> tuple[PaperReplay, ...]:
    """Return the sweep and the heuristic of the published replayer."""
    return (*sweep(extent), HEURISTIC)


def sweep_and_both(extent: Sweeps) -> tuple[PaperReplay, ...]:
    """Return the sweep and equal share in both readings."""
    return (*sweep(extent), HEURISTIC, EQUAL)


def milp_only(_: Sweeps) -> tuple[PaperReplay, ...]:
    """Return the MILP at T_fwd 120 s."""
    return (MILP,)


def _within_axis(extent: Sweeps) -> tuple[float, ...]:
    return tuple(t for t in extent.t_fwd_s if t <= LONGEST_S)


def fig7a(records: Records, _: Sweeps) -> Reproduced:
    """Share of decisions that are followed by a preemption within T_fwd."""
    within_s = tuple(float(t) for t in range(10, 301, 10))
    series = records[MILP].series
    losses = share_followed(series, within_s)
    gaps = np.diff(series.at_s)
    events = [float(np.mean(gaps <= t)) for t in within_s]
    at_170 = within_s.index(170.0)
    return Reproduced(
        lines=(
            EXPECTED.line("fig7a", "any event", percent(events[at_170])),
            EXPECTED.line(
                "fig7a", "loss", percent(losses[at_170]),
                why="the paper's 90% is met by events of any kind (line above); nodes that join "
                "are counted there, too",
            ),
        ),
        charts=(
            Chart(
                name="fig7a",
                title="Preemption within the forward-looking time",
                x_label=X_LABEL,
                y_label="decisions (%)",
                plotted=tuple(
                    Plotted(label=label, x=within_s, y=tuple(map(percent, shares)))
                    for label, shares in (
                        ("any event follows", events),
                        ("a trainer loses nodes", losses),
                    )
                ),
            ),
        ),
    )  # fmt: skip


def _rescale_per_event(record: Record) -> float:
    return float(record.series.rescale.sum()) / len(record.series.rescale)


def fig7b(records: Records, extent: Sweeps) -> Reproduced:
    """Cost of rescales per event."""
    times = _within_axis(extent)
    milp = [_rescale_per_event(records[PaperReplay(t_fwd_s=t)]) for t in times]
    heuristic = _rescale_per_event(records[HEURISTIC])
    return Reproduced(
        lines=(
            EXPECTED.line(
                "fig7b", "heuristic", heuristic,
                why="the ratio to the MILP (next line) is met; over which events the paper "
                "averages is not said",
            ),
            EXPECTED.line("fig7b", "over MILP", ratio(heuristic, milp[0])),
            EXPECTED.line("fig7b", "growth", ratio(milp[-1], milp[0]), holds=milp == sorted(milp)),
        ),
        charts=(
            Chart(
                name="fig7b",
                title=f"Rescale cost per event (heuristic: {heuristic:,.0f} samples)",
                x_label=X_LABEL,
                y_label="samples per event (thousands)",
                plotted=(Plotted(label="MILP", x=times, y=tuple(c / 1e3 for c in milp)),),
            ),
        ),
    )  # fmt: skip


def fig8(records: Records, extent: Sweeps) -> Reproduced:
    """Return on investment: outcome up to the next event over the cost of the decision."""
    times = _within_axis(extent)
    returns, ratios = [], []
    for t in times:
        series = records[PaperReplay(t_fwd_s=t)].series
        returns.append(float(series.gross().mean()))
        ratios.append(ratio(float(series.gross().sum()), float(series.rescale.sum())) or 0.0)
    falls = all(later <= sooner for sooner, later in pairwise(ratios))
    late = [r for t, r in zip(times, returns, strict=True) if t >= 120]
    spread = 100.0 * (max(late) / min(late) - 1.0)
    is_saturated = spread < 1.0 and returns[0] < min(late)
    return Reproduced(
        lines=(
            EXPECTED.line("fig8", "return on cost", ratio(ratios[0], ratios[-1]), holds=falls),
            EXPECTED.line("fig8", "return", spread, holds=is_saturated),
        ),
        charts=(
            Chart(
                name="fig8-roi",
                title="Return on rescale investment",
                x_label=X_LABEL,
                y_label="mean return / mean cost",
                plotted=(Plotted(label="ours", x=times, y=tuple(ratios)),),
                is_log=True,
            ),
            Chart(
                name="fig8-return",
                title="Mean return",
                x_label=X_LABEL,
                y_label="samples per event (millions)",
                plotted=(Plotted(label="ours", x=times, y=tuple(r / 1e6 for r in returns)),),
            ),
        ),
    )


def fig9(records: Records, extent: Sweeps) -> Reproduced:
    """U against T_fwd."""
    times = _within_axis(extent)
    ours = [records[PaperReplay(t_fwd_s=t)].u for t in times]
    late = [u for t, u in zip(times, ours, strict=True) if t >= 120]
    heuristic = EXPECTED.line("fig9", "heuristic", records[HEURISTIC].u)
    gain = records[MILP].u - ours[0]
    ends = (times[0], times[-1])
    return Reproduced(
        lines=(
            heuristic,
            EXPECTED.line(
                "fig9", "equal share", records[EQUAL].u,
                why="the published baseline gives what is left of the division to the first "
                "trainer, so it runs larger and less efficiently; here it is shared, too",
            ),
            EXPECTED.line("fig9", "gain", gain, holds=gain > 0 and max(late) - min(late) < 1.0),
        ),
        charts=(
            Chart(
                name="fig9",
                title="HPO: utilization efficiency and forward-looking time",
                x_label=X_LABEL,
                y_label="U (%)",
                plotted=(
                    Plotted(label="MILP", x=times, y=tuple(ours)),
                    Plotted(label="heuristic", x=ends, y=(records[HEURISTIC].u,) * 2),
                    Plotted(
                        label="heuristic, paper",
                        x=ends,
                        y=(heuristic.paper or 0.0,) * 2,
                        is_papers=True,
                    ),
                ),
            ),
        ),
    )  # fmt: skip


CURVE = NETWORKS["shufflenet"].curve
WINDOW_H = 6.0


def milp_and_heuristic(_: Sweeps) -> tuple[PaperReplay, ...]:
    """Return the MILP at T_fwd 120 s and the heuristic."""
    return (MILP, HEURISTIC)


def _u_of_windows(record: Record) -> tuple[Windows, Column]:
    windows = windows_of(record.series, WINDOW_H)
    static = static_outcome(CURVE, windows.n_eq, record.run.p_jmax, 3600.0 * WINDOW_H)
    u = np.divide(windows.outcome, static, out=np.zeros_like(static), where=static > 0)
    return windows, 100.0 * u


def linear_u(record: Record) -> Column:
    """Return U of each six hours, %, with A_s as if nodes scaled linearly."""
    windows = windows_of(record.series, WINDOW_H)
    ideal = windows.n_eq * CURVE.samples_per_s[0] * 3600.0 * WINDOW_H
    u: Column = 100.0 * windows.outcome[ideal > 0] / ideal[ideal > 0]
    return u


def fig10(records: Records, _: Sweeps) -> Reproduced:
    """U in each six hours."""
    windows, milp = _u_of_windows(records[MILP])
    heuristic = _u_of_windows(records[HEURISTIC])[1]
    linear = linear_u(records[MILP])
    ahead = 100.0 * (milp[heuristic > 0] / heuristic[heuristic > 0] - 1.0)
    from_h = tuple(windows.hours[:-1].tolist())
    return Reproduced(
        lines=(
            EXPECTED.line(
                "fig10", "mean", float(milp.mean()),
                why="A_s is that of each six hours' own N_eq, which takes out the swings "
                "between them; the paper's value is met against linear scaling (next line)",
            ),
            EXPECTED.line("fig10", "mean, linear", float(linear.mean())),
            EXPECTED.line(
                "fig10", "third best", float(np.sort(milp)[-3:][0]),
                why=f"as above: {np.sort(linear)[-3:][0]:.1f}% against linear scaling",
            ),
            EXPECTED.line("fig10", "lead", float(ahead.max(initial=0.0))),
        ),
        charts=(
            Chart(
                name="fig10",
                title="HPO: utilization efficiency in six hours, T_fwd 120 s",
                x_label="elapsed time (h)",
                y_label="U (%)",
                plotted=(
                    Plotted(label="heuristic", x=from_h, y=tuple(heuristic.tolist())),
                    Plotted(label="MILP", x=from_h, y=tuple(milp.tolist())),
                ),
            ),
        ),
    )  # fmt: skip


def fig11(records: Records, _: Sweeps) -> Reproduced:
    """Costs in each six hours."""
    milp = windows_of(records[MILP].series, WINDOW_H)
    heuristic = windows_of(records[HEURISTIC].series, WINDOW_H)
    preemption = ratio(float(milp.preemption.sum()), float(heuristic.preemption.sum()))
    rescale = ratio(float(heuristic.rescale.sum()), float(milp.rescale.sum()))
    from_h = tuple(milp.hours[:-1].tolist())

    def chart(name: str, kind: str, *, is_log: bool) -> Chart:
        return Chart(
            name=name,
            title=f"{kind.capitalize()} cost in six hours, T_fwd 120 s",
            x_label="elapsed time (h)",
            y_label="samples (billions)",
            plotted=tuple(
                Plotted(label=label, x=from_h, y=tuple((getattr(of, kind) / 1e9).tolist()))
                for label, of in (("heuristic", heuristic), ("MILP", milp))
            ),
            is_log=is_log,
        )

    return Reproduced(
        lines=(
            EXPECTED.line(
                "fig11", "preemption", preemption,
                holds=None if preemption is None else abs(preemption - 1.0) < 0.1,
                why="nodes are handed out by name here; neighbours leave together, and the MILP "
                "moves less, so fewer of its trainers lose nodes at once",
            ),
            EXPECTED.line(
                "fig11", "rescale", rescale, holds=None if rescale is None else rescale > 2.0
            ),
        ),
        charts=(
            chart("fig11a", "preemption", is_log=False),
            chart("fig11b", "rescale", is_log=True),
        ),
    )  # fmt: skip


def speedup(records: Records, _: Sweeps) -> Reproduced:
    """Outcome between contiguous events, MILP over heuristic."""
    milp, heuristic = records[MILP].series.net(), records[HEURISTIC].series.net()
    # There is no ratio where the heuristic's costs exceed what it processes.
    factor = milp[heuristic > 0] / heuristic[heuristic > 0]
    worse = float(np.mean(milp < heuristic))
    return Reproduced(
        lines=(
            EXPECTED.line("speedup", "worse", percent(worse)),
            EXPECTED.line("speedup", "twice", percent(float(np.mean(factor >= 2.0)))),
            EXPECTED.line("speedup", "five times", percent(float(np.mean(factor >= 5.0)))),
            EXPECTED.line(
                "speedup", "mean", float(factor.mean()),
                why="a mean of ratios: the paper says itself that a few events skew it",
            ),
        )
    )  # fmt: skip


P_JMAX_OF_TRIALS = (5, 15, 20, 25, 30, 35)  # of identical trials, besides 10


def _settings(extent: Sweeps) -> tuple[PaperReplay, ...]:
    trials = tuple(PaperReplay(p_jmax=p) for p in P_JMAX_OF_TRIALS if p in extent.p_jmax)
    return (*all_p_jmax(extent), *trials, *sweep(extent))


def runs(extent: Sweeps) -> tuple[PaperReplay, ...]:
    """Return the heuristic, and all settings of which the abstract names the best."""
    return (HEURISTIC, *_settings(extent))


def _u(record: Record) -> float:
    return diverse.utilization(record) if record.run.workload == DIVERSE else record.u


def find(records: Records, extent: Sweeps) -> Reproduced:
    """Compare 75% (heuristic), 80% (mean of the MILP) and 93% (best)."""
    best = max(_settings(extent), key=lambda run: _u(records[run]))
    return Reproduced(
        lines=(
            EXPECTED.line("statements", "heuristic", records[HEURISTIC].u),
            EXPECTED.line("statements", "mean", float(linear_u(records[MILP]).mean())),
            EXPECTED.line(
                "statements",
                "best",
                _u(records[best]),
                workload="diverse" if best.workload == DIVERSE else best.workload,
                p_jmax=best.p_jmax,
            ),
        )
    )
