"""Frozen allocation problems → what the solver answers otherwise now.

A case is ``id``, ``problem`` as ``bftrainer solve`` reads it, without what is at its default,
``objective``, ``gap`` (of the objective to the optimum, at most) and ``sizes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from milp.check import check
from milp.codec import problem_from_dict
from milp.solve import solve
from tests.support.frozen.changes import Change, same
from tests.support.frozen.lines import Plain, read, write


def compare(path: Path, every: int = 1) -> Iterator[tuple[str, list[Change]]]:
    """Solve each ``every``-th problem again; yield its id and what differs."""
    for case in read(path, every)[1]:
        found = [Change(cause=cause, case=case["id"], what=what) for cause, what in _compare(case)]
        yield case["id"], found


def accept(path: Path) -> None:
    """Put today's answers in the place of those that differ."""
    head, cases = read(path)
    for case in cases:
        if [*_compare(case)]:
            allocation = solve(problem_from_dict(case["problem"]))
            case["objective"], case["gap"] = allocation.objective, allocation.gap
            case["sizes"] = dict(sorted(allocation.sizes().items()))
    write(path, head, cases)


def _compare(case: Plain) -> Iterator[tuple[str, str]]:
    try:
        problem = problem_from_dict(case["problem"])
        allocation = solve(problem)
        check(problem, allocation)
    except Exception as failure:  # noqa: BLE001 - a finding; the others are compared
        yield "solver-failure", str(failure)
        return
    sizes = dict(sorted(allocation.sizes().items()))
    if not same(case["objective"], allocation.objective):
        yield "solver-objective", f"{case['objective']} -> {allocation.objective}"
    elif case["sizes"] != sizes:
        yield "solver-sizes", f"{case['sizes']} -> {sizes}"
