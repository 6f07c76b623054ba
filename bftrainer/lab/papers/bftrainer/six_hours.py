"""Section 5.1.2: MILP and heuristic in each six hours and between events (Figs. 10 and 11)."""

from __future__ import annotations

import numpy as np

from bftrainer.lab.papers.bftrainer.replays import HEURISTIC, MILP, PaperReplay, Record
from bftrainer.lab.papers.bftrainer.scenario import EXPECTED, Sweeps
from bftrainer.lab.papers.bftrainer.series import Column, Windows, static_outcome, windows_of
from bftrainer.lab.papers.findings import Chart, Plotted, Reproduced, percent, ratio
from bftrainer.lab.papers.paper import Records
from bftrainer.lab.workloads import NETWORKS

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
