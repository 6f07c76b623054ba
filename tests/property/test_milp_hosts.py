"""Hosts whose GPUs are lent one by one: the exact solver, the paper's model and every way."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from milp.check import find_violations
from milp.problem import Problem, ProblemError
from milp.reference.backends import ModelStatus, SolveOptions, load_backend
from milp.reference.node_model import build_node_model, values_of_map
from milp.solve import solve
from tests.support.host_problems import best_by_trying, draw
from tests.support.linear_rows import broken_groups

CLOSE = 1e-6  # relative to the worth


def exact(problem: Problem) -> float:
    """Return the worth of the exact answer; NaN: those that must run cannot."""
    try:
        answer = solve(problem)
    except ProblemError as refusal:
        if refusal.code == "BFT-1542":
            return math.nan
        raise
    assert find_violations(problem, answer) == []
    assert answer.gap == 0.0
    return answer.objective


def by_the_papers_model(problem: Problem) -> float:
    """Return what HiGHS makes of the node-level model, with a row for each that must run."""
    free = replace(problem, trainers=tuple([replace(t, must_run=False) for t in problem.trainers]))
    node_model = build_node_model(free)
    model = node_model.model
    pairs = list(zip(problem.trainers, node_model.trainers, strict=True))
    for trainer, own in pairs[: problem.p_jmax]:
        if trainer.must_run:
            model.equal("must run", [(own.y_lower, 1.0)], 0.0)
    answer = load_backend("highs")(model, SolveOptions())
    if answer.status is ModelStatus.INFEASIBLE:
        return math.nan
    assert answer.status is ModelStatus.OPTIMAL
    return answer.objective


def are_equal(one: float, other: float) -> bool:
    return (math.isnan(one) and math.isnan(other)) or math.isclose(
        one, other, rel_tol=CLOSE, abs_tol=CLOSE
    )


def differing(seeds: range, most_hosts: int) -> list[tuple[int, float, float, float]]:
    """Return seeds on which the three do not agree, with what each says."""
    rows = []
    for seed in seeds:
        warms_up = seed % 3 == 0
        problem = draw(seed, warms_up=warms_up, most_hosts=most_hosts)
        ours, best = exact(problem), best_by_trying(problem)
        of_model = best if warms_up else by_the_papers_model(problem)
        if not (are_equal(ours, best) and are_equal(of_model, best)):
            rows.append((seed, ours, best, of_model))
    return rows


@pytest.mark.parametrize("start", range(400, 500, 25))
def test_all_three_agree(start: int) -> None:
    assert differing(range(start, start + 25), most_hosts=2) == []


@pytest.mark.long
@pytest.mark.parametrize("start", range(10_000, 11_200, 200))
def test_all_three_agree_on_many(start: int) -> None:
    assert differing(range(start, start + 200), most_hosts=4) == []


@pytest.mark.parametrize("seed", range(20))
def test_an_answer_keeps_all_rows_of_the_model(seed: int) -> None:
    problem = draw(seed, most_hosts=3)
    problem = replace(
        problem, trainers=tuple([replace(t, must_run=False) for t in problem.trainers])
    )
    answer = solve(problem)
    node_model = build_node_model(problem)
    values = values_of_map(node_model, answer.assignment)
    assert broken_groups(node_model.model, values, 1e-9) == set()
