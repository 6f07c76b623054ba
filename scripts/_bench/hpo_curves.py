"""The assumed learning curves of bench_hpo.py held against LCDB's.

Computes their numbers again, and what asha finds on both with a constant number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Final

import numpy as np
from numpy.typing import NDArray

from _bench.benchmark import Measured
from _bench.lcdb import archive, errors_of
from _bench.rule_replay import Curve, play
from _bench.studies.curves import HUNDREDTHS, LIKENESS, QUANTILES, drawn, medians
from bftrainer.study.rungs import rule_of
from bftrainer.study.trials import StudyRule

UNIT: Final = 16  # samples: a hundredth of the full budget
REACH: Final = 2048  # samples that a curve has to reach
ENOUGH: Final = 300  # such curves in a set
SPREAD: Final = 0.01  # of error between the best and the median: less is no choice
MOST: Final = 100
EVERY: Final = 5  # sets: on so many is played
WORKERS: Final = 10
REAL: Final = "LCDB"
Table = NDArray[np.float64]


def compare(measured: Measured, path: Path | None) -> None:
    """Compute the numbers of the assumed curves again, and play ASHA on both kinds."""
    tables = _tables(archive(path))
    quantiles, likeness = medians(tables)
    off = max(np.abs(quantiles - QUANTILES).max(), np.abs(likeness - LIKENESS).max())
    measured.at_most("assumed curves: deviation from LCDB's medians", float(off), 0.01, "")
    some = tables[::EVERY]
    assumed = [drawn(len(table), most=MOST, seed=k).errors for k, table in enumerate(some)]
    rows = []
    for kind, of in ((REAL, some), ("assumed", assumed)):
        found = [_played(table) for table in of]
        regret, units, median = (mean(column) for column in zip(*found, strict=True))
        if kind == REAL:
            measured.at_most("regret with asha on LCDB's own curves", regret, 0.01, "")
        rows.append((kind, f"{regret:.4f}", f"{units:.3f}", f"{median:.3f}"))
    measured.results["curves"] = rows
    measured.table(
        f"asha on curves of LCDB ({len(some)} of {len(tables)} data sets) and assumed ones",
        ("", "regret", "of all units", "regret of the median configuration"),
        rows,
    )


def _tables(path: Path) -> list[Table]:
    """Return the errors of each data set by configuration and HUNDREDTHS."""
    tables = []
    for curves in errors_of(path).values():
        whole = [np.array(sorted(c.items())) for c in curves.values() if {UNIT, REACH} <= c.keys()]
        if len(whole) < ENOUGH:
            continue
        at = np.log(HUNDREDTHS)
        table = np.array([np.interp(at, np.log(c[:, 0] / UNIT), c[:, 1]) for c in whole])
        if np.median(table[:, -1]) - table[:, -1].min() >= SPREAD:
            tables.append(table)
    return tables


def _played(table: Table) -> tuple[float, float, float]:
    """Return the regret, the units of all units in full, and the regret of the median."""
    rule: StudyRule = rule_of({"name": "asha", "trials": len(table), "most": MOST})
    order = np.random.default_rng(1).permutation(len(table))
    played = play(rule, lambda number, _: _curve(table[order[number]]), workers=WORKERS)
    least, units = float(table[:, -1].min()), played.units / (len(table) * MOST)
    best = min([trial.values[-1].value for trial in played.complete])
    return best - least, units, float(np.median(table[:, -1])) - least


def _curve(errors: Sequence[float]) -> Curve:
    points = [(round(at), float(error)) for at, error in zip(HUNDREDTHS, errors, strict=True)]
    return Curve(points=tuple(points))
