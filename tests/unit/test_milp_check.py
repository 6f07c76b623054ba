"""The checker finds every kind of tampering, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from milp.check import check, find_violations, objective_value
from milp.errors import CheckFailed
from milp.problem import Allocation, Curve, Marginal, Problem, ProblemNode, ProblemTrainer
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
