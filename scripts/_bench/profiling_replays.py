"""Replays in which curves are known, learnt or claimed wrongly; called by ``bench_profiler``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from _bench import profiling as arms
from _bench.benchmark import note
from _bench.profiling import Arm, Learnt, learn, workload
from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.lab.workloads import NETWORKS
from milp.problem import Objective

LOSS, RESCALES = 0.02, 5.0
OBJECTIVES: Final = (Objective.SCALING_EFFICIENCY, Objective.THROUGHPUT)
WRONG: Final = {
    "all scale perfectly": arms.all_alike,
    "the next network's": arms.somebody_elses,
    "upside down": arms.reversed_efficiency,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One replay."""

    objective: str
    seed: int
    arm: str
    loss_by_rescale: tuple[float, ...]  # mean loss while trainers had 0, 1, 2 ... rescales
    loss_later: float  # after ``RESCALES`` of them
    below_after: float  # rescales per trainer from which the loss stays below ``LOSS``
    outcome: float
    rescales: int


def replay(seed: int, hours: float, *, is_quick: bool) -> list[Row]:
    """Replay one trace with every objective and arm."""
    trace = generate(GeneratorParameters(n_nodes=512, hours=hours, seed=seed))
    chosen = {
        "known": Arm(claim=arms.truth, is_learning=False, explore_budget=0.0),
        "nothing, learnt": Arm(claim=arms.nothing),
        "nothing, budget 0": Arm(claim=arms.nothing, explore_budget=0.0),
        "nothing, never learnt": Arm(claim=arms.nothing, is_learning=False, explore_budget=0.0),
    }
    for name, claim in list(WRONG.items())[-1 if is_quick else 0 :]:
        chosen[f"{name}, believed"] = Arm(claim=claim, is_learning=False, explore_budget=0.0)
        chosen[f"{name}, corrected"] = Arm(claim=claim)
    found = []
    for objective in OBJECTIVES:
        for name, arm in chosen.items():
            row = _row(trace, objective, seed, name, arm)
            note(f"{objective.value}, trace {seed}, {name}: later {row.loss_later:.4f}")
            found.append(row)
    return found


def _row(trace: Fragments, objective: Objective, seed: int, name: str, arm: Arm) -> Row:
    learnt = learn(trace, workload(len(NETWORKS)), arm, objective=objective, seed=seed)
    return Row(
        objective=objective.value,
        seed=seed,
        arm=name,
        loss_by_rescale=tuple(learnt.loss_between(k, k + 1) for k in range(8)),
        loss_later=learnt.loss_between(RESCALES, math.inf),
        below_after=below_after(learnt, LOSS),
        outcome=learnt.outcome,
        rescales=learnt.rescales,
    )


def below_after(learnt: Learnt, limit: float) -> float:
    """Rescales per trainer from which on the mean loss of all later time is below a limit.

    And that of the time until the next rescale, too, so that one good hour at the end does
    not excuse a bad beginning.
    """
    for k in range(100):
        near, later = learnt.loss_between(k, k + 1), learnt.loss_between(k, math.inf)
        if not (near >= limit or later >= limit or math.isnan(later)):
            return float(k)
    return math.inf


def gains_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What correcting a wrong curve brings, trace by trace."""
    outcome = {(r.objective, r.seed, r.arm): r.outcome for r in rows}
    return [
        {
            "objective": r.objective,
            "seed": r.seed,
            "claim": claim,
            "gain": outcome[r.objective, r.seed, f"{claim}, corrected"] / r.outcome - 1.0,
            "of_possible": outcome[r.objective, r.seed, f"{claim}, corrected"]
            / outcome[r.objective, r.seed, "known"],
        }
        for claim in WRONG
        for r in rows
        if r.arm == f"{claim}, believed"
    ]
