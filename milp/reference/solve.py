"""The paper's node-level MILP solved to proven optimality: slow, faithful, for comparison.

A Problem comes in, the optimum and one optimal map go out. Called by tests and
benchmarks; ties are broken as the solver likes.
"""

from __future__ import annotations

from dataclasses import dataclass

from milp.check import objective_value
from milp.errors import ProblemError
from milp.problem import Problem
from milp.reference.backends import ModelStatus, SolveOptions, load_backend
from milp.reference.node_model import build_node_model, read_map
from milp.validate import validate


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceAnswer:
    """What the solver found."""

    objective: float  # eq. 16, recomputed from the map
    claimed: float  # the value the solver states
    assignment: dict[str, str]


def solve_reference(problem: Problem, solver: str = "highs") -> ReferenceAnswer:
    """Solve the node-level model with gap 0 and no time limit (small problems only).

    Raises:
        ProblemError: the problem is malformed, or the solver did not prove an optimum.
    """
    validate(problem)
    node_model = build_node_model(problem)
    answer = load_backend(solver)(node_model.model, SolveOptions())
    if answer.status is not ModelStatus.OPTIMAL:
        raise ProblemError(
            "BFT-3040",
            f"The solver {solver} ended without an optimum: {answer.status}: {answer.message}.",
            "Give it a smaller problem; the exact solver needs no limit.",
        )
    assignment = read_map(node_model, answer.values)
    sizes = {trainer.trainer_id: 0 for trainer in problem.trainers}
    for trainer_id in assignment.values():
        sizes[trainer_id] += 1
    return ReferenceAnswer(
        objective=objective_value(problem, sizes), claimed=answer.objective, assignment=assignment
    )
