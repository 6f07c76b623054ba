"""How long each node trains for each trainer within t_fwd, by grade.

Takes a validated Problem; gives e_jn of the objective in ``milp.problem`` for nodes that
are alike. A grade is a merged class and the seconds until a node of it ends, t_fwd at
most: the nodes of a grade can stand in for each other. Read by the solver for graded problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milp.pool import accepted_by, group_of
from milp.problem import Objective, Problem, ProblemNode, ProblemTrainer
from milp.tables import BoolArray, FloatArray, IntArray, rate_curve, rate_scale

NOBODY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grades:
    """Nodes by grade (index g), for the trainers that may run (index j, FCFS)."""

    trainers: tuple[ProblemTrainer, ...]
    nodes: tuple[tuple[tuple[ProblemNode, int], ...], ...]  # [g]: node, its holder or NOBODY
    counts: IntArray  # [g]
    own: IntArray  # [j, g]: how many of them trainer j holds
    class_of: IntArray  # [g]: merged class
    accepts: BoolArray  # [j, k]: merged classes the trainer takes
    present: IntArray  # [j]: C_j, accepted or not
    kept_s: FloatArray  # [g]: e_jn for the holder
    joined_s: FloatArray  # [j, g]: e_jn for any other trainer


def horizon_s(problem: Problem, node: ProblemNode) -> float:
    """H_n: how much of t_fwd there is a node."""
    if not problem.per_node_horizon or node.expected_remaining_s is None:
        return problem.t_fwd_s
    return min(problem.t_fwd_s, node.expected_remaining_s)


def view_grades(problem: Problem) -> Grades:
    """Sort the nodes that anybody accepts into grades, first seen first."""
    trainers = problem.trainers[: problem.p_jmax]
    holder = {name: j for j, trainer in enumerate(problem.trainers) for name in trainer.current}
    class_by_name, accepts = _merge_classes(problem.nodes, trainers)
    groups: dict[tuple[int, float], list[tuple[ProblemNode, int]]] = {}
    present = [0] * len(problem.trainers)
    for node in problem.nodes:
        j = holder.get(node.name, NOBODY)
        if j != NOBODY:
            present[j] += 1
        k = class_by_name[node.eligibility]
        if k >= 0:
            groups.setdefault((k, horizon_s(problem, node)), []).append((node, j))
    own = np.zeros((len(problem.trainers), len(groups)), dtype=np.int64)
    for g, members in enumerate(groups.values()):
        for _, j in members:
            if j != NOBODY:
                own[j, g] += 1
    until_s = np.array([until_s for _, until_s in groups], dtype=np.float64)
    warm_up = np.array([t.warm_up_s for t in trainers], dtype=np.float64)
    return Grades(
        trainers=trainers,
        nodes=tuple(tuple(members) for members in groups.values()),
        counts=np.array([len(members) for members in groups.values()], dtype=np.int64),
        own=own[: len(trainers)],
        class_of=np.array([k for k, _ in groups], dtype=np.int64),
        accepts=accepts,
        present=np.array(present[: len(trainers)], dtype=np.int64),
        kept_s=np.maximum(until_s, 0.0),
        joined_s=np.maximum(until_s - warm_up[:, None], 0.0),
    )


def _merge_classes(
    nodes: Sequence[ProblemNode], trainers: Sequence[ProblemTrainer]
) -> tuple[dict[str, int], BoolArray]:
    """Number the classes, alike ones alike and -1 for nobody's; who accepts which."""
    merged: dict[tuple[str, tuple[bool, ...]], int] = {}
    class_by_name: dict[str, int] = {}
    for name in dict.fromkeys(node.eligibility for node in nodes):
        accepted = accepted_by(name, trainers)
        key = group_of(name, accepted, trainers), accepted
        class_by_name[name] = merged.setdefault(key, len(merged)) if any(accepted) else -1
    rows = [accepted for _, accepted in merged]
    accepts = np.array(rows, dtype=np.bool_).reshape(len(rows), len(trainers))
    return class_by_name, accepts.T


def rate_table(trainer: ProblemTrainer, largest: int, objective: Objective) -> FloatArray:
    """O_j of sizes 0..largest, scaled to the objective's unit."""
    curve = rate_curve(trainer, objective)
    rates = np.interp(np.arange(largest + 1), (0, *curve.sizes), (0.0, *curve.samples_per_s))
    table: FloatArray = rates * rate_scale(trainer, objective)
    return table
