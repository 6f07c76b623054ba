#!/usr/bin/env python3
"""How soon decisions are as good as if the trainers' curves were known, and what that is worth.

Simulated on Table 2's curves with physical costs and noise in what is measured: from no
curve at all, and from wrong curves of users, in each case beside decisions that know the
truth. Then once for real, with two trainers on this machine. Also the time of a fit. Prints
targets with ``met`` or ``missed``; exits 1 when one is missed. docs/design/estimators.md explains.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

from _bench.benchmark import Benchmark, Measured, note
from _bench.profiling_real import Real, learn_here
from _bench.profiling_replays import LOSS, OBJECTIVES, RESCALES, WRONG, Row, gains_of, replay

from bftrainer.decide.throughput.fit import MeasuredSize, fit
from bftrainer.lab.workloads import NETWORKS
from milp.problem import Objective
from milp.worth import curve_at

FIT_MS = 1.0
GAIN = 0.223  # of MalleTrain, at most (arXiv 2404.15668, abstract)


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """Replay, fit, and learn for real."""
    seeds = range(1, 1 + (options.traces or (2 if options.quick else 8)))
    hours = options.hours or (3.0 if options.quick else 12.0)
    rows = [row for seed in seeds for row in replay(seed, hours, is_quick=options.quick)]
    gains = gains_of(rows)
    measured.results |= {"rows": [_plain(row) for row in rows], "gains": gains, "real": None}
    for objective in OBJECTIVES:
        _judge_losses(objective, rows, measured)
    best = max(gains, key=lambda g: float(g["gain"]))
    measured.at_least(
        "gain over the worst wrong curve believed (MalleTrain: up to 22.3%)",
        100 * float(best["gain"]),
        100 * GAIN,
        "%",
        f"{best['claim']}, {best['objective']}",
    )
    _tabulate_gains(gains, measured)
    fit_ms = measured.results["fit_ms"] = _fit_ms()
    measured.at_most("one fit", fit_ms, FIT_MS, "ms", "7 sizes")
    if not options.no_real:
        note("two real trainers, about a minute and a half")
        with tempfile.TemporaryDirectory(prefix="bft-profiler-") as directory:
            _judge_real(learn_here(Path(directory)), measured)


def _judge_losses(objective: Objective, rows: Sequence[Row], measured: Measured) -> None:
    mine = [r for r in rows if r.objective == objective.value]
    learnt = [r for r in mine if r.arm == "nothing, learnt"]
    below, limit = [r.below_after for r in learnt], 100 * LOSS
    measured.at_most(
        f"{objective.value}: loss after {RESCALES:.0f} rescales per trainer",
        100 * max(r.loss_later for r in learnt), limit, "%", f"worst of {len(learnt)} traces",
    )  # fmt: skip
    measured.at_most(
        f"{objective.value}: rescales until it is below {limit:.0f}%",
        median(below), RESCALES, "rescales", f"median of {len(learnt)}, worst {max(below):g}",
    )  # fmt: skip
    known = {r.seed: r.outcome for r in mine if r.arm == "known"}
    table = []
    for arm in dict.fromkeys(r.arm for r in mine):
        these = [r for r in mine if r.arm == arm]
        later = [r.loss_later for r in these if not math.isnan(r.loss_later)]
        table.append(
            (
                arm,
                *(f"{100 * _mean([r.loss_by_rescale[k] for r in these]):.1f}" for k in range(8)),
                f"{100 * _mean(later):.2f}",
                f"{100 * max(later, default=math.nan):.2f}",
                f"{mean(r.outcome / known[r.seed] for r in these):.4f}",
            )
        )
    headings = ("what is known", *map(str, range(8)), "later", "worst", "outcome")
    measured.table(f"Loss in %, objective {objective.value}", headings, table)


def _tabulate_gains(gains: Sequence[dict[str, Any]], measured: Measured) -> None:
    rows = []
    for objective in OBJECTIVES:
        for claim in WRONG:
            these = [g for g in gains if (g["objective"], g["claim"]) == (objective, claim)]
            if these:
                figures = (
                    f"{100 * mean(g['gain'] for g in these):+.1f}%",
                    f"{100 * max(g['gain'] for g in these):+.1f}%",
                    f"{100 * mean(g['of_possible'] for g in these):.1f}%",
                )
                rows.append((objective.value, claim, *figures))
    headings = ("objective", "users claim", "mean gain", "most", "of what is possible")
    measured.table("Wrong curves corrected, against believed", headings, rows, left=2)


def _judge_real(real: Real, measured: Measured) -> None:
    rows = []
    for name, ratios in real.measured.items():
        shown = ", ".join(f"{n}: {ratio:.3f}" for n, ratio in ratios.items())
        sizes = (str(real.sizes.get(name, 0)), str(real.best.get(name, 0)))
        rows.append((name, str(real.rescales[name]), shown, *sizes))
    headings = ("trainer", "rescales", "measured / true, by size", "size", "best")
    measured.table("Two real trainers, nothing known", headings, rows)
    losses = ", ".join(f"{d.at_s:.0f} s: {100 * d.loss:.1f}%" for d in real.decisions)
    measured.tables.append(f"loss of each decision: {losses}")
    last, after = 100 * real.decisions[-1].loss, real.rescales_until(LOSS)
    limit, of = 100 * LOSS, "one run"
    measured.at_most("real: loss of the last decision", last, limit, "%", of)
    measured.at_most("real: rescales until it stays below 2%", after, RESCALES, "rescales", of)
    names = ("rescales", "measured", "sizes", "best")
    measured.results["real"] = {
        "decisions": [asdict(d) for d in real.decisions],
        **{name: getattr(real, name) for name in names},
    }


def _fit_ms() -> float:
    """Median time of a fit that is not in the cache."""
    curve = NETWORKS["alexnet"].curve
    times = []
    for k in range(200):
        points = tuple(
            MeasuredSize(n, curve_at(curve, n) * (1.0 + 1e-5 * k), 0.01) for n in curve.sizes
        )
        began = time.perf_counter()
        fit(points, 64)
        times.append(1e3 * (time.perf_counter() - began))
    return median(times)


def _mean(values: Sequence[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return mean(known) if known else math.nan


def _plain(row: Row) -> dict[str, Any]:
    """Return a replay for JSON, which has no infinity."""

    def plain(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return asdict(row) | {
        "loss_by_rescale": [plain(loss) for loss in row.loss_by_rescale],
        "loss_later": plain(row.loss_later),
        "below_after": plain(row.below_after),
    }


BENCHMARK = Benchmark(
    name="profiler",
    title="Curves that are learnt",
    about=__doc__,
    quick="2 traces of 3 h instead of 8 of 12 h",
    options={
        "--traces": {"type": int, "help": "number of traces"},
        "--hours": {"type": float, "help": "length of each"},
        "--no-real": {"action": "store_true", "help": "simulate only"},
    },
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
