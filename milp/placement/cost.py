"""What a choice of nodes costs beyond the sizes: the rule that ``place`` follows.

Takes a Problem and a map node -> trainer, returns a PlacementCost; smaller is better.
Placement minimises it, tests and benchmarks measure the distance to its optimum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from milp.problem import Problem, ProblemNode


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlacementCost:
    """Compared in the order of the fields: the first that differs decides."""

    settled_given_up: int  # nodes that train and that a trainer loses
    disturbances: float  # expected leaves that trainers will feel: see ``leave_weight``
    leaving: float  # the same by node: expected nodes that trainers will lose
    switches: int  # distinct switches, summed over the trainers
    claims: int  # nodes that have no pilot yet


def placement_cost(problem: Problem, assignment: Mapping[str, str]) -> PlacementCost:
    """The cost of a map; sizes and legality are not its subject."""
    groups: dict[str, list[ProblemNode]] = {t.trainer_id: [] for t in problem.trainers}
    for node in problem.nodes:
        trainer_id = assignment.get(node.name)
        if trainer_id is not None:
            groups[trainer_id].append(node)
    pool = {node.name for node in problem.nodes}
    settled_given_up, switches, claims = 0, 0, 0
    disturbances: list[float] = []
    leaving: list[float] = []
    for trainer in problem.trainers:
        group = groups[trainer.trainer_id]
        settled_given_up += len(pool.intersection(trainer.settled) - {node.name for node in group})
        ends = [node.expected_remaining_s for node in group]
        disturbances += [leave_weight(end, problem.t_fwd_s) for end in set(ends)]
        leaving += [leave_weight(end, problem.t_fwd_s) for end in ends]
        switches += len({node.switch for node in group})
        claims += sum(not node.has_pilot for node in group)
    return PlacementCost(
        settled_given_up=settled_given_up,
        disturbances=math.fsum(disturbances),
        leaving=math.fsum(leaving),
        switches=switches,
        claims=claims,
    )


def leave_weight(expected_remaining_s: float | None, t_fwd_s: float) -> float:
    """Chance that a node leaves before the next decision, 0 when no end is in sight.

    Nodes with the same ``expected_remaining_s`` leave in one event, which disturbs each
    trainer that has any of them once. Decisions come on average t_fwd_s apart, and how
    often is known no better than that (an exponential rate with an exponential prior):
    none comes within r seconds with probability t_fwd / (t_fwd + r).
    """
    if expected_remaining_s is None or expected_remaining_s == math.inf:
        return 0.0
    between_s = max(t_fwd_s, 1.0)
    return between_s / (between_s + max(expected_remaining_s, 0.0))
