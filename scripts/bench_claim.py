"""How soon does a node go to an ordinary job, and how soon does it train again?

On a real Slurm with Slurm's default delays and the hook: an ordinary job takes every
node from a real torch trainer and leaves them; again and again. Seconds from its
submission to the pilots being gone, and from its end, and from the pilot's first line,
to the first training step. One node, then several at once.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from _bench.claims import Claimed, GaveBack, Site
from _bench.machine import machine
from _bench.stats import tail
from _bench.targets import Target, console, exit_code, print_targets, write_json
from _bench.waiting import BenchError
from rich.table import Table

from bftrainer.errors import BftError

GONE_S, COLD_S, IDLE_S = 0.3, 3.0, 4.5
SEVERAL = 4  # nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All rounds on a cluster of so many nodes."""

    n_nodes: int
    given_back: list[GaveBack]
    claimed: list[Claimed]
    requests: dict[str, int]


def main() -> int:
    """Run everything; return 0 when every target is met."""
    arguments = _arguments()
    rounds = arguments.rounds or (5 if arguments.quick else 20)
    try:
        one = _measure(1, rounds)
        several = _measure(SEVERAL, max(2, rounds // 4))
    except (BenchError, BftError) as problem:
        console().print(f"[bold red]{problem}[/]")
        return 1
    targets = _targets(one, several)
    for measured in (one, several):
        _print(measured)
    print_targets("Nodes given back and claimed", targets)
    if arguments.json:
        results = {"processor": machine(), "measured": [asdict(m) for m in (one, several)]}
        write_json(arguments.json, "claim", results, targets)
    return exit_code(targets)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five rounds instead of twenty")
    parser.add_argument("--rounds", type=int, help="with one node; a quarter with several")
    parser.add_argument("--json", type=Path, help="write samples and verdicts here")
    return parser.parse_args()


def _measure(n_nodes: int, rounds: int) -> Measured:
    given_back: list[GaveBack] = []
    claimed: list[Claimed] = []
    with Site(n_nodes=n_nodes) as site:
        for number in range(1, rounds + 1):
            given, taken = site.cycle()
            given_back += given
            claimed += taken
            print(f"{n_nodes} nodes: {number} of {rounds} rounds", file=sys.stderr)
        return Measured(
            n_nodes=n_nodes, given_back=given_back, claimed=claimed, requests=site.requests()
        )


def _targets(one: Measured, several: Measured) -> list[Target]:
    targets = []
    for measured in (one, several):
        # Slurm notes no orderly end of a pilot that it ended itself: then its process counts.
        gone = [g.left_s if math.isnan(g.freed_s) else g.freed_s for g in measured.given_back]
        name, value = tail(gone)
        of = f"{measured.n_nodes} node{'s' if measured.n_nodes > 1 else ''}"
        targets.append(
            Target(
                name=f"job submitted to its {of} free: {name}",
                measured=value,
                limit=GONE_S,
                relation="<=",
                note=f"{len(gone)} pilots",
            )
        )
    note = f"median of {len(one.claimed)}"
    return [
        *targets,
        Target(
            name="pilot's first line to first training step",
            measured=median(c.to_step_s for c in one.claimed),
            limit=COLD_S,
            relation="<=",
            note=note,
        ),
        Target(
            name="node idle to first training step",
            measured=median(c.step_s for c in one.claimed),
            limit=IDLE_S,
            relation="<=",
            note=note,
        ),
    ]


def _print(measured: Measured) -> None:
    table = Table(title=f"{measured.n_nodes} node(s), s", title_justify="left")
    for heading in ("", "n", "min", "median", "max"):
        table.add_column(heading, justify="left" if not heading else "right")
    given, taken = measured.given_back, measured.claimed
    rows = {
        "submitted to decided": [g.decided_s for g in given],
        "submitted to agent gone": [g.left_s for g in given],
        "submitted to noted by Slurm": [g.freed_s for g in given if not math.isnan(g.freed_s)],
        "idle to pilot requested": [c.requested_s for c in taken],
        "idle to pilot's first line": [c.pilot_s for c in taken],
        "first line to agent connecting": [c.agent_s - c.pilot_s for c in taken],
        "first line to torch imported": [
            c.warm_s - c.pilot_s for c in taken if not math.isnan(c.warm_s)
        ],
        "first line to the script's": [c.script_s - c.pilot_s for c in taken],
        "first line to first step": [c.to_step_s for c in taken],
        "idle to first step": [c.step_s for c in taken],
    }
    for name, values in rows.items():
        if not values:
            continue
        figures = (min(values), median(values), max(values))
        table.add_row(name, str(len(values)), *(f"{value:.2f}" for value in figures))
    console().print(table)
    asked = ", ".join(f"{kind} {n}" for kind, n in sorted(measured.requests.items()))
    console().print(f"asked of the controller: {asked}\n")


if __name__ == "__main__":
    sys.exit(main())
