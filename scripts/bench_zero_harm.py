"""Do ordinary jobs notice bftrainer? The proof, on real nodes.

Runs one mix of ordinary jobs on fresh Slurm clusters: without bftrainer (A), again
without (A', the control) and with it (B), for several settings of Slurm. Prints what B
added to each job's start beside what A' did, who was overtaken, and how much of the idle
time was used, beside an oracle under the same rules. Runs are kept: a later call with the
same arguments goes on where this one stopped. docs/design/give-back.md
has the method.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

from _bench.targets import Target, console, exit_code, print_targets, write_json
from _bench.zero_harm import arm, idle, program, report, verdict
from _bench.zero_harm.arm import Stage
from _bench.zero_harm.cells import CELLS, Cell
from _bench.zero_harm.compare import Draw
from _bench.zero_harm.runs import Run, Shelf
from _bench.zero_harm.workload import Demand, PlannedJob, fingerprint, generate, load_of, read

from slurm_plugins.testcluster import FAST_CYCLE

QUICK_CELLS = "tier-bf5"  # a cycle of 30 s would take minutes to lock to
RULES = idle.Rules(
    reserve=arm.RESERVE, shortest_gap_s=arm.MIN_GAP_S + arm.GAP_MARGIN_S, start_s=0.0
)


def main() -> int:
    """Run what is missing, then report; return 0 when every target is met."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, _leave)
    demand = Demand(
        n_jobs=arguments.jobs or (40 if arguments.quick else 320),
        n_nodes=arguments.nodes or (8 if arguments.quick else 16),
        minutes=arguments.minutes or (0.8 if arguments.quick else 20.0),
        load=arguments.load,
        seed=arguments.seed,
    )
    cells = _cells(arguments.cells or (QUICK_CELLS if arguments.quick else "all"))
    try:
        drawn = _drawn(arguments, demand)
    except (OSError, ValueError) as problem:
        console().print(f"[bold red]{problem}[/]")
        return 2
    jitters = (0 if arguments.quick else 2) if arguments.jitters is None else arguments.jitters
    planned = program.all_runs(cells, jitters)
    shelves: list[Shelf] = []
    failed: dict[str, str] = {}
    for jobs in drawn:
        stage = _stage(arguments, demand, jobs)
        shelves.append(Shelf(stage.keep))
        failed |= program.make(stage, planned, shelves[-1], arguments.at_once)
    results = _judge(cells, shelves, jitters)
    targets = [target for result in results for target in verdict.targets(result)]
    report.print_results(results)
    print_targets("Zero harm", targets)
    for name, why in failed.items():
        console().print(f"[bold red]run {name} failed:[/] {why}")
    _write(arguments, demand, drawn, results, targets, failed)
    return 1 if failed else exit_code(targets)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tier-bf5 on 8 nodes, 40 jobs, 3 min")
    parser.add_argument("--cells", help=f"of {', '.join(c.name for c in CELLS)}; default all")
    parser.add_argument("--minutes", type=float, help="of one run (default 20)")
    parser.add_argument("--jobs", type=int, help="default 320, quick 40")
    parser.add_argument("--nodes", type=int, help="default 16, quick 8")
    parser.add_argument("--load", type=float, default=0.68, help="share of node-seconds asked for")
    parser.add_argument(
        "--default-ticks",
        action="store_true",
        help="leave Slurm's main scheduler its passes of up to 3 s (not compressed)",
    )
    parser.add_argument(
        "--jitters",
        type=int,
        help="more runs of each kind, jobs up to 0.5 s sooner or later (default 2, quick 0)",
    )
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side (default 1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--draws", type=int, default=1, help="of jobs, judged together: this seed and the next ones"
    )
    parser.add_argument("--workload", type=Path, help="jobs from a JSON list or an SWF log")
    parser.add_argument("--keep", type=Path, default=Path("bench-out/zero-harm"))
    parser.add_argument("--json", type=Path, help="write results and verdicts here")
    return parser.parse_args()


def _cells(names: str) -> tuple[Cell, ...]:
    if names == "all":
        return CELLS
    wanted = names.split(",")
    if unknown := set(wanted) - {cell.name for cell in CELLS}:
        raise SystemExit(f"no such cells: {', '.join(sorted(unknown))}")
    return tuple(cell for cell in CELLS if cell.name in wanted)


def _drawn(arguments: argparse.Namespace, demand: Demand) -> list[tuple[PlannedJob, ...]]:
    if arguments.workload:
        return [tuple(read(arguments.workload, demand))]
    seeds = range(demand.seed, demand.seed + arguments.draws)
    return [tuple(generate(replace(demand, seed=seed))) for seed in seeds]


def _stage(arguments: argparse.Namespace, demand: Demand, jobs: tuple[PlannedJob, ...]) -> Stage:
    ticks = "" if arguments.default_ticks else FAST_CYCLE
    keep = arguments.keep / fingerprint(jobs, [demand.n_nodes, arm.POLICY, ticks])
    _say(f"{len(jobs)} jobs on {demand.n_nodes} nodes, load {load_of(jobs, demand.n_nodes):.2f}; "
         f"runs are kept in {keep}")  # fmt: skip
    return Stage(
        jobs=jobs,
        n_nodes=demand.n_nodes,
        deadline_s=90.0 * demand.minutes + 120.0,
        ticks=ticks,
        keep=keep,
        say=_say,
    )


def _judge(cells: Sequence[Cell], shelves: Sequence[Shelf], jitters: int) -> list[verdict.Result]:
    """Judge the cells all of whose runs are there."""
    results = []
    for cell in cells:
        draws = [
            Draw(
                controls=_kept(shelf, program.controls(cell, jitters)),
                runs=_kept(shelf, program.runs(cell, jitters)),
            )
            for shelf in shelves
        ]
        if all(draw.controls and draw.runs for draw in draws):
            results.append(verdict.judge(cell, draws, RULES))
    return results


def _kept(shelf: Shelf, planned: Sequence[program.Planned]) -> list[Run]:
    """Return the runs, or none where one is missing."""
    runs = [run for one in planned if (run := shelf.get(one.name)) is not None]
    return runs if len(runs) == len(planned) else []


def _write(
    arguments: argparse.Namespace,
    demand: Demand,
    drawn: Sequence[Sequence[PlannedJob]],
    results: Sequence[verdict.Result],
    targets: list[Target],
    failed: dict[str, str],
) -> None:
    if arguments.json:
        body = {
            "demand": asdict(demand),
            "jobs": [[job.model_dump() for job in jobs] for jobs in drawn],
            "cells": report.as_values(results),
            "failed": failed,
        }
        write_json(arguments.json, "zero_harm", body, targets)


def _leave(_signum: int, _frame: object) -> NoReturn:
    """End like a failure, so that the cluster of the run in progress is taken down."""
    raise SystemExit(128 + signal.SIGTERM)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
