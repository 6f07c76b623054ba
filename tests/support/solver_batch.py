"""Many problems for one solver in one child process: CBC may take its process with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from bftrainer.lab.solvers.runner import ChildRunner
from milp.problem import Problem
from milp.reference.guard import SolverAnswer, answer_request, read_answer, write_request
from milp.reference.solve import keep_map


def solve_all(problems: Sequence[Problem], solver: str) -> list[SolverAnswer]:
    """The answer to each problem, from a process that has a minute for all."""
    requests = [write_request(p, solver=solver, start=keep_map(p)) for p in problems]
    report = ChildRunner(work="tests.support.solver_batch:answer_all").run(
        json.dumps(requests), time_limit_s=60.0, memory_limit_bytes=4 * 1024**3
    )
    if report.failure:
        raise AssertionError(f"{solver} {report.failure}")
    return [read_answer(text) for text in json.loads(report.stdout)]


def answer_all(requests_json: str, *, remaining_s: Callable[[], float | None]) -> str:
    """The child's work: every request in turn."""
    requests = json.loads(requests_json)
    return json.dumps([answer_request(text, remaining_s=remaining_s) for text in requests])
