#!/usr/bin/env python3
"""How long a give-back takes to decide: 30 trainers on 800 nodes, queues of several kinds.

Processor time of the stage that gives back, on one made-up look.
See ``docs/design/give-back.md``. Exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from _bench.benchmark import Benchmark, Measured

from bftrainer.decide import giveback
from bftrainer.decide.draft import Draft
from bftrainer.decide.queue.models import PrintedQueue
from bftrainer.decide.victims import CheapestForTrainers
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Job, JobState, Node, NodeState, Snapshot
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Settings
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from slurm_plugins.fields import ways_of

NOW_S = 1_700_000_000.0
NAMES = tuple(f"n{k:04d}" for k in range(800))
N_FREE, N_UNWANTED, N_TRAINERS = 20, 5, 30
CONSTRAINTS = ("", "a100", "v100", "a100|v100")
TYPICAL_MS = 5.0
BENCHMARK = Benchmark(
    name="giveback",
    title="Give-back, 30 trainers on 800 nodes, processor time",
    about=__doc__,
    quick="10 instead of 100 decisions each",
)


def job(job_id: str, n_nodes: int, *, features: str = "", limit_s: float = 600.0) -> Job:
    """Make a pending job."""
    return Job(
        job_id=job_id,
        user="alice",
        partitions=("batch",),
        state=JobState.PENDING,
        n_nodes=n_nodes,
        time_limit_s=limit_s,
        reason="Resources",
        wants=ways_of(features),
    )


def mixed(count: int) -> list[Job]:
    """Make jobs of many sizes, limits and constraints."""
    return [
        job(str(k), 1 + k % 17, features=CONSTRAINTS[k % 4], limit_s=600.0 * (1 + k % 9))
        for k in range(count)
    ]


def blocked(count: int) -> list[Job]:
    """Make jobs that cannot start and are planned on nearly all nodes."""
    plans = [NAMES[k : k + 790] for k in range(count)]
    return [
        replace(job(f"head-{k}", 801), priority=9.0, start_s=NOW_S + 5000.0 + k, planned_nodes=plan)
        for k, plan in enumerate(plans)
    ]


def running(count: int) -> list[Job]:
    """Make running jobs of four nodes each, which end one after the other."""
    return [
        replace(
            job(f"r{k}", 4, limit_s=600.0 + 60.0 * k),
            state=JobState.RUNNING,
            start_s=NOW_S - 300.0,
            nodes=NAMES[-4 * k - 4 : -4 * k or None],
        )
        for k in range(count)
    ]


def queues() -> dict[str, Sequence[Job]]:
    """Name what is measured."""
    return {
        "one job, free nodes suffice": [job("7", 1)],
        "one job of 100 nodes": [job("7", 100)],
        "one job of 600 nodes": [job("7", 600)],
        "50 jobs of many kinds": mixed(50),
        "500 jobs behind 8 blocked ones": [*blocked(8), *mixed(500)],
        "200 jobs beside 150 that run": [*running(150), job("head", 700), *mixed(200)],
        "an array of 1000 tasks": [job(f"4_{k}", 1) for k in range(1000)],
        "500 jobs that exclude nodes": [
            replace(job(str(k), 1), excluded_nodes=NAMES[k : k + 10]) for k in range(500)
        ],
    }


def situation(jobs: Sequence[Job]) -> DecisionInput:
    """Make a look: a few nodes free, all others held, most of them by trainers."""
    nodes = [
        Node(
            name=name,
            state=NodeState.IDLE if k < N_FREE else NodeState.ALLOCATED,
            gpus=4,
            cpus=64,
            memory_mb=256_000,
            features=("a100", "ib") if k % 5 == 0 else ("v100", f"r{k % 5}"),
            partitions=("batch", "bf"),
        )
        for k, name in enumerate(NAMES)
    ]
    in_use = {name for job in jobs for name in job.nodes}
    held_nodes = [name for name in NAMES[N_FREE:] if name not in in_use]
    pilots = [
        PilotView(
            pilot_id=f"p-{name}",
            node=name,
            requested_s=NOW_S,
            is_held=True,
            end_s=NOW_S + 3600.0 + k,
        )
        for k, name in enumerate(held_nodes)
    ]
    assignment = {name: f"t{k % N_TRAINERS}" for k, name in enumerate(held_nodes[N_UNWANTED:])}
    trainers = [
        TrainerRecord(
            trainer_id=f"t{k}",
            spec=TrainerSpec(name=f"t{k}", user="bob", script="/s.py", n_min=1 + k % 4, n_max=64),
            state=TrainerState.RUNNING,
            submitted_s=NOW_S,
        )
        for k in range(N_TRAINERS)
    ]
    return DecisionInput(
        now_s=NOW_S,
        snapshot=Snapshot(
            taken_at_s=NOW_S, nodes=tuple(nodes), jobs=tuple(jobs), plan_resolution_s=60.0
        ),
        is_new_snapshot=True,
        pilots=tuple(pilots),
        trainers=tuple(trainers),
        settings=Settings(),
        memory=Memory(assignment=assignment),
        training=assignment,
    )


def times_ms(jobs: Sequence[Job], repeats: int) -> tuple[list[float], int]:
    """Decide again and again; returns the times and how many nodes go."""
    decision_input = situation(jobs)
    times, n_released = [], 0
    for _ in range(repeats):
        began = time.process_time()
        pick = CheapestForTrainers(decision_input, decision_input.memory)
        census = census_of(decision_input.snapshot, decision_input.pilots)
        queue = PrintedQueue(census, NOW_S, decision_input.settings.cycle_s)
        draft = Draft(
            given=decision_input,
            census=census,
            hosts=census,
            queue=queue,
            memory=decision_input.memory,
            pick=pick,
            policy=None,
        )
        releases = giveback.stage(draft)
        times.append((time.process_time() - began) * 1000.0)
        n_released = len(releases.releases)
    return times, n_released


def measure(asked: argparse.Namespace, measured: Measured) -> None:
    """Measure every queue."""
    repeats = 10 if asked.quick else 100
    rows = measured.results["queues"] = []
    for name, jobs in queues().items():
        times, n_released = times_ms(jobs, repeats)
        median = statistics.median(times)
        rows.append({"queue": name, "released": n_released, "median_ms": median, "ms": times})
        if name.startswith("one job"):
            measured.at_most(name, median, TYPICAL_MS, "ms", f"median of {repeats}")
    measured.table(
        "Give-back, ms",
        ("queue", "nodes", "median", "max"),
        [
            (r["queue"], str(r["released"]), f"{r['median_ms']:.2f}", f"{max(r['ms']):.2f}")
            for r in rows
        ],
    )


if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
