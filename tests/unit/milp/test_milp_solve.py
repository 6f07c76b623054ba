"""The exact solver against every map, the dense program and the paper's MILP."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from milp.check import check, objective_value
from milp.classes import solve_classes
from milp.options import build_options
from milp.pool import view_pool
from milp.problem import (
    Allocation,
    Curve,
    Objective,
    Problem,
    ProblemError,
    ProblemNode,
    ProblemTrainer,
)
from milp.reference.solve import solve_reference
from milp.solve import solve, solve_dense
from tests.support.examples import examples
from tests.support.problems import (
    present_sizes,
    problems,
    sizes_of,
    try_every_map,
    with_current,
)

QUICK = settings(max_examples=examples(50, of=4), deadline=None)


def trainer(name: str, curve: dict[int, float], **fields: object) -> ProblemTrainer:
    base = ProblemTrainer(
        trainer_id=name,
        n_min=1,
        n_max=8,
        curve=Curve(sizes=tuple(curve), samples_per_s=tuple(curve.values())),
        rescale_up_s=20.0,
        rescale_down_s=10.0,
    )
    return replace(base, **fields)  # type: ignore[arg-type]  # fields of the class, by name


def pool_of(n_nodes: int) -> tuple[ProblemNode, ...]:
    return tuple(ProblemNode(name=f"n{i}") for i in range(n_nodes))


def problem_of(n_nodes: int, *trainers: ProblemTrainer, t_fwd_s: float = 120.0) -> Problem:
    return Problem(nodes=pool_of(n_nodes), trainers=trainers, t_fwd_s=t_fwd_s, p_jmax=len(trainers))


def assert_best(problem: Problem, allocation: Allocation) -> None:
    check(problem, allocation)
    best, sizes = try_every_map(problem)
    assert allocation.objective == pytest.approx(best, rel=1e-9, abs=1e-9)
    if len({node.eligibility for node in problem.nodes}) == 1:  # else ties are HiGHS's
        assert sizes_of(problem, allocation) == sizes


@QUICK
@given(problems())
def test_is_the_best_of_all_maps(problem: Problem) -> None:
    assert_best(problem, solve(problem))


@QUICK
@given(problems(classes="abc"))
def test_is_the_best_of_all_maps_with_three_classes(problem: Problem) -> None:
    assert_best(problem, solve(problem))


@QUICK
@given(problems(max_nodes=5, max_trainers=2, classes="ab"))
def test_is_the_best_of_all_maps_with_two_classes(problem: Problem) -> None:
    assert_best(problem, solve(problem))


@settings(max_examples=examples(40, of=4), deadline=None)
@given(problems(max_nodes=9, max_trainers=5))
def test_agrees_with_the_papers_milp(problem: Problem) -> None:
    reference = solve_reference(problem)
    allocation = solve(problem)
    assert allocation.objective == pytest.approx(reference.objective, rel=1e-6, abs=1e-6)
    check(
        problem, replace(allocation, assignment=reference.assignment, objective=reference.objective)
    )


@settings(max_examples=examples(40, of=4), deadline=None)
@given(problems(max_nodes=9, max_trainers=4, classes="abc"))
def test_agrees_with_the_papers_milp_with_classes(problem: Problem) -> None:
    reference = solve_reference(problem)
    assert solve(problem).objective == pytest.approx(reference.objective, rel=1e-6, abs=1e-6)


@settings(max_examples=examples(80, of=4), deadline=None)
@given(problems(max_nodes=14, max_trainers=7))
def test_dense_program_gives_the_same_answer(problem: Problem) -> None:
    exact, dense = solve(problem), solve_dense(problem)
    assert exact.assignment == dense.assignment
    assert exact.objective == dense.objective
    assert exact.node_price == pytest.approx(dense.node_price, rel=1e-9, abs=1e-9)
    assert exact.marginals == dense.marginals


@QUICK
@given(problems(max_nodes=8, max_trainers=4))
def test_price_is_the_value_of_one_node_more(problem: Problem) -> None:
    larger = replace(problem, nodes=(*problem.nodes, ProblemNode(name="extra", eligibility="a")))
    gain = solve(larger).objective - solve(problem).objective
    assert solve(problem).node_price == pytest.approx(gain, rel=1e-9, abs=1e-8)


@QUICK
@given(problems(max_nodes=7, max_trainers=4, classes="ab"))
def test_marginals_are_objective_differences(problem: Problem) -> None:
    allocation = solve(problem)
    sizes = allocation.sizes()
    assert set(allocation.marginals) == {t.trainer_id for t in problem.trainers}
    for t in problem.trainers:
        marginal, size = allocation.marginals[t.trainer_id], sizes.get(t.trainer_id, 0)
        if marginal.gain_of_one_more is not None:
            gain = objective_value(problem, {**sizes, t.trainer_id: size + 1})
            expected = gain - objective_value(problem, sizes)
            assert marginal.gain_of_one_more == pytest.approx(expected, abs=1e-8)
        if size:
            fewer = size - 1 if size > t.n_min else 0
            loss = objective_value(problem, {**sizes, t.trainer_id: fewer})
            expected = objective_value(problem, sizes) - loss
            assert marginal.loss_of_one_fewer == pytest.approx(expected, abs=1e-8)
        else:
            assert marginal.loss_of_one_fewer is None


@QUICK
@given(problems(max_nodes=9, max_trainers=5, classes="ab"))
def test_same_problem_same_answer(problem: Problem) -> None:
    assert solve(problem) == solve(problem)


@QUICK
@given(problems(max_nodes=9, max_trainers=5))
def test_deciding_again_changes_nothing_when_nothing_changed(problem: Problem) -> None:
    """Without rescales in the way there is nothing left to gain, so nobody moves."""
    free = replace(
        problem,
        trainers=tuple(replace(t, rescale_up_s=0.0, rescale_down_s=0.0) for t in problem.trainers),
    )
    first = solve(free)
    assert solve(with_current(free, first)).assignment == first.assignment


@QUICK
@given(problems(max_nodes=9, max_trainers=4))
def test_deciding_again_and_again_comes_to_rest(problem: Problem) -> None:
    """A trainer parked today may start at no cost tomorrow, but what runs only gets better."""

    def earned(allocation: Allocation) -> float:
        rested = with_current(problem, allocation)
        return objective_value(rested, allocation.sizes())

    last = solve(problem)
    for _ in range(30):
        following = solve(with_current(problem, last))
        if following.assignment == last.assignment:
            break
        assert earned(following) > earned(last)
        last = following
    else:
        pytest.fail("30 decisions on an unchanged pool and still moving")


def test_tie_goes_to_the_first_come() -> None:
    linear = {1: 1.0, 8: 8.0}
    problem = problem_of(3, trainer("t0", linear, n_min=2), trainer("t1", linear))
    assert sizes_of(problem, solve(problem)) == (3, 0)


def test_tie_goes_to_fewer_rescales_before_first_come() -> None:
    flat = {1: 1.0, 8: 8.0}
    problem = problem_of(
        3,
        trainer("t0", flat, rescale_up_s=0.0, current=("n0",)),
        trainer("t1", flat, rescale_up_s=0.0, rescale_down_s=0.0, current=("n1", "n2")),
    )
    assert sizes_of(problem, solve(problem)) == (1, 2)


def test_rescale_that_does_not_pay_is_left_out() -> None:
    curve = {1: 100.0, 2: 110.0}
    problem = problem_of(2, trainer("t0", curve, current=("n0",)))
    assert sizes_of(problem, solve(problem)) == (1,)  # 10 * 120 s < 100 * 20 s
    assert sizes_of(problem, solve(replace(problem, t_fwd_s=300.0))) == (2,)


def test_gap_below_n_min_and_falling_curve() -> None:
    problem = problem_of(
        5,
        trainer("t0", {1: 1.0, 4: 10.0, 5: 2.0}, n_min=3),
        trainer("t1", {1: 3.0}),
    )
    assert sizes_of(problem, solve(problem)) == (4, 1)


def test_trainers_beyond_p_jmax_give_up_their_nodes() -> None:
    curve = {1: 1.0, 8: 8.0}
    problem = replace(
        problem_of(4, trainer("t0", curve, n_max=2), trainer("t1", curve, current=("n0", "n1"))),
        p_jmax=1,
    )
    allocation = solve(problem)
    check(problem, allocation)
    assert sizes_of(problem, allocation) == (2, 0)
    assert allocation.objective == pytest.approx(2 * 120.0 - 2.0 * 10.0)


def test_current_node_that_left_does_not_count() -> None:
    problem = problem_of(2, trainer("t0", {1: 1.0}, n_max=1, current=("n0", "left")))
    allocation = solve(problem)
    assert allocation.assignment == {"n0": "t0"}
    assert allocation.objective == pytest.approx(120.0)  # no rescale: C_j is 1
    assert present_sizes(problem) == (1,)


def test_objectives_scale_curves() -> None:
    fast, slow = {1: 1000.0, 2: 1100.0}, {1: 10.0, 2: 19.0}
    problem = problem_of(2, trainer("t0", fast), trainer("t1", slow))
    assert sizes_of(problem, solve(problem)) == (2, 0)
    fair = replace(problem, objective=Objective.SCALING_EFFICIENCY)
    assert sizes_of(fair, solve(fair)) == (1, 1)
    weighty = replace(fair.trainers[1], weight=3.0)
    weighted = replace(fair, objective=Objective.WEIGHTED, trainers=(fair.trainers[0], weighty))
    assert sizes_of(weighted, solve(weighted)) == (0, 2)


def test_a_trainer_that_accepts_every_class_has_nodes_of_one() -> None:
    nodes = tuple(ProblemNode(name=f"n{i}", eligibility=c) for i, c in enumerate("aabbb"))
    anyone = trainer("t0", {1: 1.0, 5: 5.0}, n_max=5)
    problem = Problem(nodes=nodes, trainers=(anyone,), t_fwd_s=10.0, p_jmax=1)
    assert sorted(solve(problem).assignment) == ["n2", "n3", "n4"]
    two = replace(problem, trainers=(anyone, replace(anyone, trainer_id="t1")), p_jmax=2)
    assert sizes_of(two, solve(two)) == (3, 2)
    mixes = replace(problem, trainers=(replace(anyone, mixes_classes=True),))
    assert len(solve(mixes).assignment) == 5


def test_classes_that_only_mixing_trainers_accept_are_one() -> None:
    nodes = tuple(ProblemNode(name=f"n{i}", eligibility=c) for i, c in enumerate("abc"))
    mixes = replace(trainer("t0", {1: 1.0}, eligible=("a", "b")), mixes_classes=True)
    picky = trainer("t1", {1: 1.0}, eligible=("c",))
    problem = Problem(nodes=nodes, trainers=(mixes, picky), t_fwd_s=10.0, p_jmax=2)
    assert view_pool(problem).names == (("n0", "n1"), ("n2",))
    anyone = replace(problem, trainers=(mixes, replace(picky, eligible=())))
    assert view_pool(anyone).names == (("n0",), ("n1",), ("n2",))


def test_large_problem_with_classes_fits_and_is_proven() -> None:
    """Trainers that take any class: the pools together decide, and the sizes fit."""
    nodes = tuple(ProblemNode(name=f"n{i}", eligibility="abc"[i % 3]) for i in range(300))
    curve = {1: 1.0, 4: 3.5, 16: 10.0, 64: 30.0}
    picky = trainer("t0", curve, n_max=64, eligible=("a",))
    others = tuple(trainer(f"t{j}", curve, n_max=64) for j in range(1, 12))
    problem = Problem(
        nodes=nodes,
        trainers=(picky, replace(picky, trainer_id="tb", eligible=("b",)), *others),
        t_fwd_s=120.0,
        p_jmax=13,
    )
    pool = view_pool(problem)
    assert len(pool.names) == 3
    assert solve_classes(build_options(problem, pool), pool).gap == 0.0
    check(problem, solve(problem))


def test_utility_decides_when_it_is_the_objective() -> None:
    curve, utility = {1: 1.0, 4: 4.0}, Curve(sizes=(1, 4), samples_per_s=(1.5, 1.6))
    eager = trainer("t0", curve, n_max=4, utility=utility)
    other = trainer("t1", curve, n_max=4, utility=Curve(sizes=(1, 4), samples_per_s=(1.0, 4.0)))
    problem = problem_of(4, eager, other)
    assert sizes_of(problem, solve(problem)) == (4, 0)
    useful = replace(problem, objective=Objective.UTILITY)
    assert sizes_of(useful, solve(useful)) == (1, 3)
    check(useful, solve(useful))


def test_nodes_that_join_earn_after_the_warm_up() -> None:
    curve = {1: 10.0, 2: 20.0, 4: 40.0}
    one = trainer("t0", curve, n_max=4, warm_up_s=30.0, rescale_up_s=0.0, current=("n0", "n1"))
    problem = problem_of(4, one)
    allocation = solve(problem)
    assert sizes_of(problem, allocation) == (4,)
    assert allocation.objective == pytest.approx(2 * 10.0 * 120 + 2 * 10.0 * 90)
    check(problem, allocation)
    endless = problem_of(4, replace(one, warm_up_s=500.0, rescale_up_s=1.0))
    assert sizes_of(endless, solve(endless)) == (2,)  # nothing to gain before t_fwd is over


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("BFT-3006", problem_of(1, trainer("t0", {1: 1.0}, n_min=5, n_max=4))),
        ("BFT-3006", problem_of(1, trainer("t0", {1: 1.0}, n_min=0))),
        ("BFT-3004", replace(problem_of(1), nodes=(*pool_of(1), *pool_of(1)))),
        (
            "BFT-3003",
            problem_of(
                2,
                trainer("t0", {1: 1.0}, current=("n0",)),
                trainer("t1", {1: 1.0}, current=("n0",)),
            ),
        ),
        ("BFT-3007", problem_of(2, trainer("t0", {1: 1.0}, current=("n0", "n0")))),
        ("BFT-3002", problem_of(2, trainer("t0", {1: 1.0}), trainer("t0", {1: 1.0}))),
        ("BFT-3008", problem_of(1, trainer("t0", {}))),
        ("BFT-3009", problem_of(1, trainer("t0", {2: 1.0, 1: 2.0}))),
        ("BFT-3011", problem_of(1, trainer("t0", {1: float("nan")}))),
        ("BFT-3011", problem_of(1, trainer("t0", {1: 1.0}, rescale_up_s=-1.0))),
        ("BFT-3011", problem_of(1, trainer("t0", {1: 1.0}), t_fwd_s=float("inf"))),
        ("BFT-3001", replace(problem_of(1), p_jmax=-1)),
        (
            "BFT-3010",
            replace(problem_of(1, trainer("t0", {1: 0.0})), objective=Objective.SCALING_EFFICIENCY),
        ),
        (
            "BFT-3012",
            replace(problem_of(1, trainer("t0", {1: 1.0})), objective=Objective.UTILITY),
        ),
        (
            "BFT-3008",
            problem_of(1, trainer("t0", {1: 1.0}, utility=Curve(sizes=(), samples_per_s=()))),
        ),
        ("BFT-3011", problem_of(1, trainer("t0", {1: 1.0}, warm_up_s=-1.0))),
        ("BFT-3011", problem_of(1, trainer("t0", {1: 1.0}, warm_up_s=float("nan")))),
        (
            "BFT-3005",
            replace(
                problem_of(0),
                nodes=(ProblemNode(name="n0", expected_remaining_s=float("nan")),),
            ),
        ),
    ],
)
def test_malformed_problems_are_refused(code: str, problem: Problem) -> None:
    with pytest.raises(ProblemError) as caught:
        solve(problem)
    assert caught.value.code == code
    assert caught.value.cause.endswith(".")
    assert caught.value.next_step.endswith(".")


@pytest.mark.parametrize(
    "wrong",
    [
        trainer("t1", {1: 1e20}),
        trainer("t1", {1: 1e-20}),
        trainer("t1", {2**40: 1e6}),
        trainer("t1", {10**400: 1.0}),
        trainer("t1", {1: 1.0}, n_max=10**5000),
        trainer("t1", {1: 1.0}, weight=float("nan")),
        trainer("t1", {1: 1.0}, current=("n0", "n0")),
    ],
)
def test_a_refusal_names_the_trainer_at_fault(wrong: ProblemTrainer) -> None:
    both = problem_of(1, trainer("t0", {1: 1.0}), wrong)
    with pytest.raises(ProblemError) as caught:
        solve(replace(both, objective=Objective.SCALING_EFFICIENCY))
    assert (caught.value.trainer_id, caught.value.node) == ("t1", "")


def test_a_refusal_names_the_node_at_fault() -> None:
    nodes = (ProblemNode(name="n0"), ProblemNode(name="n1", expected_remaining_s=float("nan")))
    with pytest.raises(ProblemError) as caught:
        solve(replace(problem_of(0, trainer("t0", {1: 1.0})), nodes=nodes))
    assert (caught.value.trainer_id, caught.value.node) == ("", "n1")
