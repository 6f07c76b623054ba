"""The checker finds every kind of tampering, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from milp.check import allocation_value, check, find_violations, objective_value
from milp.problem import (
    Allocation,
    CheckFailed,
    Curve,
    Marginal,
    Objective,
    Problem,
    ProblemError,
    ProblemNode,
    ProblemTrainer,
)
from milp.solve import solve

CURVE = Curve(sizes=(1, 4), samples_per_s=(1.0, 3.0))


def trainer(
    name: str, *current: str, n_min: int = 1, n_max: int = 3, eligible: tuple[str, ...] = ()
) -> ProblemTrainer:
    return ProblemTrainer(
        trainer_id=name,
        n_min=n_min,
        n_max=n_max,
        curve=CURVE,
        rescale_up_s=2.0,
        rescale_down_s=1.0,
        current=current,
        eligible=eligible,
    )


NODES = tuple(
    ProblemNode(name=name, eligibility=kind)
    for name, kind in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")]
)
PROBLEM = Problem(
    nodes=NODES,
    trainers=(
        trainer("t1", "a1", eligible=("a",)),
        trainer("t2", "b1", n_min=2, eligible=("a", "b")),
        trainer("t3"),
    ),
    t_fwd_s=100.0,
    p_jmax=2,
)


def judged(assignment: dict[str, str], problem: Problem = PROBLEM) -> list[str]:
    """What is wrong with a map whose stated objective is right."""
    allocation = Allocation(assignment=assignment, objective=0.0, node_price=0.0)
    value = objective_value(problem, allocation.sizes())
    return find_violations(problem, replace(allocation, objective=value))


def test_the_solution_passes() -> None:
    check(PROBLEM, solve(PROBLEM))
    assert judged({"a1": "t1", "a2": "t1", "b1": "t2", "b2": "t2"}) == []


@pytest.mark.parametrize(
    ("assignment", "violation"),
    [
        ({"a1": "t1", "x9": "t1"}, "node x9 of trainer t1 is not in the pool"),
        ({"a1": "nobody"}, "node a1 goes to nobody, which is no trainer"),
        ({"b1": "t2"}, "trainer t2 has 1 nodes, outside 2..3"),
        (
            {"b1": "t2", "b2": "t2", "a1": "t2", "a2": "t2"},
            "trainer t2 has 4 nodes, outside 2..3",
        ),
        ({"a1": "t3"}, "trainer t3 runs, but 2 trainers come before it"),
        ({"a2": "t1"}, "trainer t1 migrates: it loses a1 and receives a2"),
        ({"a1": "t1", "b1": "t1"}, "trainer t1 does not accept class b of node b1"),
        ({"b1": "t2", "a2": "t2"}, "trainer t2 has nodes of 2 classes"),
    ],
)
def test_each_broken_rule_is_named(assignment: dict[str, str], violation: str) -> None:
    assert violation in judged(assignment)


def test_all_violations_are_reported_together() -> None:
    allocation = Allocation(
        assignment={"x9": "t1", "a1": "t3"}, objective=float("nan"), node_price=-1.0
    )
    with pytest.raises(CheckFailed, match="BFT-3090") as caught:
        check(PROBLEM, allocation)
    assert len(caught.value.violations) == 5  # pool, migration, p_jmax, two numbers


@pytest.mark.parametrize("factor", [1 + 1e-8, 1 - 1e-8, float("inf"), float("nan")])
def test_a_wrong_objective_is_found(factor: float) -> None:
    allocation = solve(PROBLEM)
    with pytest.raises(CheckFailed, match="the objective is"):
        check(PROBLEM, replace(allocation, objective=allocation.objective * factor))
    check(PROBLEM, replace(allocation, objective=allocation.objective * (1 + 1e-11)))


@pytest.mark.parametrize("price", [-0.1, float("inf"), float("nan")])
def test_a_senseless_price_is_found(price: float) -> None:
    with pytest.raises(CheckFailed, match="the node price is"):
        check(PROBLEM, replace(solve(PROBLEM), node_price=price))


def test_marginals_of_strangers_are_found() -> None:
    marginals = {"t9": Marginal(gain_of_one_more=None, loss_of_one_fewer=None)}
    with pytest.raises(CheckFailed, match="t9, which is no trainer"):
        check(PROBLEM, replace(solve(PROBLEM), marginals=marginals))


def test_objective_value_by_hand() -> None:
    # t1: 1 -> 2 nodes: 100 * 5/3 - 2 * 1; t2: 1 -> 2: the same; t3: nothing
    expected = 2 * (100.0 * 5 / 3 - 2.0)
    assert objective_value(PROBLEM, {"t1": 2, "t2": 2}) == pytest.approx(expected)
    # t1 gives up its node: -1 * 1; t2 too; t3 takes three: 100 * 7/3
    assert objective_value(PROBLEM, {"t3": 3}) == pytest.approx(-2.0 + 700.0 / 3)
    # beyond the last breakpoint the curve is flat
    assert objective_value(PROBLEM, {"t3": 9}) == pytest.approx(-2.0 + 300.0)


@pytest.mark.parametrize("gap", [-1e-9, float("inf"), float("nan")])
def test_a_senseless_gap_is_found(gap: float) -> None:
    with pytest.raises(CheckFailed, match="the gap is"):
        check(PROBLEM, replace(solve(PROBLEM), gap=gap))


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_senseless_marginals_are_found(number: float) -> None:
    for marginal in (
        Marginal(gain_of_one_more=number, loss_of_one_fewer=None),
        Marginal(gain_of_one_more=None, loss_of_one_fewer=number),
    ):
        with pytest.raises(CheckFailed, match="the marginal values of t1 are"):
            check(PROBLEM, replace(solve(PROBLEM), marginals={"t1": marginal}))


def test_a_trainer_that_mixes_may_have_several_classes() -> None:
    mixes = replace(PROBLEM.trainers[1], mixes_classes=True)
    problem = replace(PROBLEM, trainers=(PROBLEM.trainers[0], mixes, PROBLEM.trainers[2]))
    assert judged({"b1": "t2", "a2": "t2"}, problem) == []
    # But only those it accepts.
    only_a = replace(mixes, eligible=("a",), current=())
    problem = replace(problem, trainers=(PROBLEM.trainers[0], only_a, PROBLEM.trainers[2]))
    found = judged({"a2": "t2", "b1": "t2", "b2": "t2"}, problem)
    assert found == [
        "trainer t2 does not accept class b of node b1",
        "trainer t2 does not accept class b of node b2",
    ]


def test_warm_up_is_a_matter_of_sizes() -> None:
    problem = replace(
        PROBLEM, trainers=(replace(PROBLEM.trainers[0], warm_up_s=10.0), *PROBLEM.trainers[1:])
    )
    # O(1) = 1 for 10 s, O(2) = 5/3 for 90 s, a pause of 2 s at O(1); t2 makes 100 - 0.
    value = objective_value(problem, {"t1": 2, "t2": 1})
    assert value == pytest.approx(10.0 + 5 / 3 * 90.0 - 2.0 + 100.0)
    assert allocation_value(problem, {"a1": "t1", "a2": "t1", "b1": "t2"}) == pytest.approx(value)
    # Nobody is warm within 5 s: O(1) for 5 s.
    assert objective_value(replace(problem, t_fwd_s=5.0), {"t1": 2}) == pytest.approx(5 - 2.0 - 1.0)


def test_zero_extras_are_the_plain_objective_to_the_bit() -> None:
    for sizes in ({"t1": 3, "t2": 2}, {"t1": 1}, {}):
        names = iter(("a1", "a2", "a3", "b1", "b2"))
        assignment = {next(names): t for t, size in sizes.items() for _ in range(size)}
        assert allocation_value(PROBLEM, assignment) == objective_value(PROBLEM, sizes)


def test_utility_is_what_counts_when_it_is_the_objective() -> None:
    utility = Curve(sizes=(1, 3), samples_per_s=(10.0, 0.0))
    useful = tuple(replace(t, utility=utility) for t in PROBLEM.trainers)
    problem = replace(PROBLEM, trainers=useful, objective=Objective.UTILITY)
    assert objective_value(problem, {"t1": 2, "t2": 1}) == pytest.approx(500.0 - 20.0 + 1000.0)
    with pytest.raises(ProblemError, match="BFT-3091: Trainer t1"):
        objective_value(replace(PROBLEM, objective=Objective.UTILITY), {"t1": 1})
