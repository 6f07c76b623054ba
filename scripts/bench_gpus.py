#!/usr/bin/env python3
"""GPU by GPU: what do idle GPUs of a shared cluster give, and what do ordinary jobs notice?

An hour in ten minutes: 6 real Slurm nodes of 4 GPUs (files), jobs of 1 to 4 GPUs or two whole
nodes, arrays, jobs that wait for others, limits 2 to 5 times too long. The same jobs run at the
same instants on several clusters at once: without bftrainer, without it again (what chance does),
with GPUs lent one by one (parts), and with whole nodes. What is counted comes from the jobs
and from slurmctld's log, not from bftrainer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pydantic
from _bench.benchmark import Benchmark, Measured, note
from _bench.choosing import names_in, refuse_unknown
from _bench.gpus import arms, measures, reach
from _bench.gpus.measures import ArmRun
from _bench.stats import share_interval
from _bench.waiting import BenchError

Predictions = list[tuple[ArmRun, ArmRun]]  # of a seed: without bftrainer, with whole nodes
MINUTE_S = 60.0
HOUR_S = 3600.0
SPAN_S = 600.0
QUICK_SPAN_S = 60.0
SEEDS = 3
MOST_APART_PERCENT = 10.0  # of the idle GPU time: lent as simulated, and as measured
LEAST_LENT_PERCENT = 85.0
LEAST_GIVEN_BACK_PERCENT = 90.0
MOST_IN_VAIN_PERCENT = 10.0
POLL_S = 1.0  # until a lender sees that a GPU is free; then its pilot waits for batch_sched_delay
MOST_BY_CHANCE_S = 1.0  # of the mean wait: between the two runs without bftrainer
BENCHMARK = Benchmark(
    name="gpus",
    title="GPU by GPU",
    about=__doc__,
    quick="one minute, one seed",
    options={
        "--arms": {
            "default": ",".join(arms.USUAL),
            "help": "(default %(default)s; also: pairs, fours); the runs without bftrainer are "
            "always made",
        },
        "--seeds": {"type": int, "help": f"(default {SEEDS}, quick 1)"},
        "--seed": {"type": int, "default": 1, "help": "the first"},
        "--span": {"type": float, "help": "of submissions, s (default 600, quick 60)"},
        "--judge": {"type": Path, "help": "judge the runs that --json wrote to this file again"},
        "--batch-delay": {
            "type": int,
            "default": arms.BATCH_DELAY_S,
            "help": "Slurm's batch_sched_delay: the longest that its main scheduler lets jobs wait "
            "after their submission, s (default %(default)s, as Slurm's; 0 as nowhere)",
        },
        "--typical-run": {
            "type": float,
            "default": arms.TYPICAL_RUN_S,
            "help": "of the jobs, the median, s (default %(default)s)",
        },
        "--load": {"type": float, "default": 0.7, "help": "GPU-seconds asked for, of all"},
    },
)


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Play all seeds, or take kept ones; then judge each arm beside the run without bftrainer."""
    settings = _settings(arguments)
    by_seed = _kept(arguments.judge) if arguments.judge else _played(arguments, settings)
    measured.results["runs"] = [asdict(run) for runs in by_seed for run in runs.values()]
    predictions = []
    for runs in by_seed:
        without = runs["without"]
        predictions.append(arms.predict(replace(settings, span_s=without.span_s), without.seed))
        first, *_ = predictions[-1]
        _tabulate_lent(without.seed, [*runs.values(), *first], measured)
        _tabulate_noticed(without.seed, runs, measured)
    _tabulate_reach(by_seed, arguments.batch_delay, measured)
    _tabulate_harm(by_seed, predictions, measured)
    if all("parts" in runs for runs in by_seed):
        _judge_parts(by_seed, measured)
    if all("whole" in runs for runs in by_seed):
        _compare(by_seed, predictions, measured)


def _settings(arguments: argparse.Namespace) -> arms.Settings:
    return arms.Settings(
        span_s=arguments.span or (QUICK_SPAN_S if arguments.quick else SPAN_S),
        load=arguments.load,
        batch_delay_s=arguments.batch_delay,
        typical_run_s=arguments.typical_run,
        say=note,
    )


def _played(arguments: argparse.Namespace, settings: arms.Settings) -> list[dict[str, ArmRun]]:
    arms_to_play = _chosen(arguments.arms)
    n_seeds = arguments.seeds or (1 if arguments.quick else SEEDS)
    return [
        {run.arm: run for run in arms.play(settings, arms_to_play, seed)}
        for seed in range(arguments.seed, arguments.seed + n_seeds)
    ]


def _kept(path: Path) -> list[dict[str, ArmRun]]:
    """Read the runs that ``--json`` wrote."""
    try:
        document = json.loads(path.read_bytes())
        runs = pydantic.TypeAdapter(list[ArmRun]).validate_python(document["runs"])
    except (OSError, ValueError, KeyError) as problem:
        raise BenchError(f"{path} has no runs of this benchmark: {problem!r}") from problem
    by_seed: dict[int, dict[str, ArmRun]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, {})[run.arm] = run
    return list(by_seed.values())


def _chosen(names: str) -> tuple[arms.Arm, ...]:
    words = names_in(names)
    refuse_unknown(words, [arm.name for arm in arms.ARMS])
    return tuple(arm for arm in arms.ARMS if arm.name in {*words, "without", "again"})


def _tabulate_lent(seed: int, runs: Sequence[ArmRun], measured: Measured) -> None:
    """Show what was lent, and how it was given back."""
    rows = []
    for run in runs:
        idle, hand_overs = measures.idle_of(run), measures.hand_overs_of(run)
        of_kinds = (idle.whole_gpu_s, idle.leftover_gpu_s)
        lent = (idle.lent_whole_gpu_s, idle.lent_leftover_gpu_s)
        pilots_left = (hand_overs.given_back, hand_overs.preempted, hand_overs.in_vain)
        per_gpu_hour = "-"
        if idle.lent_gpu_s:
            per_gpu_hour = f"{run.n_submitted * HOUR_S / idle.lent_gpu_s:.0f}"
        rows.append(
            (
                run.arm,
                *(f"{gpu_s:,.0f}" for gpu_s in (*of_kinds, *lent)),
                f"{100.0 * idle.lent_share:.1f}%",
                *(str(count) for count in pilots_left),
                str(hand_overs.gpus),
                per_gpu_hour,
            )
        )
    headings = (
        *("arm", "idle on free nodes", "on used ones", "lent on free", "on used", "of idle"),
        *("given back", "preempted", "in vain", "GPUs left", "pilots per GPU-h"),
    )
    title = f"Seed {seed}: GPU-seconds, and pilots that left"
    measured.table(title, headings, rows, left=1)


def _tabulate_reach(
    by_seed: Sequence[dict[str, ArmRun]], batch_delay_s: float, measured: Measured
) -> None:
    """Show how much of the idle GPU time anybody could have lent, beside what was lent."""
    rows = []
    for runs in by_seed:
        for run in runs.values():
            reachable = reach.reach_of(run)
            if reachable is None or not reachable.idle_gpu_s:
                continue
            lent_gpu_s = measures.idle_of(run).lent_gpu_s
            within = [
                100.0 * reachable.reachable_gpu_s(start_s) / reachable.idle_gpu_s
                for start_s in (0.0, batch_delay_s + POLL_S)
            ]
            rows.append(
                (
                    f"{run.seed}, {run.arm}",
                    f"{reachable.idle_gpu_s:,.0f}",
                    f"{reachable.stranded_gpu_s:,.0f}",
                    str(len(reachable.spells_s)),
                    *(f"{share:.1f}%" for share in within),
                    f"{100.0 * lent_gpu_s / reachable.idle_gpu_s:.1f}%",
                )
            )
    headings = (
        *("seed, arm", "idle", "no core or memory left", "spells"),
        *("of idle: all the rest", f"less {batch_delay_s + POLL_S:g} s of each", "lent"),
    )
    measured.table("GPU-seconds that anybody could have lent", headings, rows, left=1)


def _tabulate_noticed(seed: int, runs: dict[str, ArmRun], measured: Measured) -> None:
    """Show what ordinary jobs notice."""
    without = runs["without"]
    usual_requests = fmean((without.n_requests, runs["again"].n_requests))
    rows = []
    for run in runs.values():
        lost_cycles = reordered = "-"
        if run is not without:  # all are held against this one, the null pair too
            lost_cycles = str(measures.lost_cycles(run, without))
            reordered = f"{100.0 * measures.reordered_share(run, without):.1f}%"
        more_requests = (run.n_requests - usual_requests) / (run.span_s / MINUTE_S)
        wait_s = fmean(measures.waits_of(run).values())
        rows.append((run.arm, f"{wait_s:.1f}", lost_cycles, reordered, f"{more_requests:+.0f}"))
    headings = ("arm", "mean wait, s", "lost cycles", "other order", "requests a minute")
    title = f"Seed {seed}: what {len(without.jobs)} ordinary jobs notice"
    measured.table(title, headings, rows, left=1)


def _tabulate_harm(
    by_seed: Sequence[dict[str, ArmRun]],
    predictions: Sequence[Predictions],
    measured: Measured,
) -> None:
    pairs = {
        arm: [(runs["without"], runs[arm]) for runs in by_seed]
        for arm in by_seed[0]
        if arm != "without"
    }
    pairs["again, predicted"] = [
        (before, after) for of_seed in predictions for (before, _), (after, _) in pairwise(of_seed)
    ]
    pairs["whole, predicted"] = _all_of(predictions)
    rows = []
    for arm, of_arm in pairs.items():
        added_s = measures.added_wait(of_arm)
        rows.append((arm, f"{added_s.mean:+.2f}", f"{added_s.low:+.2f} to {added_s.high:+.2f}"))
        measured.results.setdefault("added_wait_s", {})[arm] = asdict(added_s)
        if arm == "again":
            measured.at_most(
                "two runs without bftrainer, mean wait apart",
                abs(added_s.mean),
                MOST_BY_CHANCE_S,
                note=f"95% {added_s.low:+.2f} to {added_s.high:+.2f}",
            )
    title = f"Added to the mean wait, s, {len(by_seed)} seeds (again: by chance alone)"
    measured.table(title, ("arm", "mean", "95% interval"), rows, left=1)


def _judge_parts(by_seed: Sequence[dict[str, ArmRun]], measured: Measured) -> None:
    """Hold the GPUs that were lent one by one against what was promised."""
    idle = [measures.idle_of(runs["parts"]) for runs in by_seed]
    hand_overs = [measures.hand_overs_of(runs["parts"]) for runs in by_seed]
    lent = sum(of_seed.lent_gpu_s for of_seed in idle) / sum(of_seed.gpu_s for of_seed in idle)
    given_back = sum(of_seed.given_back for of_seed in hand_overs)
    preempted = sum(of_seed.preempted for of_seed in hand_overs)
    in_vain = sum(of_seed.in_vain for of_seed in hand_overs)
    measured.at_least("parts: idle GPU time lent", 100.0 * lent, LEAST_LENT_PERCENT, "%")
    measured.at_least(
        "parts: hand-overs given back before Slurm preempted",
        100.0 * given_back / max(1, given_back + preempted),
        LEAST_GIVEN_BACK_PERCENT,
        "%",
        note=f"{given_back} of {given_back + preempted}",
        interval=share_interval(given_back, given_back + preempted),
    )
    measured.at_most(
        "parts: given back in vain",
        100.0 * in_vain / max(1, given_back + in_vain),
        MOST_IN_VAIN_PERCENT,
        "%",
        note=f"{in_vain} of {given_back + in_vain}",
    )
    added_s = measures.added_wait([(runs["without"], runs["parts"]) for runs in by_seed])
    by_chance = measures.added_wait([(runs["without"], runs["again"]) for runs in by_seed])
    measured.at_most(
        "parts: added to the mean wait",
        added_s.mean,
        by_chance.high,
        "s",
        note=f"95% {added_s.low:+.2f} to {added_s.high:+.2f}; the limit is the null pair's",
        interval=(added_s.low, added_s.high),
    )


def _all_of(predictions: Sequence[Predictions]) -> Predictions:
    return [pair for of_seed in predictions for pair in of_seed]


def _compare(
    by_seed: Sequence[dict[str, ArmRun]],
    predictions: Sequence[Predictions],
    measured: Measured,
) -> None:
    """Hold the simulated site's predictions for whole nodes against the real clusters."""
    real = measures.added_wait([(runs["without"], runs["whole"]) for runs in by_seed])
    simulated = measures.added_wait(_all_of(predictions))
    beyond_s = max(real.low - simulated.mean, simulated.mean - real.high, 0.0)
    measured.at_most(
        "added wait with whole nodes, predicted, outside of the measured interval",
        beyond_s,
        0.0,
        note=f"{simulated.mean:+.2f} s, measured {real.low:+.2f} to {real.high:+.2f}",
    )
    lent = fmean(measures.idle_of(runs["whole"]).lent_share for runs in by_seed)
    predicted_lent = fmean(measures.idle_of(run).lent_share for _, run in _all_of(predictions))
    measured.at_most(
        "lent with whole nodes, of the idle GPU time, predicted and measured apart",
        100.0 * abs(lent - predicted_lent),
        MOST_APART_PERCENT,
        "%",
        note=f"{100.0 * predicted_lent:.1f}% predicted, {100.0 * lent:.1f}% measured",
    )


if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
