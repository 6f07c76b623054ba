#!/usr/bin/env python3
"""A whole Slurm machine, event by event, with bftrainer's own decision in the loop.

The same jobs on the same machine without bftrainer, with it, and with ordinary preemptable jobs in
place of its pilots, seed by seed: which jobs lose a backfill cycle, what all jobs wait longer, how
much of what an oracle would hold is held, how often a pilot is asked for. ``--only`` takes
scenario names, parts of them, or ``grid``, ``large``, ``scenarios``, ``validation``.
``--validate`` holds the simulated Slurm against a real one, with jobs of whole nodes and with jobs
that share nodes, also where these preempt; ``--keep`` stores the real runs, and ``--replay``
compares stored ones and does no more. Exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

from _bench.benchmark import Benchmark, Measured, note
from _bench.choosing import names_in, refuse_unmatched
from _bench.site import measures, real, real_runs, report, scenarios, validate, workers
from _bench.site.measures import Judged, Runs
from _bench.site.real import RealRun
from _bench.site.workers import Task

from bftrainer.lab.site import workload
from bftrainer.lab.site.arms import Arm, ArmOutcome
from bftrainer.lab.site.workload import Cell

ARMS: tuple[Arm, ...] = ("without", "bftrainer", "preemptable")
LARGE_SEEDS = 2
QUICK_SEEDS = 2
QUICK_SCENARIOS = ("phantom of 20, limit, lively", "blocked head, 30/30 s", "churn, 30/0.5 s")
BENCHMARK = Benchmark(
    name="site",
    title="A whole machine",
    about=__doc__,
    quick="64 nodes, 2 h, 3 scenarios",
    options={
        "--only": {"default": "", "help": "names or parts of names, comma-separated"},
        "--seeds": {"type": int, "default": workload.SEEDS, "help": "of each cell of the grid"},
        "--hours": {"type": float, "help": "counted, of each cell (default 3, of the large 24)"},
        "--start-time": {
            "type": float,
            "default": 0.0,
            "help": "of a worker, from its agent's hello to its first step, s, in the grid",
        },
        "--poll-interval": {"type": float, "help": "between two polls, s, in the grid"},
        "--swf": {"type": Path, "help": "a cell more, of the jobs of this log"},
        "--cpu-minutes": {
            "type": float,
            "default": 90.0,
            "help": "of the grid: no more seeds beyond, if the added wait asks for them",
        },
        "--processes": {"type": int, "default": os.cpu_count() or 1, "help": "side by side"},
        "--validate": {
            "type": int,
            "default": 0,
            "metavar": "RUNS",
            "help": "so many real runs of each kind: whole nodes, shared nodes, preempting there",
        },
        "--validate-minutes": {"type": float, "default": 4.0, "help": "of each (default 4)"},
        "--keep": {"type": Path, "metavar": "DIR", "help": "store the real runs here"},
        "--replay": {"type": Path, "metavar": "DIR", "help": "compare the runs stored here"},
    },
)


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Play the scenarios, the grid and the validation, or compare stored runs."""
    if arguments.replay:
        _compare(real.kept(arguments.replay), measured)
        return
    refuse_unmatched(names_in(arguments.only), _names(arguments))
    outcomes = _scenarios(arguments)
    if outcomes:
        measured.targets += [scenarios.target(scenario, outcome) for scenario, outcome in outcomes]
        measured.results["scenarios"] = {
            scenario.name: asdict(outcome) for scenario, outcome in outcomes
        }
    judged = _grid(arguments)
    if judged:
        report.print_cells("bftrainer", judged)
        measured.targets += measures.targets(judged)
        measured.results["grid"] = [report.as_values(cell) for cell in judged]
    if arguments.validate:
        _compare(_real_runs(arguments), measured)
    measured.results["cpu_s"] = sum(os.times()[:4])


def _names(arguments: argparse.Namespace) -> list[str]:
    """Return all that ``--only`` can choose."""
    kinds = ["grid", "large", "scenarios", "validation"]
    cells = workload.quick() if arguments.quick else (*workload.grid(), workload.large())
    logs = [replace(cells[0], log="; a log").name] if arguments.swf else []
    scenario_names = [scenario.name for scenario in scenarios.all_scenarios()]
    return [*kinds, *logs, *(cell.name for cell in cells), *scenario_names]


def _wants(arguments: argparse.Namespace, kind: str, name: str) -> bool:
    parts = names_in(arguments.only)
    return not parts or any(part == kind or part in name for part in parts)


# ---- scenarios -----------------------------------------------------------------------------


def _scenarios(arguments: argparse.Namespace) -> list[tuple[scenarios.Scenario, ArmOutcome]]:
    scenarios_to_play = [
        scenario
        for scenario in scenarios.all_scenarios()
        if _wants(arguments, "scenarios", scenario.name)
        and (arguments.only or not arguments.quick or scenario.name in QUICK_SCENARIOS)
    ]
    tasks = [
        Task(name=scenario.name, stage=scenario.stage(), arm="bftrainer")
        for scenario in scenarios_to_play
    ]
    outcome_of = {task.name: outcome for task, outcome in _run(tasks, arguments)}
    return [(scenario, outcome_of[scenario.name]) for scenario in scenarios_to_play]


# ---- the grid ------------------------------------------------------------------------------


def _grid(arguments: argparse.Namespace) -> list[Judged]:
    seeds_of = {cell: seeds for cell, seeds in _cells(arguments) if seeds}
    runs_of: dict[Cell, list[Runs]] = {cell: [] for cell in seeds_of}
    seeds_to_play = {cell: range(1, seeds + 1) for cell, seeds in seeds_of.items()}
    while any(seeds_to_play.values()):
        for cell, runs in _play(seeds_to_play, arguments).items():
            runs_of[cell] += runs
        judged = [measures.judge(cell, runs) for cell, runs in runs_of.items()]
        seeds_to_play = _more(arguments, judged)
    return [measures.judge(cell, runs) for cell, runs in runs_of.items()]


def _cells(arguments: argparse.Namespace) -> list[tuple[Cell, int]]:
    starts = {"start_s": arguments.start_time, "poll_s": arguments.poll_interval}
    if arguments.quick:
        quick = [replace(cell, **starts) for cell in workload.quick()]
        return [(c, QUICK_SEEDS) for c in quick if _wants(arguments, "grid", c.name)]
    grid = [replace(cell, **starts) for cell in workload.grid()]
    if arguments.swf:
        grid.append(replace(grid[0], log=arguments.swf.read_text(encoding="utf-8")))
    if arguments.hours:
        grid = [replace(cell, hours=arguments.hours) for cell in grid]
    cells = [(c, arguments.seeds) for c in grid if _wants(arguments, "grid", c.name)]
    if _wants(arguments, "large", workload.large().name):
        large = replace(workload.large(), hours=arguments.hours or workload.large().hours, **starts)
        cells.append((large, min(arguments.seeds, LARGE_SEEDS)))
    return cells


def _play(wanted: dict[Cell, range], arguments: argparse.Namespace) -> dict[Cell, list[Runs]]:
    """Make the runs of all arms; those beyond the first seeds only with bftrainer and without."""
    tasks, places = [], {}
    for cell, seeds in wanted.items():
        for seed in seeds:
            stage = cell.stage(seed)
            for arm in ARMS if seed <= workload.SEEDS else ARMS[:2]:
                name = f"{cell.name}, seed {seed}, {arm}"
                cost = cell.n_nodes * cell.hours * (2.0 if arm == "bftrainer" else 1.0)
                tasks.append(Task(name=name, stage=stage, arm=arm, cost=cost))
                places[name] = (cell, seed, arm)
    outcomes: dict[Cell, dict[int, dict[Arm, ArmOutcome]]] = {}
    for task, outcome in _run(tasks, arguments):
        cell, seed, arm = places[task.name]
        outcomes.setdefault(cell, {}).setdefault(seed, {})[arm] = outcome
    return {cell: [runs[s] for s in sorted(runs)] for cell, runs in outcomes.items()}


def _more(arguments: argparse.Namespace, judged: Sequence[Judged]) -> dict[Cell, range]:
    """Ask for one more seed of each cell while the added wait cannot be told from the limit."""
    added_wait = measures.added_wait(list(chain.from_iterable(cell.blocks for cell in judged)))
    if arguments.quick or not added_wait.low <= measures.MOST_ADDED < added_wait.high:
        return {}
    small_cells = [cell for cell in judged if cell.cell.n_nodes < workload.large().n_nodes]
    used_s = sum(map(_cpu_s, judged))
    round_s = sum(_cpu_s(cell) / cell.seeds for cell in small_cells)
    if used_s + round_s > 60.0 * arguments.cpu_minutes:
        return {}
    return {
        cell.cell: range(cell.seeds + 1, cell.seeds + 2)
        for cell in small_cells
        if not cell.cell.log
    }


def _cpu_s(judged: Judged) -> float:
    return sum(judged.cpu_s.values())


def _run(tasks: Sequence[Task], arguments: argparse.Namespace) -> list[tuple[Task, ArmOutcome]]:
    outcomes = []
    for task, outcome in workers.run(tasks, arguments.processes) if tasks else ():
        note(f"{task.name}: {outcome.cpu_s:.1f} s of processor time")
        outcomes.append((task, outcome))
    return outcomes


# ---- validation ----------------------------------------------------------------------------


def _real_runs(arguments: argparse.Namespace) -> Iterator[RealRun]:
    """Play the runs of each kind on a real Slurm, and store them where that is asked for."""
    plays = (real_runs.play_whole, real_runs.play_shared, real_runs.play_preempting)
    for seed in range(1, arguments.validate + 1):
        for play in plays:
            run = play(seed, arguments.validate_minutes)
            if arguments.keep:
                note(f"stored: {real.keep(run, arguments.keep)}")
            yield run


def _compare(runs: Iterable[RealRun], measured: Measured) -> None:
    """Hold the simulation against real runs."""
    comparisons = []
    for run in runs:
        comparisons.append(validate.compare(run))
        note(f"{run.name}: {comparisons[-1].n_same} of {comparisons[-1].n_jobs} jobs start alike")
    measured.targets += validate.targets(comparisons)
    measured.results["validation"] = [asdict(comparison) for comparison in comparisons]


if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
