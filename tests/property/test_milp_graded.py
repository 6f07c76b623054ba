"""Nodes that earn unequally: the graded solver against a MILP, every map and the plain one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings

from milp.check import check, find_violations
from milp.graded.decomposition import is_graded, solve_graded
from milp.graded.earning import view_grades
from milp.graded.rows import build_rows, worth_at
from milp.graded.transport import transport
from milp.problem import (
    Allocation,
    Curve,
    Objective,
    Problem,
    ProblemNode,
    ProblemTrainer,
)
from milp.solve import solve
from milp.validate import validate
from milp.worth import allocation_value, best_batches
from tests.support.graded_model import solve_graded_model
from tests.support.problems import problems, without_extras

QUICK = settings(max_examples=60, deadline=None)
LINEAR = Curve(sizes=(1, 64), samples_per_s=(1.0, 64.0))


def trainer(name: str, **fields: object) -> ProblemTrainer:
    base = ProblemTrainer(
        trainer_id=name, n_min=1, n_max=64, curve=LINEAR, rescale_up_s=0.0, rescale_down_s=0.0
    )
    return replace(base, **fields)  # type: ignore[arg-type]  # fields of the class, by name


def node(name: str, **fields: object) -> ProblemNode:
    return replace(ProblemNode(name=name), **fields)  # type: ignore[arg-type]  # by name


def problem_of(
    nodes: tuple[ProblemNode, ...], *trainers: ProblemTrainer, **fields: object
) -> Problem:
    base = Problem(nodes=nodes, trainers=trainers, t_fwd_s=100.0, p_jmax=len(trainers))
    return replace(base, **fields)  # type: ignore[arg-type]  # fields of the class, by name


def judged(problem: Problem, assignment: dict[str, str]) -> Allocation:
    """The allocation that this map is, with its worth; it may break rules."""
    bare = Allocation(assignment=assignment, objective=0.0, node_price=0.0)
    return replace(
        bare,
        objective=allocation_value(problem, assignment),
        batches=best_batches(problem, bare.sizes()),
    )


def legal_maps(problem: Problem) -> Iterator[Allocation]:
    owners = (None, *(t.trainer_id for t in problem.trainers))
    for owner_by_node in itertools.product(owners, repeat=len(problem.nodes)):
        pairs = zip(problem.nodes, owner_by_node, strict=True)
        allocation = judged(problem, {n.name: owner for n, owner in pairs if owner})
        if not find_violations(problem, allocation):
            yield allocation


def assert_optimal(problem: Problem, allocation: Allocation, optimum: float) -> None:
    check(problem, allocation)
    noise = 1e-7 * (1.0 + abs(optimum))
    assert allocation.objective <= optimum + noise
    assert optimum <= allocation.objective + allocation.gap + noise


def solve_valid(problem: Problem) -> Allocation:
    """Without trainers that may run there is nothing to choose: never handed on by solve."""
    assume(problem.trainers[: problem.p_jmax])
    validate(problem)
    return solve_graded(problem)


@QUICK
@given(problems(max_nodes=4, max_trainers=2, classes="ab", families=True, mixes=True, extras=True))
def test_is_the_best_of_all_maps(problem: Problem) -> None:
    allocation = solve_valid(problem)
    assert_optimal(problem, allocation, max(m.objective for m in legal_maps(problem)))
    assert allocation.gap == 0.0


@QUICK
@given(problems(max_nodes=9, max_trainers=4, families=True, extras=True))
def test_agrees_with_the_milp(problem: Problem) -> None:
    allocation = solve_valid(problem)
    assert_optimal(problem, allocation, solve_graded_model(problem))
    assert allocation.gap == 0.0


@QUICK
@given(problems(max_nodes=9, max_trainers=4, classes="abc", mixes=True, extras=True))
def test_agrees_with_the_milp_with_classes(problem: Problem) -> None:
    allocation = solve_valid(problem)
    assert_optimal(problem, allocation, solve_graded_model(problem))


@QUICK
@given(problems(max_nodes=9, max_trainers=4, classes="ab", families=True))
def test_finds_the_papers_optimum_when_all_nodes_earn_alike(problem: Problem) -> None:
    graded = solve_valid(problem)
    plain = solve(problem)
    assert graded.objective == pytest.approx(plain.objective, rel=1e-9, abs=1e-9)
    assert graded.gap == 0.0
    check(problem, graded)


@QUICK
@given(problems(max_nodes=9, max_trainers=4, classes="ab"))
def test_ends_beyond_t_fwd_change_nothing(problem: Problem) -> None:
    """With the extras at zero the answer is that of the paper's objective, to the bit."""
    far = tuple(replace(n, expected_remaining_s=problem.t_fwd_s) for n in problem.nodes)
    horizons = replace(problem, nodes=far, per_node_horizon=True)
    assert not is_graded(horizons)
    assert solve(horizons) == solve(without_extras(horizons))


# Whoever may have a class or the node that ends early has all of it: nobody bids for those.
TAKEN_BY_ALL_WHO_MAY = problem_of(
    (
        *(node(name, eligibility="a") for name in ("n0", "n1")),
        *(node(name, eligibility="b") for name in ("n2", "n3")),
        node("n4", eligibility="a", expected_remaining_s=-1.0),
    ),
    trainer("t0", n_max=2, eligible=("b",), utility=Curve(sizes=(1,), samples_per_s=(0.5,))),
    trainer("t1", n_max=3, mixes_classes=True, utility=Curve(sizes=(1,), samples_per_s=(0.1,))),
    t_fwd_s=1.0,
    objective=Objective.UTILITY,
    per_node_horizon=True,
)


@QUICK
@example(TAKEN_BY_ALL_WHO_MAY)
@given(problems(max_nodes=8, max_trainers=4, classes="ab", mixes=True, extras=True))
def test_the_transport_is_proven_by_its_prices(problem: Problem) -> None:
    """No map of the same sizes is worth more than what the prices add up to."""
    if not problem.trainers[: problem.p_jmax]:
        return
    grades = view_grades(problem)
    rows = build_rows(grades, problem.objective)
    chance = np.random.default_rng(len(rows.size))
    ends = np.append(rows.starts()[1:], len(rows.size))
    for _ in range(10):
        one_each = rows.keep(chance.integers(rows.starts(), ends))
        found = transport(one_each, grades.counts)
        if found is None:
            continue
        used = found.used + one_each.fixed
        assert (used.sum(axis=1) == one_each.size).all()
        assert (used.sum(axis=0) <= grades.counts).all()
        assert (found.used <= one_each.limit).all()
        assert (found.prices >= 0.0).all()
        bound = worth_at(one_each, found.prices).sum() + found.prices @ grades.counts
        assert found.value == pytest.approx(bound, rel=1e-9, abs=1e-9)


@QUICK
@given(problems(max_nodes=6, max_trainers=3, classes="ab", families=True, extras=True))
def test_marginals_are_objective_differences(problem: Problem) -> None:
    allocation = solve_valid(problem)
    idle = [n.name for n in problem.nodes if n.name not in allocation.assignment]
    assert set(allocation.marginals) == {t.trainer_id for t in problem.trainers}
    for t in problem.trainers:
        marginal = allocation.marginals[t.trainer_id]
        mine = [name for name, owner in allocation.assignment.items() if owner == t.trainer_id]
        more = [judged(problem, {**allocation.assignment, name: t.trainer_id}) for name in idle]
        gains = [m.objective for m in more if not find_violations(problem, m)]
        if gains:
            gain = max(gains) - allocation.objective
            assert marginal.gain_of_one_more == pytest.approx(gain, abs=1e-8)
        assert (marginal.loss_of_one_fewer is None) == (not mine)
        lost = [[name] for name in mine] if len(mine) > t.n_min else [mine]
        kept = [
            {n: o for n, o in allocation.assignment.items() if n not in names} for names in lost
        ]
        left = [judged(problem, fewer) for fewer in kept]
        worths = [m.objective for m in left if not find_violations(problem, m)]
        if mine and worths:
            loss = allocation.objective - max(worths)
            assert marginal.loss_of_one_fewer == pytest.approx(loss, abs=1e-8)


@QUICK
@given(problems(max_nodes=9, max_trainers=4, classes="ab", mixes=True, extras=True))
def test_same_problem_same_answer(problem: Problem) -> None:
    assert solve_valid(problem) == solve_valid(problem)


@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        (False, problem_of((node("n0"),), trainer("t0"))),
        (False, problem_of((node("n0"),), trainer("t0", warm_up_s=5.0))),
        (False, problem_of((node("n0", expected_remaining_s=3.0),), trainer("t0"))),
        (False, problem_of((node("n0", expected_remaining_s=3.0),), per_node_horizon=True)),
        (
            True,
            problem_of(
                (node("n0", expected_remaining_s=3.0),), trainer("t0"), per_node_horizon=True
            ),
        ),
    ],
)
def test_tells_what_sizes_alone_decide(expected: bool, problem: Problem) -> None:
    assert is_graded(problem) is expected


def test_long_lived_nodes_go_to_who_earns_most() -> None:
    nodes = (node("short", expected_remaining_s=20.0), node("long"))
    fast = trainer("fast", n_max=1, curve=Curve(sizes=(1,), samples_per_s=(2.0,)))
    problem = problem_of(nodes, trainer("slow", n_max=1), fast, per_node_horizon=True)
    allocation = solve_graded(problem)
    assert allocation.assignment == {"long": "fast", "short": "slow"}
    assert allocation.objective == pytest.approx(2.0 * 100 + 20)


def test_a_node_that_ends_before_its_worker_is_warm_earns_nothing() -> None:
    nodes = (node("n0", expected_remaining_s=5.0),)
    late = problem_of(nodes, trainer("t0", warm_up_s=8.0), per_node_horizon=True)
    assert solve_graded(late).objective == 0.0
    assert solve(late).solver == "graded"


def test_a_shrinking_trainer_keeps_what_stays_longest() -> None:
    nodes = tuple(node(f"n{i}", expected_remaining_s=10.0 * (i + 1)) for i in range(4))
    falling = Curve(sizes=(1, 2, 4), samples_per_s=(1.0, 8.0, 4.0))
    shrinks = trainer("t0", curve=falling, current=tuple(n.name for n in nodes))
    allocation = solve_graded(problem_of(nodes, shrinks, per_node_horizon=True))
    assert allocation.assignment == {"n2": "t0", "n3": "t0"}


def test_a_grade_is_shared_out_by_pilot_switch_and_stay() -> None:
    """Among nodes that earn the same: settled ones are kept, near ones with pilots are taken."""
    nodes = (
        node("a", has_pilot=True, switch="s1"),
        node("b", has_pilot=True, switch="s2"),
        node("c", switch="s1"),
        node("d", switch="s2", expected_remaining_s=9.0),
    )
    mine = trainer("mine", n_max=1)
    other = trainer("other", n_max=2, current=("b",))
    allocation = solve_graded(problem_of(nodes, mine, other, per_node_horizon=True))
    assert allocation.assignment == {"a": "mine", "b": "other", "c": "other"}
    lost = trainer("lost", n_max=1, current=("a", "b"), settled=("b",))
    problem = problem_of(nodes, lost, per_node_horizon=True)
    assert solve_graded(problem).assignment == {"b": "lost"}


def test_nodes_nobody_accepts_and_stopped_trainers() -> None:
    nodes = (node("n0", eligibility="x", expected_remaining_s=1.0), node("n1", eligibility="y"))
    picky = trainer("t0", eligible=("z",))
    stopped = trainer("t1", current=("n1",), rescale_down_s=10.0)
    problem = problem_of(nodes, picky, stopped, p_jmax=1)
    allocation = solve_graded(problem)
    check(problem, allocation)
    assert allocation.assignment == {}
    assert allocation.objective == pytest.approx(-10.0)


def test_large_problem_is_close_to_its_bound() -> None:
    chance = np.random.default_rng(3)
    curve = Curve(sizes=(1, 4, 16, 64), samples_per_s=(1.0, 3.6, 12.0, 40.0))
    nodes = tuple(
        node(
            f"n{i:03}",
            expected_remaining_s=float(chance.choice([20.0, 45.0, 70.0, 400.0])),
        )
        for i in range(200)
    )
    names = [n.name for n in nodes]
    trainers = tuple(
        trainer(
            f"t{j}",
            curve=replace(curve, samples_per_s=tuple(s * (1 + j % 5) for s in curve.samples_per_s)),
            n_min=int(chance.choice([1, 4, 16])),
            rescale_up_s=18.0,
            rescale_down_s=12.0,
            warm_up_s=float(j % 3),
            current=tuple(names[j * 16 : j * 16 + 16]) if j % 2 else (),
        )
        for j in range(12)
    )
    problem = problem_of(nodes, *trainers, per_node_horizon=True)
    allocation = solve_graded(problem)
    check(problem, allocation)
    assert allocation.solver == "graded"
    assert 0.0 <= allocation.gap <= 1e-2 * allocation.objective
    assert allocation.node_price > 0.0
