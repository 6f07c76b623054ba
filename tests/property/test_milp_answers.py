"""What holds of every answer, whatever the problem: legal, best, stable, repeatable."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from milp.check import find_violations
from milp.codec import (
    allocation_from_dict,
    allocation_to_dict,
    canonical_json,
    problem_from_dict,
    problem_hash,
    problem_to_dict,
)
from milp.problem import Allocation, Problem, ProblemNode
from milp.solve import solve
from milp.worth import allocation_value
from tests.support.examples import examples
from tests.support.problems import problems, sizes_of, without_extras

PROPERTY = settings(max_examples=examples(60), deadline=None)
PLAIN = problems(max_nodes=9, max_trainers=5)
CLASSES = problems(max_nodes=9, max_trainers=4, classes="abc", mixes=True)
MANY_CLASSES = problems(max_nodes=9, max_trainers=4, classes="abcdef", mixes=True)
WARMING = problems(max_nodes=7, max_trainers=4, extras=True)
ALL = problems(max_nodes=7, max_trainers=4, classes="abc", mixes=True, extras=True)
# Maps and pools that are compared need small problems: most of the random ones are legal.
EVERY_KIND = st.one_of(PLAIN, CLASSES, MANY_CLASSES, WARMING, ALL)


def scale_of(problem: Problem) -> float:
    """What rounding is measured against: all rates times all times."""
    curves = [curve for trainer in problem.trainers for curve in (trainer.curve, trainer.utility)]
    rates = [rate for curve in curves if curve is not None for rate in curve.samples_per_s]
    return 1.0 + sum(rates) * (problem.t_fwd_s + 20.0)


def is_not_below(better: float, worse: float, problem: Problem) -> bool:
    return better >= worse - 1e-9 * scale_of(problem)


def worth(problem: Problem, assignment: dict[str, str]) -> float | None:
    """What a map is worth, None when it is not legal."""
    value = allocation_value(problem, assignment)
    allocation = Allocation(assignment=assignment, objective=value, node_price=0.0)
    return None if find_violations(problem, allocation) else value


@PROPERTY
@given(EVERY_KIND)
def test_keeps_every_rule_and_states_its_worth(problem: Problem) -> None:
    allocation = solve(problem)
    assert find_violations(problem, allocation) == []
    assert allocation.node_price >= 0
    assert allocation.gap >= 0
    assert is_not_below(
        allocation_value(problem, allocation.assignment), allocation.objective, problem
    )


@PROPERTY
@given(EVERY_KIND)
def test_is_never_below_the_current_map_nor_below_nothing(problem: Problem) -> None:
    objective = solve(problem).objective
    names = {node.name for node in problem.nodes}
    current = {n: t.trainer_id for t in problem.trainers for n in t.current if n in names}
    for assignment in (current, {}):
        value = worth(problem, assignment)
        assert value is None or is_not_below(objective, value, problem)


@PROPERTY
@given(st.data())
def test_no_legal_map_is_better_by_more_than_the_gap(data: st.DataObject) -> None:
    problem = data.draw(EVERY_KIND)
    assignment = data.draw(maps(problem))
    value = worth(problem, assignment)
    assume(value is not None)
    assert value is not None
    allocation = solve(problem)
    assert is_not_below(allocation.objective + allocation.gap, value, problem)


@st.composite
def maps(draw: st.DrawFn, problem: Problem) -> dict[str, str]:
    """Maps of which many are legal: each trainer keeps some of its nodes or takes free ones."""
    names = {node.name for node in problem.nodes}
    assignment: dict[str, str] = {}
    growers: list[str] = []
    for trainer in problem.trainers[: problem.p_jmax]:
        present = [name for name in trainer.current if name in names]
        if draw(st.booleans()):
            growers.append(trainer.trainer_id)
            kept = present
        else:
            kept = draw(st.permutations(present))[: draw(st.integers(0, len(present)))]
        assignment |= dict.fromkeys(kept, trainer.trainer_id)
    for name in sorted(names - set(assignment)):
        owner = draw(st.sampled_from([None, *growers]))
        if owner is not None:
            assignment[name] = owner
    return assignment


@PROPERTY
@given(EVERY_KIND, st.sampled_from("abc"), st.sampled_from([None, 10.0, 60.0]))
def test_one_node_more_never_hurts(problem: Problem, node_class: str, end_s: float | None) -> None:
    # Of a class that is there: a new one could tell classes apart that were one before.
    assume(any(node.eligibility == node_class for node in problem.nodes))
    node = ProblemNode(name="extra", eligibility=node_class, expected_remaining_s=end_s)
    larger = solve(replace(problem, nodes=(*problem.nodes, node)))
    assert is_not_below(larger.objective + larger.gap, solve(problem).objective, problem)


@PROPERTY
@given(st.data())
def test_the_order_of_the_nodes_changes_no_worth(data: st.DataObject) -> None:
    problem = data.draw(EVERY_KIND)
    nodes = tuple(data.draw(st.permutations(problem.nodes)))
    one, other = solve(problem), solve(replace(problem, nodes=nodes))
    if one.gap == other.gap == 0:
        assert other.objective == pytest.approx(one.objective, rel=1e-12, abs=1e-12)
    else:
        assert is_not_below(one.objective + one.gap, other.objective, problem)
        assert is_not_below(other.objective + other.gap, one.objective, problem)


@PROPERTY
@given(st.data())
def test_names_of_nodes_change_no_sizes(data: st.DataObject) -> None:
    problem = data.draw(st.one_of(PLAIN, CLASSES))
    fresh = data.draw(st.permutations([f"m{i}" for i in range(len(problem.nodes))]))
    names = {node.name: new for node, new in zip(problem.nodes, fresh, strict=True)}
    renamed = replace(
        problem,
        nodes=tuple(replace(node, name=names[node.name]) for node in problem.nodes),
        trainers=tuple(
            replace(t, current=tuple(names.get(name, name) for name in t.current))
            for t in problem.trainers
        ),
    )
    assert sizes_of(renamed, solve(renamed)) == sizes_of(problem, solve(problem))
    assert solve(renamed).objective == solve(problem).objective


@PROPERTY
@given(st.one_of(WARMING, ALL))
def test_without_warm_up_ends_change_no_worth(problem: Problem) -> None:
    plain = without_extras(problem)
    # When a node ends decides who gets it, not what it is worth.
    ends = tuple(replace(node, expected_remaining_s=None) for node in plain.nodes)
    timeless = replace(plain, nodes=ends)
    assert solve(plain).objective == solve(timeless).objective
    assert solve(plain).marginals == solve(timeless).marginals
    value = allocation_value(plain, solve(plain).assignment)
    assert solve(plain).objective == pytest.approx(value, rel=1e-12, abs=1e-9)


@PROPERTY
@given(EVERY_KIND)
def test_an_extra_cost_never_makes_the_optimum_worth_more(problem: Problem) -> None:
    with_extras, plain = solve(problem), solve(without_extras(problem))
    assert is_not_below(plain.objective + plain.gap, with_extras.objective, problem)


@PROPERTY
@given(EVERY_KIND)
def test_comes_back_from_json_with_the_same_answer(problem: Problem) -> None:
    text = canonical_json(problem_to_dict(problem))
    again = problem_from_dict(json.loads(text))
    assert again == problem
    assert problem_hash(again) == problem_hash(problem)
    first, second = solve(problem), solve(again)
    assert first == second
    told = canonical_json(allocation_to_dict(first))
    assert told == canonical_json(allocation_to_dict(second))
    assert allocation_from_dict(json.loads(told)) == first
