#!/usr/bin/env python3
"""How good the probabilities of ``bftrainer study deadline`` are.

The model knows the first three days of a trace. On the five days after, each hour is asked whether
studies of four kinds and five lengths end within half an hour to eight hours; the pool itself then
tells. Once the nodes are others, too: a random half of the machine tells of the other half. A
probability is calibrated if of all forecasts near it that share comes true: the calibration error
is the mean difference over ten bins of equally many forecasts. Beside it: the share of all windows
of the history, and the mean number of nodes. Each four hours the reserve for 95% is asked for, too,
and the pool tells whether the study is in time with it.

Generated traces are of two kinds, Summit's and one of fewer, longer bursts. The Summit trace is
sought in BFTRAINER_DATA; without it, generated ones do. Also: what each part of the model is worth,
the simulator playing studies beside the integral, and the time of an answer. Prints targets with
``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from _bench.benchmark import Benchmark, Measured, note
from _bench.deadline import covering, grid, played, reserving
from _bench.deadline.pools import BURSTS, LIKE_SUMMIT, Pool, pools
from _bench.deadline.scoring import BINS, Floats, Score, bins_of, plot, score

from bftrainer.batch.traces.fragments import HOUR_S
from bftrainer.study.deadline import Drawing, history_for, outlook

FORECASTS = ("model", "windows", "mean_rate")
DRAWING = Drawing(groups=20, each=20)
WITHOUT = {
    "pieces are not scaled": replace(DRAWING, fades_s=0.0),
    "nor is it known what is idle now": replace(DRAWING, fades_s=0.0, likeness=1e6),
    "half as wide a likeness": replace(DRAWING, likeness=DRAWING.likeness / 2),
    "pieces of four hours": replace(DRAWING, piece_s=4 * HOUR_S),
}


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Measure everything."""
    is_quick = arguments.quick
    every_h = 6.0 if is_quick else 1.0
    found = pools(os.environ.get("BFTRAINER_DATA"), is_quick=is_quick)
    rows = {pool.name: _asked(pool, every_h, DRAWING) for pool in found}
    _calibration(measured, rows, limit=0.15 if is_quick else 0.05)
    _reserves(measured, found, every_h=24.0 if is_quick else 4.0)
    _parts(measured, found[0], rows[found[0].name], every_h)
    _played(measured, found[-1] if is_quick else found[0], is_quick=is_quick)
    if not is_quick:
        _intervals(measured)
    _time(measured, found[0])
    if arguments.plot:
        asked = {pool.name: _columns(rows[pool.name], "model") for pool in found}
        scores = measured.results["calibration"]
        plot(
            arguments.plot,
            asked,
            {
                name: {hours: scores[name][f"{hours:g} h"]["error"] for hours in grid.DEADLINES_H}
                for name in asked
            },
        )


def _asked(
    pool: Pool, every_h: float, drawing: Drawing, start_up_s: float = grid.START_UP_S
) -> list[grid.Row]:
    note(f"{pool.name}: {every_h:g} h between questions")
    asked = grid.rows(pool.fit, pool.test, every_h=every_h, drawing=drawing, start_up_s=start_up_s)
    return list(asked)


def _columns(rows: Sequence[grid.Row], forecast: str) -> tuple[Floats, Floats]:
    predicted = np.array([getattr(row, forecast) for row in rows])
    return predicted, np.array([float(row.came_true) for row in rows])


def _calibration(measured: Measured, rows: dict[str, list[grid.Row]], limit: float) -> None:
    table: list[tuple[str, ...]] = []
    scores: dict[str, dict[str, Any]] = {}
    for name, asked in rows.items():
        by = {forecast: score(*_columns(asked, forecast)) for forecast in FORECASTS}
        scores[name] = {forecast: asdict(one) for forecast, one in by.items()}
        came_true = float(np.mean([row.came_true for row in asked]))
        table.append((name, str(len(asked)), f"{came_true:.2f}", *_cells(by.values())))
        measured.at_most(f"calibration error, {name}", by["model"].error, limit, "")
        measured.at_most(
            f"Brier score / that of the share of windows, {name}",
            by["model"].brier / by["windows"].brier,
            1.0,
            "",
        )
        for hours in grid.DEADLINES_H:
            some = score(*_columns([r for r in asked if r.asked.deadline_h == hours], "model"))
            scores[name][f"{hours:g} h"] = asdict(some)
    measured.results["calibration"] = scores
    _reliability(measured, {name: _columns(asked, "model") for name, asked in rows.items()})
    headings = ("", "forecasts", "came true", *(f"{one}" for one in ("model", "Brier", "bias")))
    more = ("windows", "Brier", "bias", "mean rate", "Brier", "bias")
    measured.table("Calibration error, Brier score and bias", (*headings, *more), table)
    measured.table(
        "Calibration error of the model, by deadline",
        ("", *(f"{hours:g} h" for hours in grid.DEADLINES_H)),
        [
            (name, *(f"{of[f'{hours:g} h']['error']:.3f}" for hours in grid.DEADLINES_H))
            for name, of in scores.items()
        ],
    )


def _reserves(measured: Measured, found: Sequence[Pool], every_h: float) -> None:
    """Count how often a study is in time with the nodes that the model says make it 95%."""
    table: list[tuple[str, ...]] = []
    asked = {}
    for pool in found:
        note(f"{pool.name}: reserves, {every_h:g} h between questions")
        rows = list(reserving.rows(pool, every_h=every_h, drawing=DRAWING))
        asked[pool.name] = [asdict(row) for row in rows]
        instants, share = reserving.instants(rows), reserving.in_time(rows)
        by = (
            reserving.in_time([row for row in rows if row.asked.deadline_h == hours])
            for hours in grid.DEADLINES_H
        )
        free, nodes = (float(np.mean([row.free for row in rows])), [row.reserved for row in rows])
        counts = (str(len(rows)), str(instants), f"{np.median(nodes):.0f}")
        table.append((pool.name, *counts, *(f"{one:.1%}" for one in (free, share, *by))))
        measured.at_least(
            f"in time with the reserve for 95%, {pool.name}",
            share,
            reserving.limit(instants),
            "",
            f"{len(rows)} questions at {instants} instants",
        )
    measured.results["reserves"] = asked
    counted = ("questions", "instants", "nodes, median", "without", "with")
    measured.table(
        "In time with the reserve that the model says makes it 95%",
        ("", *counted, *(f"{hours:g} h" for hours in grid.DEADLINES_H)),
        table,
    )


def _reliability(measured: Measured, of: dict[str, tuple[Floats, Floats]]) -> None:
    bins = {name: bins_of(*columns) for name, columns in of.items()}
    measured.results["bins"] = {name: [asdict(one) for one in some] for name, some in bins.items()}
    measured.table(
        "Predicted: came true, in ten bins of equally many forecasts",
        ("", *("" for _ in range(BINS))),
        [
            (name, *(f"{one.predicted:.2f}: {one.observed:.2f}" for one in some))
            for name, some in bins.items()
        ],
    )


def _cells(scores: Any) -> list[str]:
    return [
        text
        for one in scores
        for text in (f"{one.error:.3f}", f"{one.brier:.3f}", f"{one.bias:+.3f}")
    ]


def _parts(measured: Measured, pool: Pool, rows: list[grid.Row], every_h: float) -> None:
    """Leave parts of the model out."""
    found: dict[str, Score] = {"as it is": score(*_columns(rows, "model"))}
    found |= {
        name: score(*_columns(_asked(pool, every_h, drawing), "model"))
        for name, drawing in WITHOUT.items()
    }
    free = _asked(pool, every_h, DRAWING, start_up_s=0.0)
    found["nodes train at once"] = score(*_columns(free, "model"))
    measured.results["parts"] = {name: asdict(one) for name, one in found.items()}
    measured.table(
        f"What parts are worth: {pool.name}",
        ("", "error", "Brier", "bias"),
        [(name, *_cells([one])) for name, one in found.items()],
    )


def _played(measured: Measured, pool: Pool, *, is_quick: bool) -> None:
    """Play studies on windows of the trace, with the daemon's decisions."""
    trace = pool.test.restrict(slice(0, min(1024, len(pool.test.names))))
    last_h = trace.duration_s / HOUR_S - played.WINDOW_H
    begins_h = np.linspace(0.0, last_h, 3 if is_quick else 12).round(1).tolist()
    rows, everything = [], list[played.Both]()
    for study in played.STUDIES[2:3] if is_quick else played.STUDIES:
        note(f"{study.name}: {len(begins_h)} windows of {played.WINDOW_H:g} h are played")
        both = list(played.compared(trace, study, begins_h))
        everything += both
        rows.append((study.name, *_agreement(both)))
    rows.append(("all", *_agreement(everything)))
    measured.results["played"] = [asdict(one) for one in everything]
    measured.table(
        f"Played by the simulator, {len(begins_h)} windows of {pool.name}",
        ("", "agree", "in time: integral", "played", "longer, median", "p90"),
        rows,
    )
    agree = played.agreement(everything)["agree"]
    measured.at_least("integral and simulator agree on the deadline", agree, 0.9, "")


def _agreement(both: list[played.Both]) -> tuple[str, ...]:
    found = played.agreement(both)
    names = ("agree", "in_time_integral", "in_time_played", "longer_median", "longer_p90")
    return tuple(f"{found[name]:.1%}" for name in names)


def _intervals(measured: Measured) -> None:
    """Compare intervals with what is true of generated pools, which are known for months."""
    kinds = {"generated": LIKE_SUMMIT, "generated bursts": BURSTS}
    for name, parameters in kinds.items():
        note(f"{name}: intervals")
        held = covering.held(replace(parameters, seed=77), histories=3)
        measured.results[f"intervals, {name}"] = held
        share = float(np.mean(held))
        measured.at_least(f"90% intervals that hold, {name}", share, 0.8, "", f"of {len(held)}")


def _time(measured: Measured, pool: Pool) -> None:
    times_s = []
    for _ in range(3):
        before_s = time.process_time()
        history = history_for(pool.fit, 6 * HOUR_S, grid.START_UP_S)
        outlook(
            played.STUDIES[1].work,
            history,
            deadline_s=6 * HOUR_S,
            start_up_s=grid.START_UP_S,
            now_idle=10,
            confidence=0.95,
            drawing=Drawing(),
        )
        times_s.append(time.process_time() - before_s)
    measured.at_most("an answer with 2,000 futures, CPU", min(times_s), 2.0)


BENCHMARK = Benchmark(
    name="deadline",
    title="Targets",
    about=__doc__,
    quick="fewer questions and plays; targets are wide (about a minute)",
    measure=measure,
    options={"--plot": {"type": Path, "metavar": "FILE", "help": "draw the calibration"}},
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
