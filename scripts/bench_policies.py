#!/usr/bin/env python3
"""How long a policy takes to decide: CPU time of one call of ``allocate``.

Random problems from Table 2's curves on 400 nodes; *spikes* are neither concave nor rising. In
half of the problems nobody has nodes yet, in the other half everybody has those of the answer
before. dl2 decides about 40 trainers on 30 and on 500 nodes, n_max 64. The time of a problem is the
best of 5 calls; median, 95th percentile and maximum are over problems. Prints targets with ``met``
or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Final

from _bench.benchmark import Benchmark, Measured
from _bench.problems import draw_problem, without_current
from _bench.timing import CALLS, Row, median_target, summary, table_of

from bftrainer.decide.policies.base import (
    AllocationPolicy,
    Context,
    Standing,
    load_policy,
    options_of,
)
from milp.problem import Problem

NODES: Final = 400
TRAINERS: Final = (50, 130, 240, 400)
LARGEST: Final = (10, NODES)  # n_max: as in the paper, and without a limit
FAMILIES: Final = ("mixed", "spikes")
LIMIT_S: Final = {"ibm-dp": 0.025}  # median of every line
BY_NETWORK_S: Final = {30: 0.006, 500: 0.150}  # of dl2, by nodes


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Measure each policy."""
    rows: list[Row] = []
    for name, limit_s in LIMIT_S.items():
        own = list(_rows(load_policy(name), 4 if arguments.quick else 20))
        slowest = max(own, key=lambda row: row.median_s)
        measured.targets.append(median_target(f"{name}, slowest line", slowest, limit_s))
        rows += own
    for n_nodes, limit_s in BY_NETWORK_S.items():
        row = _by_network(n_nodes, 4 if arguments.quick else 20)
        measured.targets.append(median_target(f"dl2, {n_nodes} nodes", row, limit_s))
        rows.append(row)
    measured.results["rows"] = [asdict(row) for row in rows]
    measured.tables.append(table_of("CPU time of a decision", rows))


def _rows(policy: AllocationPolicy, runs: int) -> Iterator[Row]:
    for family in FAMILIES:
        for largest in LARGEST:
            for n_trainers in TRAINERS:
                times_s: list[float] = []
                for seed in range(runs):
                    problem = _problem(n_trainers, family, largest, seed)
                    if seed % 2:
                        problem = _held(policy, problem)
                    times_s.append(_best_s(policy, problem))
                what = f"{policy.name}, n_max {largest}"
                yield summary(what, family, (n_trainers, NODES), times_s)


def _by_network(n_nodes: int, runs: int) -> Row:
    policy, times_s = load_policy("dl2"), list[float]()
    for seed in range(runs):
        problem = _problem(40, "mixed", 64, seed, n_nodes)
        times_s.append(_best_s(policy, _held(policy, problem) if seed % 2 else problem))
    return summary("dl2, n_max 64", "mixed", (40, n_nodes), times_s)


def _problem(
    n_trainers: int, family: str, largest: int, seed: int, n_nodes: int = NODES
) -> Problem:
    drawn = without_current(draw_problem(n_trainers, n_nodes, family, seed))
    return replace(
        drawn, trainers=tuple(replace(t, n_min=1, n_max=largest) for t in drawn.trainers)
    )


def _held(policy: AllocationPolicy, problem: Problem) -> Problem:
    """Return the problem after a decision."""
    nodes: dict[str, list[str]] = {}
    for node, trainer_id in policy.allocate(
        problem, _context(policy, problem)
    ).allocation.assignment.items():
        nodes.setdefault(trainer_id, []).append(node)
    return replace(
        problem,
        trainers=tuple(
            replace(t, current=tuple(nodes.get(t.trainer_id, ()))) for t in problem.trainers
        ),
    )


def _context(policy: AllocationPolicy, problem: Problem) -> Context:
    new = Standing(submitted_s=0.0, attained_node_s=0.0, done_samples=0.0, left_samples=1e6)
    return Context(
        now_s=1.0,
        options=options_of(policy, {}),
        trainers={trainer.trainer_id: new for trainer in problem.trainers},
    )


def _best_s(policy: AllocationPolicy, problem: Problem) -> float:
    context, times_s = _context(policy, problem), []
    for _ in range(CALLS):
        before = time.process_time()
        policy.allocate(problem, context)
        times_s.append(time.process_time() - before)
    return min(times_s)


BENCHMARK = Benchmark(
    name="policies",
    title="Targets",
    about=__doc__,
    quick="fewer problems (about 20 s)",
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
