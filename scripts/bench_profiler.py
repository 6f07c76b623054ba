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
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

from _bench import profiling as arms
from _bench.profiling import Arm, Learnt, learn, workload
from _bench.profiling_real import Real, learn_here
from _bench.targets import Target, console, exit_code, print_targets, write_json
from _bench.timing import note
from rich.table import Table

from bftrainer.profile.fit import MeasuredSize, fit
from bftrainer.simulate.traces.fragments import Fragments
from bftrainer.simulate.traces.generator import GeneratorParameters, generate
from bftrainer.simulate.workloads.networks import NETWORKS
from milp.problem import Objective
from milp.worth import curve_at

LOSS, RESCALES, FIT_MS = 0.02, 5.0, 1.0
GAIN = 0.223  # of MalleTrain, at most (arXiv 2404.15668, abstract)
OBJECTIVES: Final = (Objective.SCALING_EFFICIENCY, Objective.THROUGHPUT)
WRONG: Final = {
    "all scale perfectly": arms.all_alike,
    "the next network's": arms.somebody_elses,
    "upside down": arms.reversed_efficiency,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One replay."""

    objective: str
    seed: int
    arm: str
    loss_by_rescale: tuple[float, ...]  # mean loss while trainers had 0, 1, 2 ... rescales
    loss_later: float  # after ``RESCALES`` of them
    below_after: float  # rescales per trainer from which the loss stays below ``LOSS``
    outcome: float
    rescales: int


def main() -> int:
    """Replay, run, print, judge."""
    options = _options()
    seeds = range(1, 1 + (options.traces or (2 if options.quick else 8)))
    hours = options.hours or (3.0 if options.quick else 12.0)
    rows = [row for seed in seeds for row in _replay(seed, hours, is_quick=options.quick)]
    _print_losses(rows)
    gains = _gains(rows)
    _print_gains(gains)
    fit_ms = _fit_ms()
    targets = [*_targets(rows, gains), _at_most("one fit", fit_ms, FIT_MS, "ms", "7 sizes")]
    real = None if options.no_real else _real()
    if real is not None:
        targets += _real_targets(real)
    print_targets("Targets", targets)
    if options.json:
        write_json(options.json, "profiler", _results(rows, gains, fit_ms, real), targets)
    return exit_code(targets)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 traces of 3 h instead of 8 of 12 h")
    parser.add_argument("--traces", type=int, help="number of traces")
    parser.add_argument("--hours", type=float, help="length of each")
    parser.add_argument("--no-real", action="store_true", help="simulate only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results to FILE")
    return parser.parse_args()


# ---- replays ---------------------------------------------------------------------------------


def _replay(seed: int, hours: float, *, is_quick: bool) -> list[Row]:
    trace = generate(GeneratorParameters(n_nodes=512, hours=hours, seed=seed))
    chosen = {
        "known": Arm(claim=arms.truth, is_learning=False, explore_budget=0.0),
        "nothing, learnt": Arm(claim=arms.nothing),
        "nothing, budget 0": Arm(claim=arms.nothing, explore_budget=0.0),
        "nothing, never learnt": Arm(claim=arms.nothing, is_learning=False, explore_budget=0.0),
    }
    for name, claim in list(WRONG.items())[-1 if is_quick else 0 :]:
        chosen[f"{name}, believed"] = Arm(claim=claim, is_learning=False, explore_budget=0.0)
        chosen[f"{name}, corrected"] = Arm(claim=claim)
    found = []
    for objective in OBJECTIVES:
        for name, arm in chosen.items():
            row = _row(trace, objective, seed, name, arm)
            note(f"{objective.value}, trace {seed}, {name}: later {row.loss_later:.4f}")
            found.append(row)
    return found


def _row(trace: Fragments, objective: Objective, seed: int, name: str, arm: Arm) -> Row:
    learnt = learn(trace, workload(len(NETWORKS)), arm, objective=objective, seed=seed)
    return Row(
        objective=objective.value,
        seed=seed,
        arm=name,
        loss_by_rescale=tuple(learnt.loss_between(k, k + 1) for k in range(8)),
        loss_later=learnt.loss_between(RESCALES, math.inf),
        below_after=below_after(learnt, LOSS),
        outcome=learnt.outcome,
        rescales=learnt.rescales,
    )


def below_after(learnt: Learnt, limit: float) -> float:
    """Rescales per trainer from which on the mean loss of all later time is below a limit.

    And that of the time until the next rescale, too, so that one good hour at the end does
    not excuse a bad beginning.
    """
    for k in range(100):
        near, later = learnt.loss_between(k, k + 1), learnt.loss_between(k, math.inf)
        if not (near >= limit or later >= limit or math.isnan(later)):
            return float(k)
    return math.inf


def _gains(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What correcting a wrong curve brings, trace by trace."""
    outcome = {(r.objective, r.seed, r.arm): r.outcome for r in rows}
    return [
        {
            "objective": r.objective,
            "seed": r.seed,
            "claim": claim,
            "gain": outcome[r.objective, r.seed, f"{claim}, corrected"] / r.outcome - 1.0,
            "of_possible": outcome[r.objective, r.seed, f"{claim}, corrected"]
            / outcome[r.objective, r.seed, "known"],
        }
        for claim in WRONG
        for r in rows
        if r.arm == f"{claim}, believed"
    ]


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


# ---- for real --------------------------------------------------------------------------------


def _real() -> Real:
    note("two real trainers, about a minute and a half")
    with tempfile.TemporaryDirectory(prefix="bft-profiler-") as directory:
        real = learn_here(Path(directory))
    table = Table(title="Two real trainers, nothing known", title_justify="left")
    for heading in ("trainer", "rescales", "measured / true, by size", "size", "best"):
        table.add_column(heading)
    for name, ratios in real.measured.items():
        shown = ", ".join(f"{n}: {ratio:.3f}" for n, ratio in ratios.items())
        table.add_row(
            name,
            str(real.rescales[name]),
            shown,
            str(real.sizes.get(name, 0)),
            str(real.best.get(name, 0)),
        )
    console().print(table)
    losses = ", ".join(f"{d.at_s:.0f} s: {100 * d.loss:.1f}%" for d in real.decisions)
    console().print(f"loss of each decision: {losses}")
    return real


def _real_targets(real: Real) -> list[Target]:
    last, after = real.decisions[-1], real.rescales_until(LOSS)
    return [
        _at_most("real: loss of the last decision", 100 * last.loss, 100 * LOSS, "%", "one run"),
        _at_most("real: rescales until it stays below 2%", after, RESCALES, "rescales", "one run"),
    ]


# ---- judging ---------------------------------------------------------------------------------


def _targets(rows: Sequence[Row], gains: Sequence[dict[str, Any]]) -> list[Target]:
    found = []
    for objective in OBJECTIVES:
        learnt = [r for r in rows if (r.objective, r.arm) == (objective.value, "nothing, learnt")]
        below = [r.below_after for r in learnt]
        found += [
            _at_most(
                f"{objective.value}: loss after {RESCALES:.0f} rescales per trainer",
                100 * max(r.loss_later for r in learnt),
                100 * LOSS,
                "%",
                f"worst of {len(learnt)} traces",
            ),
            _at_most(
                f"{objective.value}: rescales until it is below {100 * LOSS:.0f}%",
                median(below),
                RESCALES,
                "rescales",
                f"median of {len(learnt)}, worst {max(below):g}",
            ),
        ]
    best = max(gains, key=lambda g: float(g["gain"]))
    found.append(
        Target(
            name="gain over the worst wrong curve believed (MalleTrain: up to 22.3%)",
            measured=100 * float(best["gain"]),
            limit=100 * GAIN,
            relation=">=",
            unit="%",
            note=f"{best['claim']}, {best['objective']}",
        )
    )
    return found


def _at_most(name: str, measured: float, limit: float, unit: str, about: str) -> Target:
    return Target(name=name, measured=measured, limit=limit, relation="<=", unit=unit, note=about)


def _print_losses(rows: Sequence[Row]) -> None:
    for objective in OBJECTIVES:
        table = Table(title=f"Loss in %, objective {objective.value}", title_justify="left")
        for heading in ("what is known", *(f"{k}" for k in range(8)), "later", "worst", "outcome"):
            table.add_column(heading, justify="left" if heading == "what is known" else "right")
        mine = [r for r in rows if r.objective == objective.value]
        known = {r.seed: r.outcome for r in mine if r.arm == "known"}
        for arm in dict.fromkeys(r.arm for r in mine):
            these = [r for r in mine if r.arm == arm]
            by_rescale = [_mean([r.loss_by_rescale[k] for r in these]) for k in range(8)]
            later = [r.loss_later for r in these if not math.isnan(r.loss_later)]
            table.add_row(
                arm,
                *(f"{100 * loss:.1f}" for loss in by_rescale),
                f"{100 * _mean(later):.2f}",
                f"{100 * max(later, default=math.nan):.2f}",
                f"{mean(r.outcome / known[r.seed] for r in these):.4f}",
            )
        console().print(table)


def _print_gains(gains: Sequence[dict[str, Any]]) -> None:
    table = Table(title="Wrong curves corrected, against believed", title_justify="left")
    for heading in ("objective", "users claim", "mean gain", "most", "of what is possible"):
        table.add_column(heading)
    for objective in OBJECTIVES:
        for claim in WRONG:
            these = [g for g in gains if (g["objective"], g["claim"]) == (objective, claim)]
            if these:
                table.add_row(
                    objective.value,
                    claim,
                    f"{100 * mean(g['gain'] for g in these):+.1f}%",
                    f"{100 * max(g['gain'] for g in these):+.1f}%",
                    f"{100 * mean(g['of_possible'] for g in these):.1f}%",
                )
    console().print(table)


def _mean(values: Sequence[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return mean(known) if known else math.nan


def _results(
    rows: Sequence[Row], gains: Sequence[dict[str, Any]], fit_ms: float, real: Real | None
) -> dict[str, Any]:
    def plain(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "rows": [
            {
                "objective": r.objective,
                "seed": r.seed,
                "arm": r.arm,
                "loss_by_rescale": [plain(loss) for loss in r.loss_by_rescale],
                "loss_later": plain(r.loss_later),
                "below_after": plain(r.below_after),
                "outcome": r.outcome,
                "rescales": r.rescales,
            }
            for r in rows
        ],
        "gains": list(gains),
        "fit_ms": fit_ms,
        "real": None
        if real is None
        else {
            "decisions": [asdict(d) for d in real.decisions],
            "rescales": real.rescales,
            "measured": real.measured,
            "sizes": real.sizes,
            "best": real.best,
        },
    }


if __name__ == "__main__":
    sys.exit(main())
