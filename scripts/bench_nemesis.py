#!/usr/bin/env python3
"""What do random faults of hosts, network, Slurm, disks and processes cost three trainers?

Several hosts (tests/support/hosts), a real Slurm, the daemon of an ordinary user, and three
trainers of one or two nodes each, whose parameters are a sum over all samples in float64. Faults
are drawn from a seed: daemon, agents and workers killed or stopped for 3 to 20 s, hosts cut off in
one direction or both, power, full disks, slurmctld restarted, the daemon's wall clock set, ordinary
jobs, pilots cancelled. Then all is mended, the trainers finish, and what they, Slurm and the
daemon's journal show is judged. A stop is time without an update, without that in which fewer than
three nodes could be had. A seed that fails is shrunk to the shortest list of faults that breaks the
same rule, which is written to ``--keep`` with the command that repeats it. Prints every target with
``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' hosts

from _bench.benchmark import Benchmark, Measured, note
from _bench.nemesis.bed import N_NODES, N_TRAINERS, PLAN
from _bench.nemesis.life import Life, live
from _bench.nemesis.reduction import reduce
from _bench.nemesis.schedule import Fault, Schedule, closed_up, draw
from _bench.nemesis.verdicts import RULES, Breach, judge, longest_stop
from _bench.waiting import BenchError

from tests.support.hosts.why_not import why_not

FAULTS: Final = 60
SEEDS: Final = 20
QUICK: Final = (1, 12)  # seeds, faults of each
TRIES: Final = 20  # lives in which a failing schedule is shrunk


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """Live through every schedule, and shrink those that fail."""
    if options.join:
        _join(options.join, measured)
        return
    if why := why_not():
        raise BenchError(why)
    schedules = _schedules(options)
    lives: list[dict[str, Any]] = []
    breaches: list[Breach] = []
    try:
        for schedule in schedules:
            life, broken = _judged(schedule, options.keep / f"seed-{schedule.seed}")
            breaches += broken
            lives.append(_told(schedule, life, broken))
            if broken and options.shrink:
                lives[-1]["shrunk"] = _shrunk(schedule, broken, options)
    finally:
        measured.results["lives"] = lives
        _report(lives, breaches, measured)


def _join(paths: Sequence[Path], measured: Measured) -> None:
    """Judge together the lives of several runs, which must be of the same commit."""
    runs = [json.loads(path.read_text()) for path in paths]
    commits = {run["recorded"]["commit"] for run in runs}
    if len(commits) > 1:
        raise BenchError(f"--join: the runs are of several commits: {', '.join(sorted(commits))}")
    lives = sorted((life for run in runs for life in run["lives"]), key=itemgetter("seed"))
    command = f"scripts/bench_nemesis.py --shrink 0, {len(runs)} runs"
    recorded = {**runs[0]["recorded"], "command": command}
    measured.results.update(recorded=recorded, lives=lives)
    _report(lives, [Breach(**breach) for life in lives for breach in life["broken"]], measured)


def _schedules(options: argparse.Namespace) -> list[Schedule]:
    if options.repeat:
        return [options.repeat]
    seeds, faults = QUICK if options.quick else (SEEDS, FAULTS)
    numbers = range(options.seed, options.seed + (options.seeds or seeds))
    return [draw(seed, options.faults or faults, PLAN.nodes, N_TRAINERS) for seed in numbers]


def _judged(schedule: Schedule, kept: Path | None = None) -> tuple[Life, tuple[Breach, ...]]:
    life = live(schedule, kept)
    broken = judge(life.recorded)
    if kept is not None and not broken:
        shutil.rmtree(kept)
    for breach in broken:
        note(f"seed {schedule.seed}: {breach.rule}: {breach.why}")
    count, steps = len(schedule.faults), sum(life.steps)
    verdict = "broke a rule" if broken else "all rules held"
    note(f"seed {schedule.seed}: {count} faults, {steps} updates, {life.took_s:.0f} s: {verdict}")
    return life, broken


def _told(schedule: Schedule, life: Life, broken: Sequence[Breach]) -> dict[str, Any]:
    """Return what the JSON file has of a life."""
    stories, free = life.recorded.stories, life.recorded.free
    stops_s = {
        story.trainer_id: longest_stop(story.updates_s, story.ended_s, free, N_TRAINERS)[0]
        for story in stories
    }
    beside = ("steps", "left_out", "refusals", "n_starts", "tracebacks", "took_s")
    return {
        **schedule.document(),
        "broken": [asdict(breach) for breach in broken],
        "longest_stop_s": {name: round(stop_s, 1) for name, stop_s in stops_s.items()},
        "pilots": len(life.recorded.jobs),
        "states": {story.trainer_id: story.state for story in stories},
        **{name: getattr(life, name) for name in beside},
    }


def _shrunk(
    schedule: Schedule, broken: Sequence[Breach], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the shortest part of a schedule that breaks one of the same rules; write it down."""
    rules = {breach.rule for breach in broken}

    def part(faults: tuple[Fault, ...]) -> Schedule:
        return Schedule(seed=schedule.seed, faults=closed_up(faults))

    def fails(faults: tuple[Fault, ...]) -> bool:
        note(f"seed {schedule.seed}: with {len(faults)} faults")
        try:
            _, breaches = _judged(part(faults))
        except BenchError as problem:  # it says nothing of the product
            note(str(problem))
            return False
        return any(breach.rule in rules for breach in breaches)

    reduced = reduce(schedule.faults, fails, options.shrink)
    shortest = part(reduced.items)
    path = options.keep / f"nemesis-{schedule.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(shortest.document(), indent=1) + "\n")
    again = f"scripts/bench_nemesis.py --repeat {path}"
    note(f"seed {schedule.seed}: {len(shortest.faults)} faults suffice; again: {again}")
    for fault in shortest.faults:
        note(f"  {fault}")
    return {
        **shortest.document(),
        "tries": reduced.tries,
        "is_least": reduced.is_least,
        "command": again,
    }


def _report(
    lives: Sequence[dict[str, Any]], breaches: Sequence[Breach], measured: Measured
) -> None:
    faults = [fault for life in lives for fault in life["faults"]]
    updates = sum(sum(life["steps"]) for life in lives)
    basis = f"{len(faults)} faults in {len(lives)} lives, {updates} updates"
    for rule in RULES:
        count = sum(breach.rule == rule.name for breach in breaches)
        measured.at_most(rule.words, count, 0, "", basis)
    counts = Counter(str(fault["kind"]) for fault in faults)
    measured.table("Faults", ("kind", "how often"), [(k, str(n)) for k, n in counts.most_common()])
    measured.table(
        f"Lives of {N_TRAINERS} trainers on {N_NODES} nodes",
        ("seed", "faults", "left out", "updates", "pilots", "longest stop, s", "daemons"),
        [
            (
                *(str(life["seed"]), str(len(life["faults"])), str(len(life["left_out"]))),
                *(str(sum(life["steps"])), str(life["pilots"])),
                *(f"{max(life['longest_stop_s'].values()):.1f}", str(life["n_starts"])),
            )
            for life in lives
        ],
    )  # fmt: skip
    measured.tables += [
        f"seed {life['seed']}: {text}" for life in lives for text in life["tracebacks"]
    ]


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Read the schedule that is to be repeated."""
    if options.repeat:
        try:
            options.repeat = Schedule.of(json.loads(options.repeat.read_text()))
        except (OSError, ValueError) as problem:
            parser.error(f"--repeat: {problem}")


BENCHMARK = Benchmark(
    name="nemesis",
    title="After random faults",
    about=__doc__,
    quick=f"{QUICK[0]} seed, {QUICK[1]} faults",
    options={
        "--seed": {"type": int, "default": 1, "help": "the first (%(default)s)"},
        "--seeds": {"type": int, "default": 0, "help": f"so many ({SEEDS})"},
        "--faults": {"type": int, "default": 0, "help": f"of each seed ({FAULTS})"},
        "--repeat": {"type": Path, "metavar": "FILE", "help": "the schedule of this file, instead"},
        "--join": {"type": Path, "nargs": "+", "metavar": "FILE", "help": "judge the lives of"},
        "--shrink": {
            "type": int,
            "default": TRIES,
            "help": "lives in which a failing schedule is shrunk; 0: none (%(default)s)",
        },
        "--keep": {
            "type": Path,
            "default": Path("bench-out/nemesis"),
            "help": "journals, logs and shrunken schedules (%(default)s)",
        },
    },
    check=check,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
