#!/usr/bin/env python3
"""What fair share costs and gives: U and the users' node-hours, first come against fair share.

Replays a trace with trials of four users, one of whom submits ten times as many as each of the
others. Orders of submission: his first, and mixed. Without ``--trace`` the generated sample is
replayed. Prints targets with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from _bench.benchmark import Benchmark, Measured, note

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.generator import generate
from bftrainer.batch.traces.read import read_trace
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.lab.workloads import NETWORKS, Submission, hpo
from milp.problem import Objective

USERS: Final = ("ann", "bob", "cat", "dan")
TIMES: Final = 10  # as many trials of the first
OTHERS: Final = 30  # trials of each other user
HOUR_S: Final = 3600.0
ORDERS: Final = ("mixed", "his first")
HALF_LIVES_S: Final = (None, 6 * HOUR_S, 24 * HOUR_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One replay."""

    order: str
    half_life_s: float | None
    utilization: float
    node_h: dict[str, float]
    jain: float
    rescales: int


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Replay with each order and half-life."""
    trace = _trace(arguments)
    rows: list[Row] = []
    for order in ORDERS:
        for half_life_s in HALF_LIVES_S:
            rows.append(_replayed(trace, order, half_life_s))
            note(f"{order}, {_hours(half_life_s)}: U {rows[-1].utilization:.3f}")
    measured.results["rows"] = [asdict(row) for row in rows]
    measured.table(
        f"Four users on {trace.equivalent_nodes():.0f} nodes on average",
        ("submitted", "half-life", "U", *(f"{user}, node-h" for user in USERS), "Jain", "rescales"),
        [
            (
                row.order,
                _hours(row.half_life_s),
                f"{row.utilization:.3f}",
                *(f"{row.node_h[user]:.0f}" for user in USERS),
                f"{row.jain:.2f}",
                f"{row.rescales}",
            )
            for row in rows
        ],
        left=2,
    )
    fair = [row for row in rows if row.half_life_s == 6 * HOUR_S]
    first = {row.order: row for row in rows if row.half_life_s is None}
    measured.at_least("Jain index of the users' node-hours", min(r.jain for r in fair), 0.9, "")
    lost = max(first[row.order].utilization - row.utilization for row in fair)
    measured.at_most("U lost", lost, 0.02, "")


def _trace(arguments: argparse.Namespace) -> Fragments:
    trace = read_trace(arguments.trace) if arguments.trace else generate()
    hours = 6.0 if arguments.quick else arguments.hours
    return trace.restrict(slice(0, arguments.nodes), start_s=arguments.start, hours=hours)


def _replayed(trace: Fragments, order: str, half_life_s: float | None) -> Row:
    choices = Choices(objective=Objective.SCALING_EFFICIENCY, half_life_s=half_life_s)
    outcome, metrics = play(trace, _submissions(order), choices)
    node_h = dict.fromkeys(USERS, 0.0)
    for trainer in outcome.trainers:
        node_h[trainer.submission.user] += trainer.node_s / HOUR_S
    used = list(node_h.values())
    return Row(
        order=order,
        half_life_s=half_life_s,
        utilization=metrics.utilization,
        node_h=node_h,
        jain=sum(used) ** 2 / (len(used) * sum(one**2 for one in used)),
        rescales=metrics.rescales,
    )


def _submissions(order: str) -> list[Submission]:
    """Return trials of ShuffleNet, as in the paper, all there at the start."""
    users = [*USERS[:1] * (TIMES * OTHERS), *USERS[1:] * OTHERS]
    if order == "mixed":
        random.Random(1).shuffle(users)  # noqa: S311 - no secret
    work = hpo(NETWORKS["shufflenet"], n_trainers=len(users))
    return [replace(one, user=user) for one, user in zip(work, users, strict=True)]


def _hours(half_life_s: float | None) -> str:
    return "first come" if half_life_s is None else f"{half_life_s / HOUR_S:.0f} h"


BENCHMARK = Benchmark(
    name="fairness",
    title="Fair share",
    about=__doc__,
    quick="six hours",
    measure=measure,
    options={
        "--trace": {"type": Path, "metavar": "FILE", "help": "idle fragments (bftrainer trace)"},
        "--start": {"type": float, "metavar": "S", "help": "from this second on"},
        "--hours": {"type": float, "default": 24.0, "help": "how long (default: 24)"},
        "--nodes": {"type": int, "default": 1024, "help": "the first ones (default: 1024)"},
    },
)


if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
