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
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from _bench.benchmark import Benchmark, Measured, note
from _bench.waiting import BenchError
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


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Make the runs that are missing, then judge."""
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
        raise BenchError(str(problem)) from problem
    jitters = (0 if arguments.quick else 2) if arguments.jitters is None else arguments.jitters
    planned = program.all_runs(cells, jitters)
    shelves: list[Shelf] = []
    failed: dict[str, str] = {}
    for jobs in drawn:
        stage = _stage(arguments, demand, jobs)
        shelves.append(Shelf(stage.keep))
        failed |= program.make(stage, planned, shelves[-1], arguments.at_once)
    results = _judge(cells, shelves, jitters)
    measured.targets += [target for result in results for target in verdict.targets(result)]
    report.print_results(results)
    measured.results |= {
        "demand": asdict(demand),
        "jobs": [[job.model_dump() for job in jobs] for jobs in drawn],
        "cells": report.as_values(results),
        "failed": failed,
    }
    if failed:
        raise BenchError("; ".join(f"run {name} failed: {why}" for name, why in failed.items()))


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
    note(f"{len(jobs)} jobs on {demand.n_nodes} nodes, load {load_of(jobs, demand.n_nodes):.2f}; "
         f"runs are kept in {keep}")  # fmt: skip
    return Stage(
        jobs=jobs,
        n_nodes=demand.n_nodes,
        deadline_s=90.0 * demand.minutes + 120.0,
        ticks=ticks,
        keep=keep,
        say=note,
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


BENCHMARK = Benchmark(
    name="zero_harm",
    title="Zero harm",
    about=__doc__,
    quick="tier-bf5 on 8 nodes, 40 jobs, 3 min",
    options={
        "--cells": {"help": f"of {', '.join(c.name for c in CELLS)}; default all"},
        "--minutes": {"type": float, "help": "of one run (default 20)"},
        "--jobs": {"type": int, "help": "default 320, quick 40"},
        "--nodes": {"type": int, "help": "default 16, quick 8"},
        "--load": {"type": float, "default": 0.68, "help": "share of node-seconds asked for"},
        "--default-ticks": {
            "action": "store_true",
            "help": "leave Slurm's main scheduler its passes of up to 3 s (not compressed)",
        },
        "--jitters": {
            "type": int,
            "help": "more runs of each kind, jobs up to 0.5 s sooner or later (2, quick 0)",
        },
        "--at-once": {"type": int, "default": 1, "help": "runs side by side (default 1)"},
        "--seed": {"type": int, "default": 1, "help": "of the jobs"},
        "--draws": {
            "type": int,
            "default": 1,
            "help": "of jobs, judged together: this seed and the next ones",
        },
        "--workload": {"type": Path, "help": "jobs from a JSON list or an SWF log"},
        "--keep": {"type": Path, "default": Path("bench-out/zero-harm"), "help": "runs here"},
    },
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
