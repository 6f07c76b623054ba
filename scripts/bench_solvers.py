#!/usr/bin/env python3
"""How long the optimum takes: exact solution, dense program, and the paper's MILP on three solvers.

Random problems from Table 2's curves, t_fwd 120 s; what is solved is in
``docs/design/solver.md``. The time of a problem is the best of 5 calls; median, 95th percentile
and maximum are over problems. Families: *mixed* (nothing hard), *equal* (all trainers the same),
*gaps* (n_min near n_max), *spikes* (a size good, the next one bad), *parity* (n_min = n_max, an
odd pool), *wide* (n_max = N). Reference solvers have ``--limit`` seconds, less their start.
Prints targets with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).resolve().parents[1]))  # reference models of the tests

from _bench import solvers_exact, solvers_reference
from _bench.benchmark import Benchmark, Measured
from _bench.machine import versions
from _bench.timing import Part, table_of

PARTS: Final = ("sizes", "decision", "reference")
BENCHMARK = Benchmark(
    name="solvers",
    title="Targets",
    about=__doc__,
    quick="fewer problems (about a minute)",
    options={
        "--limit": {"type": float, "metavar": "S", "help": "seconds per reference solve"},
        "--parts": {"nargs": "+", "choices": PARTS, "default": PARTS, "help": "measure these"},
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much is measured."""

    sizes: int  # problems per family and size
    reference: dict[tuple[int, int], int]  # problems per solver
    limit_s: float  # of one reference solve


FULL: Final = Amount(
    sizes=50,
    reference={(5, 20): 10, (10, 100): 5, (30, 800): 3, (100, 4000): 1, (1000, 10000): 1},
    limit_s=60.0,
)
QUICK: Final = Amount(
    sizes=10,
    reference={(5, 20): 2, (10, 100): 1, (30, 800): 1},
    limit_s=5.0,
)


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Measure the parts asked for."""
    amount = QUICK if arguments.quick else FULL
    measured.results |= {"versions": versions(), "rows": []}
    for part in _parts(amount, arguments.parts, arguments.limit or amount.limit_s):
        measured.results["rows"] += [{"part": part.title, **asdict(row)} for row in part.rows]
        measured.targets += part.targets
        if part.rows:
            measured.tables.append(table_of(part.title, part.rows))


def _parts(amount: Amount, parts: Sequence[str], limit_s: float) -> Iterator[Part]:
    if "sizes" in parts:
        yield solvers_exact.measure_sizes(amount.sizes, is_quick=amount is QUICK)
    if "decision" in parts:
        yield solvers_exact.measure_decisions(amount.sizes, is_quick=amount is QUICK)
    if "reference" in parts:
        yield solvers_reference.measure(amount.reference, limit_s)


if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
