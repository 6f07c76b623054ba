"""The best value of a problem under caps that HiGHS finds, in a model of its own.

The model is written from docs/design/solver.md for trainers that do not mix classes: y_jkn = 1
where trainer j has n nodes of class k, one of these at most, nodes by class and caps as rows. What
a size is worth comes from the definition by a clock (``milp.reference.timeline``).
"""

from __future__ import annotations

from collections import Counter

import highspy
import numpy as np

from milp.highs import new_highs
from milp.problem import Problem, ProblemTrainer
from milp.reference.timeline import NodeChange, made_within_horizon, rate_by_count

RELATIVE_GAP = 1e-6


def best_known(problem: Problem, limit_s: float) -> float | None:
    """Return the value of the best answer found; None: there is none within the limit, in s."""
    class_of = {node.name: node.eligibility for node in problem.nodes}
    counts, ways = Counter(class_of.values()), list[tuple[int, str, int, float]]()
    nothing = 0.0
    for j, trainer in enumerate(problem.trainers[: problem.p_jmax]):
        held = Counter(class_of[name] for name in trainer.current if name in class_of)
        at_nothing = _worth(problem, trainer, held.total(), 0)
        nothing += at_nothing
        for k, count in counts.items():
            if trainer.eligible and k not in trainer.eligible:
                continue
            most = min(trainer.n_max, count if held[k] == held.total() else held[k])
            for n in range(trainer.n_min, most + 1):
                ways.append((j, k, n, _worth(problem, trainer, held.total(), n) - at_nothing))
    highs = new_highs()
    for name, value in {
        "output_flag": False,
        "threads": 1,
        "time_limit": limit_s,
        "mip_rel_gap": RELATIVE_GAP,
    }.items():
        highs.setOptionValue(name, value)
    for *_, gain in ways:
        highs.addVar(0.0, 1.0)
        highs.changeColCost(highs.getNumCol() - 1, gain)
    every = np.arange(len(ways), dtype=np.int32)
    highs.changeColsIntegrality(len(ways), every, np.ones(len(ways), dtype=np.uint8))
    highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
    rows: list[tuple[float, dict[int, float]]] = [
        (1.0, {i: 1.0 for i, way in enumerate(ways) if way[0] == j})
        for j in range(len(problem.trainers))
    ]
    for k, count in counts.items():
        rows.append((count, {i: float(way[2]) for i, way in enumerate(ways) if way[1] == k}))
    for cap in problem.caps:
        own = {j for j, t in enumerate(problem.trainers) if t.trainer_id in cap.trainers}
        rows.append((cap.most, {i: float(way[2]) for i, way in enumerate(ways) if way[0] in own}))
    for limit, factors in rows:
        at, of = np.array(list(factors), dtype=np.int32), np.array(list(factors.values()))
        highs.addRow(-highspy.kHighsInf, float(limit), len(at), at, of)
    highs.run()
    info = highs.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    return nothing + float(info.objective_function_value)


def _worth(problem: Problem, trainer: ProblemTrainer, n_held: int, n: int) -> float:
    """Return what the trainer makes with n nodes, of which it has up to ``n_held`` already."""
    has = frozenset(f"old{i}" for i in range(n_held))
    gets = frozenset(sorted(has)[:n]) | {f"new{i}" for i in range(n - n_held)}
    change = NodeChange(has=has, gets=gets, warm_at_s=dict.fromkeys(gets - has, trainer.warm_up_s))
    rate = rate_by_count(trainer, problem.objective)
    return float(made_within_horizon(trainer, change, horizon_s=problem.t_fwd_s, rate=rate))
