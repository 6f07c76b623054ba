"""Uses a solver in another process: requests, answers, and checks of every answer.

``write_request`` and ``read_answer`` are for the process that decides; ``answer_request``
is all the work of the one that solves. ``read_answer`` checks the form of an answer only;
``solve_limited`` checks its content and trusts nothing in it.

``solve_limited`` takes a Problem and a runner; it returns a legal Allocation in any case, worth
at least as much as the current map, and what went wrong. The runner starts the solver as a
child process with limits of time and memory, which may crash, hang, overrun or give a wrong
answer. Called by ``bftrainer.lab.solvers``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from milp.check import find_violations, validate
from milp.codec import problem_from_dict, problem_to_dict
from milp.plain import Form, codec, parse
from milp.problem import Allocation, CheckFailed, Problem, ProblemError, names_of, unit_sizes
from milp.reference.backends import ModelAnswer, ModelStatus, SolveOptions, load_backend
from milp.reference.node_model import build_node_model, read_map, values_of_map
from milp.reference.solve import gap_below, keep_map, marginals, price_of_best_step
from milp.solve import solve
from milp.worth import allocation_value

CLAIM_TOLERANCE = 1e-6  # relative: what solvers' own tolerances make of an objective
MEMORY_LIMIT_BYTES = 4 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverAnswer:
    """A solver's unchecked answer to the node-level model of a problem."""

    status: ModelStatus
    assignment: Mapping[str, str]
    objective: float | None  # as the solver states it
    bound: float | None  # nothing is worth more
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
        return _write_answer(ModelAnswer(status=ModelStatus.REFUSED, message=error.cause), {})
    start = values_of_map(node_model, request["start"])
    options = SolveOptions(remaining_s=remaining_s, start=start)
    answer = solve_model(node_model.model, options)
    assignment: dict[str, str] = {}
    if answer.values:
        assignment = read_map(node_model, answer.values)
    return _write_answer(answer, assignment)


def _write_answer(answer: ModelAnswer, assignment: Mapping[str, str]) -> str:
    solver_answer = SolverAnswer(
        status=answer.status,
        assignment=assignment,
        objective=_finite(answer.objective),
        bound=_finite(answer.bound),
        message=answer.message,
    )
    return json.dumps(codec(SolverAnswer, Form()).encode(solver_answer))


def _finite(value: float) -> float | None:
    """Return a number as it is; None: it is none that JSON can hold."""
    return value if math.isfinite(value) else None


def read_answer(text: str) -> SolverAnswer:
    """Read what came back.

    Raises:
        ValueError: it is no answer; the text says why.
    """
    answer: SolverAnswer = codec(SolverAnswer, Form()).decode(parse(text))
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerReport:
    """The outcome of a solver's process."""

    stdout: str  # its answer, when ``failure`` is empty
    failure: str = ""  # how it ended if not well: a phrase that follows "the solver"


class Runner(Protocol):
    """Runs one solver in a process of its own."""

    def run(
        self, request_json: str, *, time_limit_s: float | None, memory_limit_bytes: int
    ) -> RunnerReport:
        """Hand over the request, wait at most the limit, return what was printed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedAnswer:
    """The allocation to use and how it came about."""

    allocation: Allocation
    status: str  # of the solver: a ModelStatus, "failed" also when it was caught lying
    failure: str = ""  # one sentence; empty when the solver did its work


def solve_limited(
    problem: Problem,
    *,
    solver: str,
    time_limit_s: float | None,
    runner: Runner,
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
    fallback: Callable[[Problem], Allocation] = solve,
) -> LimitedAnswer:
    """Return the better of the current map and what the solver found.

    A solver that found nothing in time leaves the current map as it is. One that
    failed is replaced by ``fallback``, whose answer is judged as well; then the better
    of that and the current map is returned. ``Allocation.solver`` says which it was.

    Raises:
        ProblemError: the problem is malformed.
    """
    validate(problem)
    current = _allocation(problem, keep_map(problem), "current map")
    report = runner.run(
        write_request(problem, solver=solver, start=current.assignment),
        time_limit_s=time_limit_s,
        memory_limit_bytes=memory_limit_bytes,
    )
    try:
        status, allocation = _judge(problem, report, solver, current)
    except _Unusable as reason:
        return LimitedAnswer(
            allocation=_better(current, _replacement(problem, fallback), solver),
            status=reason.status.value,
            failure=f"The solver {solver} {reason}.",
        )
    return LimitedAnswer(allocation=_better(current, allocation, solver), status=status.value)


class _Unusable(Exception):  # noqa: N818 - never leaves this module
    """The reason why an answer is not used: a phrase that follows "the solver"."""

    def __init__(self, reason: str, status: ModelStatus = ModelStatus.FAILED) -> None:
        super().__init__(reason)
        self.status = status


def _judge(
    problem: Problem, report: RunnerReport, solver: str, current: Allocation
) -> tuple[ModelStatus, Allocation | None]:
    """Return the status and what was found, if anything; raise ``_Unusable`` otherwise."""
    if report.failure:
        raise _Unusable(report.failure)
    try:
        answer = read_answer(report.stdout)
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"answered what cannot be read ({_short(str(error))})") from error
    if answer.status in {ModelStatus.REFUSED, ModelStatus.FAILED}:
        raise _Unusable(f"{answer.status}: {_short(answer.message)}", answer.status)
    if answer.status in {ModelStatus.INFEASIBLE, ModelStatus.UNBOUNDED}:
        raise _Unusable(
            f"calls the model {answer.status}, but it is bounded and nobody needs to run"
        )
    if answer.status is ModelStatus.NOTHING:
        return answer.status, None
    if lie := _find_lie(problem, answer, current):
        raise _Unusable(lie)
    allocation = _allocation(problem, answer.assignment, solver)
    gap = allocation.gap
    if answer.status is ModelStatus.OPTIMAL:
        gap = 0.0
    elif answer.bound is not None:
        gap = min(gap, max(answer.bound - allocation.objective, 0.0))
    return answer.status, replace(allocation, gap=gap)


def _find_lie(problem: Problem, answer: SolverAnswer, current: Allocation) -> str:
    """Return a false statement of an answer; empty when none is found."""
    value = _value(problem, answer.assignment)
    claim = Allocation(assignment=answer.assignment, objective=value, node_price=0.0)
    if violations := find_violations(problem, claim):
        return f"returned a map that is not legal: {_short('; '.join(violations))}"
    tolerance = CLAIM_TOLERANCE * _magnitude(problem, answer.assignment)
    claimed_objective = -math.inf if answer.objective is None else answer.objective
    if not abs(claimed_objective - value) <= tolerance:
        return f"states an objective of {claimed_objective:.9g} for a map worth {value:.9g}"
    at_least = current.objective - CLAIM_TOLERANCE * _magnitude(problem, current.assignment)
    if answer.status is ModelStatus.OPTIMAL and value < at_least - tolerance:
        return f"calls {value:.9g} optimal, less than the current map's {current.objective:.9g}"
    if answer.bound is not None and answer.bound < max(value - tolerance, at_least):
        return f"states a bound of {answer.bound:.9g} below a map that is known"
    return ""


def _value(problem: Problem, assignment: Mapping[str, str]) -> float:
    in_pool: dict[str, str] = {}
    for name in names_of(problem.nodes):
        if name in assignment:
            in_pool[name] = assignment[name]
    return allocation_value(problem, in_pool)


def _magnitude(problem: Problem, assignment: Mapping[str, str]) -> float:
    """Sum of the absolute terms of the objective: what its rounding is relative to."""
    trainers = [
        replace(trainer, rescale_up_s=0.0, rescale_down_s=0.0) for trainer in problem.trainers
    ]
    earned = _value(replace(problem, trainers=tuple(trainers)), assignment)
    return 2 * earned - _value(problem, assignment)


def _allocation(problem: Problem, assignment: Mapping[str, str], solver: str) -> Allocation:
    """A map with all the numbers that belong to an answer."""
    steps = marginals(problem, unit_sizes(problem, assignment))
    value = _value(problem, assignment)
    return Allocation(
        assignment=dict(assignment),
        objective=value,
        node_price=price_of_best_step(steps),
        marginals=steps,
        solver=solver,
        gap=gap_below(problem, value),
    )


def _replacement(problem: Problem, fallback: Callable[[Problem], Allocation]) -> Allocation | None:
    """The fallback's answer, or none when it cannot take the problem or breaks a rule."""
    try:
        allocation = fallback(problem)
    except (ProblemError, CheckFailed):
        return None  # the current map is legal and stays
    if find_violations(problem, allocation):
        return None
    return allocation


def _better(current: Allocation, allocation: Allocation | None, solver: str) -> Allocation:
    """The one worth more; the current map when they are equal: it costs no rescale."""
    if allocation is None:
        return replace(current, solver=f"current map kept, nothing found by {solver}")
    is_current_map = allocation.assignment == current.assignment
    if is_current_map or allocation.objective > current.objective:
        return allocation
    bound = allocation.objective + allocation.gap
    return replace(
        current,
        gap=min(current.gap, max(bound - current.objective, 0.0)),
        solver=f"current map kept, none better found by {allocation.solver}",
    )


def _short(text: str) -> str:
    return json.dumps(text)[1:-1][:300]
