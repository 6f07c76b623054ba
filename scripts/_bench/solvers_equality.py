"""Whether two ways to the optimum agree: exact against node-level models, many problems.

Small random problems with every feature but warm-ups, which the node-level model does not
know. Any disagreement would be a bug.
"""

from __future__ import annotations

import itertools
from collections import Counter

from _bench.benchmark import note
from _bench.problems import draw_small
from _bench.targets import Target
from _bench.timing import Part
from milp.check import check
from milp.problem import Allocation, Curve, Objective, Problem
from milp.reference.solve import solve_reference
from milp.solve import solve

TOLERANCE = 1e-6  # relative
CLASSES = ("a", "ab", "abc")
FEATURES = (
    *map(str, Objective),
    "pool used up",
    "grows",
    "starts",
    "shrinks",
    "parks",
    "stays",
    "at n_min",
    "at n_max",
    "below n_min",
    "above n_max",
    "departed nodes",
    "stopped by p_jmax",
    "refuses a class",
    "mixes",
    "curve that falls",
)


def measure_equality(count: int) -> Part:
    """Compare the exact answer with the paper's node-level MILP on HiGHS."""
    note(f"equality on {count} problems, node-level model on HiGHS")
    worst = 0.0
    seen: Counter[str] = Counter()
    for seed in range(count):
        problem = draw_small(seed, classes=CLASSES[seed % len(CLASSES)])
        allocation = solve(problem)
        check(problem, allocation)
        worst = max(worst, _difference(allocation.objective, solve_reference(problem).objective))
        seen.update(_features(problem, allocation))
    equal = Target(
        name="exact against the node-level MILP: largest difference",
        measured=worst,
        limit=TOLERANCE,
        relation="<=",
        unit="relative",
        note=f"{count} problems",
    )
    rarest, often = min(((name, seen[name]) for name in FEATURES), key=lambda pair: pair[1])
    covered = Target(
        name="problems that have the rarest feature",
        measured=often,
        limit=1,
        relation=">=",
        unit="problems",
        note=f"{rarest}; {len(FEATURES)} features",
    )
    note(", ".join(f"{name} {seen[name]}" for name in FEATURES))
    return Part(title="Equality", targets=(equal, covered))


def _features(problem: Problem, allocation: Allocation) -> set[str]:
    """What a problem and its answer exercise, by the names of ``FEATURES``."""
    pool = {node.name: node for node in problem.nodes}
    sizes = allocation.sizes()
    found = {str(problem.objective)}
    if sum(sizes.values()) == len(pool):
        found.add("pool used up")
    for rank, trainer in enumerate(problem.trainers):
        present = [name for name in trainer.current if name in pool]
        size = sizes.get(trainer.trainer_id, 0)
        got = {
            pool[name].eligibility
            for name, trainer_id in allocation.assignment.items()
            if trainer_id == trainer.trainer_id
        }
        found |= {
            name
            for name, holds in {
                "grows": size > len(present) > 0,
                "starts": size > len(present) == 0,
                "shrinks": 0 < size < len(present),
                "parks": size == 0 < len(present),
                "stays": size == len(present) > 0,
                "at n_min": size == trainer.n_min > 1,
                "at n_max": size == trainer.n_max,
                "below n_min": 0 < len(present) < trainer.n_min,
                "above n_max": len(present) > trainer.n_max,
                "departed nodes": len(present) < len(trainer.current),
                "stopped by p_jmax": rank >= problem.p_jmax and bool(present),
                "refuses a class": bool(trainer.eligible)
                and any(node.eligibility not in trainer.eligible for node in pool.values()),
                "mixes": len(got) > 1 and trainer.mixes_classes,
                "curve that falls": _falls(trainer.curve) and size > 0,
            }.items()
            if holds
        }
    return found


def _falls(curve: Curve) -> bool:
    return any(a > b for a, b in itertools.pairwise(curve.samples_per_s))


def _difference(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other), 1.0)
