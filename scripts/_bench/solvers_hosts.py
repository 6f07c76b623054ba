"""Times where GPUs are lent one by one: problem to sizes to nodes to check, per family.

Each host has 8 GPUs; some are lent to trainers, some are other jobs', the others free. *GPUs*: all
trainers ask for single GPUs; *mixed widths*: for 1, 2, 4 or 8 of one host, or for whole hosts;
*odd widths*: for 1, 2, 3 or 5, which do not divide each other. Called by ``bench_solvers.py``.
"""

from __future__ import annotations

import random
from dataclasses import replace

from _bench.benchmark import note
from _bench.problems import RESCALE_DOWN_S, RESCALE_UP_S, T_FWD_S
from _bench.solvers_parts import gap_text
from _bench.targets import Target
from _bench.timing import Part, Row, best_of, summary
from bftrainer.lab.workloads import NETWORKS
from milp.check import check
from milp.problem import Allocation, Problem, ProblemNode, ProblemTrainer
from milp.solve import solve

HOST_GPUS = 8
SIZES = ((40, 200), (200, 2000))  # trainers, hosts
WIDTHS = {"GPUs": (1,), "mixed widths": (1, 2, 4, 8, 0), "odd widths": (1, 2, 3, 5)}
TARGET_S = 0.100
HELD_SHARE = 0.5  # of the GPUs that are not other jobs'


def measure_hosts(runs: int) -> Part:
    """Time whole decisions."""
    rows: list[Row] = []
    targets: list[Target] = []
    for family in WIDTHS:
        for n_trainers, n_hosts in SIZES:
            note(f"GPUs lent one by one: {family}, {n_hosts} hosts")
            times_s: list[float] = []
            gaps: list[float] = []
            for seed in range(runs):
                problem = draw_hosts(n_trainers, n_hosts, family, seed)
                took_s, allocation = best_of(_decide, problem)
                times_s.append(took_s)
                gaps.append(allocation.gap / max(abs(allocation.objective), 1e-300))
            size = n_trainers, n_hosts * HOST_GPUS
            rows.append(summary("sizes, nodes and check", family, size, times_s, gap_text(gaps)))
        if family != "odd widths":  # told, without a limit
            targets.append(
                Target(
                    name=f"{family}, {rows[-1].trainers} x {rows[-1].nodes} GPUs",
                    measured=rows[-1].median_s,
                    limit=TARGET_S,
                    relation="<=",
                    note=f"median of {runs}",
                )
            )
    return Part(title="GPUs lent one by one", rows=tuple(rows), targets=tuple(targets))


def _decide(problem: Problem) -> Allocation:
    allocation = solve(problem)
    check(problem, allocation)
    return allocation


def draw_hosts(n_trainers: int, n_hosts: int, family: str, seed: int) -> Problem:
    """Draw a problem of one of ``WIDTHS``."""
    chance = random.Random(f"{family} {n_trainers} {n_hosts} {seed}")  # noqa: S311 - a benchmark
    widths = WIDTHS[family]
    trainers = [_trainer(f"t{j}", chance.choice(widths), chance) for j in range(n_trainers)]
    current: list[list[str]] = [[] for _ in trainers]
    nodes: list[ProblemNode] = []
    for h in range(n_hosts):
        host, left = f"h{h:05}", HOST_GPUS - chance.choice([0, 0, 0, 1, 2, 4, 8])
        node = ProblemNode(
            name=host,
            switch=f"s{h // 18}",
            expected_remaining_s=chance.choice([None, None, 300.0, 900.0]),
            host=host,
            host_width=HOST_GPUS,
        )
        while left:
            j = chance.randrange(n_trainers)
            width = trainers[j].width or HOST_GPUS
            is_part = width <= left and chance.random() < HELD_SHARE
            is_part &= len(current[j]) < trainers[j].n_max
            name = f"{host}/{HOST_GPUS - left}"
            if is_part:
                current[j].append(name)
            width = width if is_part else 1
            nodes.append(replace(node, name=name, width=width, has_pilot=is_part))
            left -= width
    return Problem(
        nodes=tuple(nodes),
        trainers=tuple(
            [
                replace(trainer, current=tuple(own), settled=tuple(own))
                for trainer, own in zip(trainers, current, strict=True)
            ]
        ),
        t_fwd_s=T_FWD_S,
        p_jmax=n_trainers,
    )


def _trainer(name: str, width: int, chance: random.Random) -> ProblemTrainer:
    return ProblemTrainer(
        trainer_id=name,
        n_min=chance.choice([1, 1, 2, 4]),
        n_max=max(4, 64 // (width or HOST_GPUS)) * chance.choice([1, 2]),
        curve=chance.choice(list(NETWORKS.values())).curve,
        rescale_up_s=RESCALE_UP_S,
        rescale_down_s=RESCALE_DOWN_S,
        width=width,
    )
