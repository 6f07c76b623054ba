"""What is asked of a solver in another process and what it answers, both as JSON.

``write_request`` and ``read_answer`` are for the process that decides; ``answer_request``
is all the work of the one that solves. Nothing in an answer is believed here: it is read
for its form only, ``milp.reference.guard`` judges it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from milp.codec import problem_from_dict, problem_to_dict
from milp.errors import ProblemError
from milp.problem import Problem
from milp.reference.backends import ModelAnswer, ModelStatus, SolveOptions, load_backend
from milp.reference.node_model import build_node_model, read_map, values_of_map
from milp.validate import validate

FIELDS = ("status", "assignment", "objective", "bound", "message")


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverAnswer:
    """What a solver claims of the node-level model of a problem."""

    status: ModelStatus
    assignment: Mapping[str, str]
    objective: float  # as the solver states it
    bound: float  # nothing is worth more; inf when it gave none
    message: str


def write_request(problem: Problem, *, solver: str, start: Mapping[str, str]) -> str:
    """Ask a solver for the best map, ``start`` being a legal one."""
    request = {"problem": problem_to_dict(problem), "solver": solver, "start": dict(start)}
    return json.dumps(request, separators=(",", ":"), allow_nan=False)


def answer_request(request_json: str, *, remaining_s: Callable[[], float | None]) -> str:
    """Solve what is asked and return the answer.

    Args:
        request_json: from ``write_request``.
        remaining_s: time left, asked when the solver has the model; None: no limit.
    """
    request = json.loads(request_json)
    problem = problem_from_dict(request["problem"])
    try:
        validate(problem)
        node_model = build_node_model(problem)
        solve_model = load_backend(request["solver"])
    except ProblemError as error:
        refusal = ModelAnswer(status=ModelStatus.REFUSED, message=error.cause)
        return _write_answer(refusal, {})
    start = values_of_map(node_model, request["start"])
    options = SolveOptions(remaining_s=remaining_s, start=start)
    answer = solve_model(node_model.model, options)
    assignment = read_map(node_model, answer.values) if answer.values else {}
    return _write_answer(answer, assignment)


def _write_answer(answer: ModelAnswer, assignment: Mapping[str, str]) -> str:
    return json.dumps(
        {
            "status": answer.status.value,
            "assignment": dict(assignment),
            "objective": _finite(answer.objective),
            "bound": _finite(answer.bound),
            "message": answer.message,
        },
        allow_nan=False,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def read_answer(text: str) -> SolverAnswer:
    """Read what came back.

    Raises:
        ValueError: it is no answer; the text says why.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or set(data) != set(FIELDS):
        raise ValueError(f"an object with {', '.join(FIELDS)} was expected")
    assignment = data["assignment"]
    if not isinstance(assignment, dict) or not all(
        isinstance(owner, str) for owner in assignment.values()
    ):
        raise ValueError("assignment is no map of names")
    return SolverAnswer(
        status=ModelStatus(data["status"]),
        assignment=assignment,
        objective=_number(data["objective"], "objective", missing=-math.inf),
        bound=_number(data["bound"], "bound", missing=math.inf),
        message=str(data["message"])[:500],
    )


def _number(value: Any, name: str, *, missing: float) -> float:
    if value is None:
        return missing
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is no number")  # noqa: TRY004 - wrong data, not a wrong call
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"{name} is too large") from error
    if math.isnan(number):
        raise ValueError(f"{name} is not a number")
    return number
