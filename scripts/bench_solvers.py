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

from _bench import solvers_equality, solvers_exact, solvers_parts, solvers_plot, solvers_reference
from _bench.machine import machine, versions
from _bench.targets import exit_code, print_targets, write_json
from _bench.timing import Part, print_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much is measured."""

    sizes: int  # problems per family and size
    around: int  # problems per line of what surrounds the sizes
    equality: int  # problems compared with the node-level model
    reference: dict[tuple[int, int], int]  # problems per solver
    placed: int  # problems per size that nodes are chosen for
    placements: int  # compared with the MILP of their rule
    limit_s: float  # of one reference solve


FULL: Final = Amount(
    sizes=50,
    around=40,
    equality=2000,
    reference={(5, 20): 10, (10, 100): 5, (30, 800): 3, (100, 4000): 1, (1000, 10000): 1},
    placed=20,
    placements=200,
    limit_s=60.0,
)
QUICK: Final = Amount(
    sizes=10,
    around=4,
    equality=60,
    reference={(5, 20): 2, (10, 100): 1, (30, 800): 1},
    placed=2,
    placements=5,
    limit_s=5.0,
)
PARTS: Final = ("sizes", "decision", "around", "equality", "reference")


def main() -> int:
    """Measure, print, judge."""
    options = _options()
    amount = QUICK if options.quick else FULL
    found = list(_measure(amount, options.parts, options.limit or amount.limit_s))
    for part in found:
        if part.rows:
            print_rows(part.title, part.rows)
    targets = [target for part in found for target in part.targets]
    print_targets("Targets", targets)
    measured_on = ", ".join([machine(), *(f"{name} {is_}" for name, is_ in versions().items())])
    print(measured_on)
    if options.json:
        rows = [{"part": part.title, **asdict(row)} for part in found for row in part.rows]
        write_json(options.json, "solvers", {"versions": versions(), "rows": rows}, targets)
    if options.plot:
        solvers_plot.plot(options.plot, [row for part in found for row in part.rows])
    return exit_code(targets)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer problems (about a minute)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw time over size into FILE")
    parser.add_argument("--limit", type=float, metavar="S", help="seconds per reference solve")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="measure these")
    return parser.parse_args()


def _measure(amount: Amount, parts: Sequence[str], limit_s: float) -> Iterator[Part]:
    if "sizes" in parts:
        yield solvers_exact.measure_sizes(amount.sizes, is_quick=amount is QUICK)
        yield solvers_exact.measure_memory()
    if "decision" in parts:
        yield solvers_exact.measure_decisions(amount.sizes, is_quick=amount is QUICK)
        yield solvers_exact.measure_first_call()
    if "around" in parts:
        yield solvers_parts.measure_classes(amount.around)
        yield solvers_parts.measure_placement(amount.placed, amount.placements)
        yield solvers_parts.measure_victims(amount.around)
        yield solvers_parts.measure_checker(amount.around)
    if "equality" in parts:
        yield solvers_equality.measure_equality(amount.equality)
    if "reference" in parts:
        yield solvers_reference.measure(amount.reference, limit_s)


if __name__ == "__main__":
    sys.exit(main())
