#!/usr/bin/env python3
"""The BFTrainer paper's search for hyper-parameters, a study of 1,000 trials, with each rule.

ShuffleNet trials of 100 epochs on 1,024 Summit nodes, as in sections 5.1 of the paper; P_jmax 10.
The learning curves are assumed: drawn like LCDB's (_bench.studies.curves). Without
BFTRAINER_DATA or --trace the generated sample trace is replayed, repeated as often as needed.

Prints what rules are worth, what it is worth that trials grow as others wait or stop, how many to
train at once, and what decisions cost; targets with ``met`` or ``missed``. Exits 1 when one is
missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from _bench import hpo, hpo_curves
from _bench.benchmark import Benchmark, Measured, note
from _bench.studies.longer import repeated
from _bench.studies.session import NEAR, Figures

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.lab.papers.bftrainer.paper import FULL
from bftrainer.lab.papers.bftrainer.scenario import choose_scenario

HEADINGS = (
    *("best, h", f"{NEAR:g} off, h", "regret", "over, h", "node-h", "of all", "full", "waiting"),
    *("U", "rescales"),
)


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Play all cases."""
    trace = _trace(arguments)
    trials, seeds = (200, (1,)) if arguments.quick else (1000, tuple(range(1, 1 + arguments.seeds)))
    note(f"{trials} trials on {trace.equivalent_nodes():.1f} nodes on average; seeds {seeds}")
    began_s = time.monotonic()
    rules = _table(measured, "Rules", hpo.RULES, trace, trials, seeds)
    took_s = time.monotonic() - began_s
    _targets(measured, rules, took_s)
    _growth(measured, trace, trials, is_quick=arguments.quick)
    parallel = hpo.PARALLEL[1:3] if arguments.quick else hpo.PARALLEL
    _table(measured, "Trials at once", parallel, trace, trials, seeds[:3])
    _table(measured, "Lowest rung", hpo.LEAST, trace, trials, seeds[:3])
    _table(measured, "Costs of our daemon, 20 at once", hpo.COSTS, trace, trials, seeds[:1])
    _decisions(measured, trace)
    if arguments.lcdb is not None or not arguments.quick:
        hpo_curves.compare(measured, arguments.lcdb)


def _growth(measured: Measured, trace: Fragments, trials: int, *, is_quick: bool) -> None:
    """Play studies whose trials may have few nodes or many, a tenth of the trials at once."""
    sizes = (hpo.N_MAX[0], hpo.N_MAX[-1]) if is_quick else hpo.N_MAX
    cases = [hpo.growth(rule, n, trials // 10) for rule in ("sha", "asha") for n in sizes]
    found = _table(measured, "Growth of the survivors", cases, trace, trials, (1,))
    for rule in ("sha", "asha"):
        first, last = (found[f"{rule}, n_max {n}"][0].hours for n in (sizes[0], sizes[-1]))
        name = f"{rule}: time with at most {sizes[0]} node a trial over that with {sizes[-1]}"
        measured.at_least(name, first / last, 1.5, "")


def _targets(measured: Measured, rules: dict[str, list[Figures]], took_s: float) -> None:
    everything, asha = rules["none"], rules["asha"]
    measured.at_most("regret with asha", hpo.averaged(asha, "regret"), NEAR, "")
    share = hpo.averaged(asha, "node_h") / hpo.averaged(everything, "node_h")
    measured.at_most("node-hours with asha, of those of all trials in full", share, 0.15, "")
    faster = hpo.averaged(everything, "hours") / hpo.averaged(asha, "hours")
    measured.at_least("all trials in full / asha, time until the study is over", faster, 5.0, "")
    lost = hpo.averaged(everything, "utilization") - hpo.averaged(asha, "utilization")
    measured.at_most("U of all trials in full, less that with asha", lost, 0.05, "")
    plays = sum([len(found) for found in rules.values()])
    measured.at_most("playing one study, mean", took_s / plays, 120.0)


def _table(
    measured: Measured,
    title: str,
    cases: Sequence[hpo.Case],
    trace: Fragments,
    trials: int,
    seeds: Sequence[int],
) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {}
    for case in cases:
        found[case.name] = hpo.played(case, trace, trials, seeds)
        note(f"{case.name}: over after {hpo.averaged(found[case.name], 'hours'):.1f} h")
    key = title.lower().replace(" ", "_")
    measured.results[key] = {name: [asdict(one) for one in of] for name, of in found.items()}
    rows = [(name, *_row(figures)) for name, figures in found.items()]
    measured.table(f"{title}: {trials} trials, mean of {len(seeds)}", ("", *HEADINGS), rows)
    return found


def _row(figures: Sequence[Figures]) -> tuple[str, ...]:
    def value(name: str, form: str) -> str:
        found = hpo.averaged(figures, name)
        known = sum([getattr(one, name) is not None for one in figures])
        text = "never" if not known else form.format(found)
        return text if known in (0, len(figures)) else f"{text} ({known}/{len(figures)})"

    return (
        value("best_h", "{:.1f}"),
        value("near_h", "{:.1f}"),
        value("regret", "{:.4f}"),
        value("hours", "{:.1f}"),
        value("node_h", "{:.0f}"),
        value("units", "{:.1%}"),
        value("complete", "{:.0f}"),
        value("waiting_most", "{:.0f}"),
        value("utilization", "{:.3f}"),
        value("rescales", "{:.0f}"),
    )


def _decisions(measured: Measured, trace: Fragments) -> None:
    """Decide with few and with many active trials; waiting ones are not part of a decision."""
    rows = []
    for active in (10, 100, 1000):
        taken = np.array(hpo.decision_ms(trace, active, hours=2.0))
        rows.append((active, float(np.median(taken)), float(np.quantile(taken, 0.99))))
        note(f"{active} active: {rows[-1][1]:.1f} ms")
    measured.results["decision_ms"] = rows
    measured.table(
        "CPU time of a decision, P_jmax 10",
        ("active trials", "median, ms", "p99, ms"),
        [(f"{active}", f"{median:.1f}", f"{p99:.1f}") for active, median, p99 in rows],
    )
    measured.at_most(
        "CPU time of a decision with 1,000 active trials, p99", rows[-1][2], 50.0, "ms"
    )


def _trace(arguments: argparse.Namespace) -> Fragments:
    data = os.environ.get("BFTRAINER_DATA")
    scenario = choose_scenario(arguments.trace, Path(data) if data else None, FULL)
    for remark in scenario.remarks[:1]:
        note(remark)
    return repeated(scenario.content.trace, 3)


BENCHMARK = Benchmark(
    name="hpo",
    title="A study of 1,000 trials on idle nodes",
    about=__doc__,
    quick="200 trials, one set of curves, fewer cases: about a minute",
    measure=measure,
    options={
        "--trace": {"type": Path, "metavar": "FILE", "help": "replay this trace"},
        "--seeds": {"type": int, "default": 5, "help": "sets of learning curves [5]"},
        "--lcdb": {"type": Path, "metavar": "FILE", "help": "lcdb-0.1.0.tar.gz of PyPI"},
    },
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
