"""The paper's node-level model: as data, against every map, and on three solvers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp.check import find_violations, objective_value
from milp.problem import Allocation, Curve, Problem, ProblemError, ProblemNode, ProblemTrainer
from milp.reference.backends import (
    BACKENDS,
    ModelStatus,
    SolveOptions,
    load_backend,
    require_installed,
)
from milp.reference.linear_model import (
    LinearModel,
    with_segments,
    worth,
    write_segments,
)
from milp.reference.node_model import (
    NodeModel,
    build_node_model,
    objective_points,
    read_map,
    values_of_map,
)
from milp.reference.solve import keep_map, solve_reference
from milp.worth import rate
from tests.support.examples import examples
from tests.support.linear_rows import broken_groups
from tests.support.problems import problems

IN_PROCESS = ("highs", "gurobi")  # CBC may crash: see tests/integration/decide/test_solvers.py
EVERYTHING = problems(max_nodes=4, max_trainers=3, classes="abc", mixes=True, caps=True)
CURVE = Curve(sizes=(1, 2, 4), samples_per_s=(10.0, 19.0, 30.0))


def trainer(name: str, **fields: object) -> ProblemTrainer:
    base = ProblemTrainer(
        trainer_id=name, n_min=1, n_max=4, curve=CURVE, rescale_up_s=2.0, rescale_down_s=1.0
    )
    return replace(base, **fields)  # type: ignore[arg-type]  # fields of the class, by name


def problem_of(n_nodes: int, *trainers: ProblemTrainer, classes: str = "a") -> Problem:
    nodes = tuple(
        ProblemNode(name=f"n{i}", eligibility=classes[i % len(classes)]) for i in range(n_nodes)
    )
    return Problem(nodes=nodes, trainers=trainers, t_fwd_s=100.0, p_jmax=len(trainers))


def judged(problem: Problem, assignment: Mapping[str, str]) -> list[str]:
    """Violations of a map by the independent checker."""
    sizes = Counter(assignment.values())
    return find_violations(
        problem,
        Allocation(
            assignment=assignment,
            objective=objective_value(problem, sizes),
            node_price=0.0,
        ),
    )


def best_of_all_maps(problem: Problem) -> float:
    owners = [None, *(t.trainer_id for t in problem.trainers)]
    values = []
    for drawn in itertools.product(owners, repeat=len(problem.nodes)):
        pairs = zip(problem.nodes, drawn, strict=True)
        assignment = {node.name: owner for node, owner in pairs if owner is not None}
        if not judged(problem, assignment):
            values.append(objective_value(problem, Counter(assignment.values())))
    return max(values)


@settings(max_examples=examples(300), deadline=None)
@given(EVERYTHING, st.randoms(use_true_random=False))
def test_a_map_is_legal_exactly_when_it_breaks_no_row(problem: Problem, random: Random) -> None:
    model = build_node_model(problem)
    owners = [None, *(t.trainer_id for t in problem.trainers)]
    drawn = {node.name: random.choice(owners) for node in problem.nodes}
    for assignment in (
        {name: owner for name, owner in drawn.items() if owner is not None},
        keep_map(problem),
        {},
    ):
        values = values_of_map(model, assignment)
        broken = broken_groups(model.model, values, 1e-9)
        assert bool(broken) == bool(judged(problem, assignment)), broken
        assert read_map(model, values) == assignment
        value = objective_value(problem, Counter(assignment.values()))
        assert worth(model.model, values) == pytest.approx(value, rel=1e-9, abs=1e-9)


@settings(max_examples=examples(50), deadline=None)
@given(EVERYTHING)
def test_segments_allow_what_the_sets_allow(problem: Problem) -> None:
    model = build_node_model(problem)
    segmented = write_segments(model.model)
    values = with_segments(model.model, values_of_map(model, keep_map(problem)))
    assert segmented.sos2 == []
    assert broken_groups(segmented, values, 1e-9) == set()
    assert worth(segmented, values) == pytest.approx(
        worth(model.model, values[: len(model.model.costs)])
    )


def test_segments_forbid_what_the_sets_forbid() -> None:
    model = build_node_model(problem_of(6, trainer("t")))
    (own,) = model.trainers
    values = values_of_map(model, {"n0": "t", "n1": "t"})
    for weight, share in zip(own.weights, (1 / 2, 0.0, 0.0, 1 / 2, 0.0), strict=True):
        values[weight] = share  # sizes 0 and 4, half each: not neighbours
    assert broken_groups(model.model, values, 1e-9) == {"SOS2"}
    segmented = write_segments(model.model)
    for segment in range(len(own.weights) - 1):
        chosen = [float(i == segment) for i in range(len(own.weights) - 1)]
        assert "segment" in broken_groups(segmented, values + chosen, 1e-9)


@pytest.mark.parametrize(
    ("assignment", "group"),
    [
        ({"n0": "t"}, "eq. 4"),  # below n_min
        ({f"n{i}": "t" for i in range(6)}, "eq. 4"),  # above n_max
        ({"n0": "late"}, "p_jmax"),
        ({"n0": "other", "n1": "other", "n5": "other"}, "eq. 10"),  # leaves n4, joins others
        ({"n1": "picky"}, "eligibility"),
        ({"n0": "t", "n1": "t"}, "one class"),
    ],
)
def test_each_rule_has_its_rows(assignment: dict[str, str], group: str) -> None:
    problem = problem_of(
        6,
        trainer("t", n_min=2, n_max=5),
        trainer("other", current=("n4", "n5")),
        trainer("picky", eligible=("a",)),
        trainer("late"),
        classes="ab",
    )
    problem = replace(problem, p_jmax=3)
    model = build_node_model(problem)
    assert group in broken_groups(model.model, values_of_map(model, assignment), 1e-9)
    assert judged(problem, assignment)


def test_two_trainers_cannot_share_a_node() -> None:
    model = build_node_model(problem_of(3, trainer("t"), trainer("u")))
    values = values_of_map(model, {"n0": "t"})
    other = values_of_map(model, {"n0": "u"})
    both = [max(pair) for pair in zip(values, other, strict=True)]
    assert "eq. 5" in broken_groups(model.model, both, 1e-9)


def test_rows_carry_the_numbers_of_the_paper() -> None:
    model = build_node_model(problem_of(3, trainer("t"), trainer("u"))).model
    assert set(model.row_groups) == {"eq. 4", "eq. 5", "eq. 9", "eq. 10", "eq. 11", "eq. 15"}
    counts = Counter(model.row_groups)
    assert counts == {"eq. 4": 8, "eq. 5": 3, "eq. 9": 24, "eq. 10": 4, "eq. 11": 4, "eq. 15": 8}
    assert set(model.column_groups) == {"x", "u", "y", "z", "w", "zu", "zd", "class"}
    assert len(model.sos2) == 2


@settings(max_examples=examples(150), deadline=None)
@given(problems(max_nodes=8, max_trainers=2))
def test_breakpoints_give_the_objective_at_every_size(problem: Problem) -> None:
    n_nodes = len(problem.nodes)
    for one in problem.trainers:
        points = objective_points(one, problem.objective, n_nodes)
        for n in range(n_nodes + 1):
            expected = rate(one, n, problem.objective)
            found = np.interp(n, [size for size, _ in points], [value for _, value in points])
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=examples(60), deadline=None)
@given(EVERYTHING)
def test_is_the_best_of_all_maps(problem: Problem) -> None:
    answer = solve_reference(problem)
    best = best_of_all_maps(problem)
    assert answer.objective == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert answer.claimed == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert judged(problem, answer.assignment) == []


@settings(max_examples=examples(60), deadline=None)
@given(problems(max_nodes=9, max_trainers=4, classes="abc", mixes=True))
def test_gurobi_with_sets_agrees_with_highs_with_segments(problem: Problem) -> None:
    answers = [solve_reference(problem, solver) for solver in IN_PROCESS]
    assert answers[0].objective == pytest.approx(answers[1].objective, rel=1e-6, abs=1e-6)
    for answer in answers:
        assert answer.claimed == pytest.approx(answer.objective, rel=1e-6, abs=1e-6)
        assert judged(problem, answer.assignment) == []


@settings(max_examples=examples(60), deadline=None)
@given(problems(max_nodes=9, max_trainers=4))
def test_sets_and_segments_have_the_same_optimum(problem: Problem) -> None:
    model = build_node_model(problem).model
    gurobi = load_backend("gurobi")
    sets, segments = (gurobi(one, SolveOptions()) for one in (model, write_segments(model)))
    assert sets.status is segments.status is ModelStatus.OPTIMAL
    assert sets.objective == pytest.approx(segments.objective, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("solver", IN_PROCESS)
def test_no_time_left_gives_the_start_or_nothing(solver: str) -> None:
    names = tuple(f"n{i}" for i in range(3))
    model = build_node_model(problem_of(12, trainer("t", current=names), trainer("u")))
    start = values_of_map(model, dict.fromkeys(names, "t"))
    answer = load_backend(solver)(model.model, SolveOptions(remaining_s=lambda: 0.0, start=start))
    assert answer.status in {ModelStatus.FEASIBLE, ModelStatus.NOTHING}
    if answer.status is ModelStatus.FEASIBLE:
        assert answer.objective >= worth(model.model, start) - 1e-6


@pytest.mark.parametrize("solver", IN_PROCESS)
def test_a_start_does_not_change_the_optimum(solver: str) -> None:
    names = tuple(f"n{i}" for i in range(3))
    model = build_node_model(problem_of(8, trainer("t", current=names), trainer("u", n_min=3)))
    start = values_of_map(model, dict.fromkeys(names, "t"))
    solve_model = load_backend(solver)
    with_start = solve_model(model.model, SolveOptions(start=start))
    without = solve_model(model.model, SolveOptions())
    assert with_start.status is without.status is ModelStatus.OPTIMAL
    assert with_start.objective == pytest.approx(without.objective, rel=1e-9)
    assert with_start.gap == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("solver", IN_PROCESS)
def test_the_same_model_has_the_same_answer(solver: str) -> None:
    model = large_model(2, 20)
    first, second = (load_backend(solver)(model.model, SolveOptions()) for _ in range(2))
    assert list(first.values) == list(second.values)


def large_model(n_trainers: int, n_nodes: int) -> NodeModel:
    return build_node_model(
        problem_of(n_nodes, *(trainer(f"t{j}", n_min=2) for j in range(n_trainers)))
    )


def test_gurobi_refuses_more_than_2000_constraints() -> None:
    model = large_model(6, 100)
    answer = load_backend("gurobi")(model.model, SolveOptions())
    assert answer.status is ModelStatus.REFUSED
    assert f"{len(model.model.row_lower)} constraints" in answer.message
    with pytest.raises(ProblemError, match="refused"):
        solve_reference(model.problem, "gurobi")


@pytest.mark.parametrize("solver", IN_PROCESS)
def test_an_impossible_model_is_called_so(solver: str) -> None:
    model = LinearModel()
    column = model.binary("x")
    model.row("more than one", [(column, 1.0)], at_least=2.0)
    assert load_backend(solver)(model, SolveOptions()).status is ModelStatus.INFEASIBLE


def test_no_trainers_and_no_nodes() -> None:
    empty = Problem(nodes=(), trainers=(), t_fwd_s=1.0, p_jmax=0)
    parked = Problem(nodes=(), trainers=(trainer("t"),), t_fwd_s=1.0, p_jmax=1)
    for solver in IN_PROCESS:
        for problem in (empty, parked):
            assert solve_reference(problem, solver).objective == 0.0


def test_unequal_times_are_refused() -> None:
    with pytest.raises(ProblemError, match="warm_up_s"):
        build_node_model(problem_of(2, trainer("t", warm_up_s=1.0)))
    with pytest.raises(ProblemError, match="must_run"):
        build_node_model(problem_of(2, trainer("t", must_run=True)))


def test_an_unknown_solver_is_named() -> None:
    with pytest.raises(ProblemError, match=r"BFT-3042.*'cplex'"):
        require_installed("cplex")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ("milp.reference.backends.gurobi", "no_such_package", "pip install it")
    monkeypatch.setitem(BACKENDS, "gurobi", entry)
    with pytest.raises(ProblemError, match=r"BFT-3043.*no_such_package.*pip install it"):
        load_backend("gurobi")


@settings(max_examples=examples(200), deadline=None)
@given(EVERYTHING)
def test_the_kept_map_is_always_legal(problem: Problem) -> None:
    assert judged(problem, keep_map(problem)) == []


def test_the_kept_map_keeps_what_it_may() -> None:
    problem = replace(
        problem_of(
            10,
            trainer("fits", current=("n0", "gone")),
            trainer("small", n_min=3, current=("n1", "n2", "gone2")),
            trainer("large", n_max=2, current=("n3", "n4", "n5"), settled=("n5",)),
            trainer("late", current=("n6",)),
        ),
        p_jmax=3,
    )
    assert keep_map(problem) == {"n0": "fits", "n5": "large", "n3": "large"}


def test_the_kept_map_keeps_the_larger_class() -> None:
    one = trainer("t", current=("n0", "n1", "n2"))
    other = trainer("u", eligible=("b",))
    assert keep_map(problem_of(4, one, other, classes="ab")) == {"n0": "t", "n2": "t"}
    mixed = replace(one, mixes_classes=True)
    assert len(keep_map(problem_of(4, mixed, other, classes="ab"))) == 3
