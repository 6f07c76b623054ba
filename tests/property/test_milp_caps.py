"""Caps of groups and trainers that must run, against every map of small problems."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp.check import check, find_violations
from milp.exact.group_caps import is_nested
from milp.pool import view_pool
from milp.problem import (
    Allocation,
    Cap,
    Curve,
    Objective,
    Problem,
    ProblemError,
    ProblemNode,
    ProblemTrainer,
)
from milp.solve import binding, solve
from milp.worth import allocation_value
from tests.support.examples import examples
from tests.support.problems import problems, try_every_map

PLAIN = problems(max_nodes=5, max_trainers=3, extras=True, caps=True, musts=True)
CLASSES = problems(max_nodes=4, max_trainers=3, classes="ab", mixes=True, caps=True, musts=True)


@settings(max_examples=examples(150, of=4), deadline=None)
@given(st.one_of(PLAIN, CLASSES))
def test_is_the_best_of_every_map(problem: Problem) -> None:
    expect_best_of_every_map(problem)


@settings(max_examples=examples(150, of=4), deadline=None)
@given(st.one_of(PLAIN, CLASSES))
def test_costs_from_the_decomposition_rule_out_no_best_map(problem: Problem) -> None:
    """As a problem of many sizes is solved, a few at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milp.classes.FIRST", 1)
        patch.setattr("milp.classes.FIRST_EXTRA", 1)
        patch.setattr("milp.solve.is_nested", lambda _: False)
        expect_best_of_every_map(problem)


def expect_best_of_every_map(problem: Problem) -> None:
    try:
        best, _ = try_every_map(problem)
    except ValueError:  # no map keeps the rules
        with pytest.raises(ProblemError, match="BFT-1542"):
            solve(problem)
        return
    found = solve(problem)
    check(problem, found)
    assert found.objective + found.gap == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert found.gap == 0.0
    assert solve(problem) == found


def trainer(j: int, **changes: object) -> ProblemTrainer:
    one = ProblemTrainer(
        trainer_id=f"t{j}",
        n_min=1,
        n_max=8,
        curve=Curve(sizes=(1, 8), samples_per_s=(1.0, 8.0)),
        rescale_up_s=1.0,
        rescale_down_s=1.0,
    )
    return replace(one, **changes)  # type: ignore[arg-type]  # of its fields


def problem_of(n_nodes: int, *trainers: ProblemTrainer, caps: tuple[Cap, ...] = ()) -> Problem:
    nodes = tuple(ProblemNode(name=f"n{i}") for i in range(n_nodes))
    return Problem(nodes=nodes, trainers=trainers, t_fwd_s=120.0, p_jmax=len(trainers), caps=caps)


def test_within_a_group_the_first_submitted_comes_first() -> None:
    caps = (
        Cap(name="user a", trainers=("t0", "t1", "t2"), most=3),
        Cap(name="account x", trainers=("t0", "t1", "t2", "t3"), most=9),
    )
    found = solve(problem_of(20, *map(trainer, range(5)), caps=caps))
    assert found.sizes() == {"t0": 3, "t3": 6, "t4": 8}
    assert found.marginals["t0"].gain_of_one_more is None  # its cap is full
    assert found.marginals["t3"].gain_of_one_more is None  # that of its account is


def test_who_has_nodes_keeps_them_if_all_are_worth_the_same() -> None:
    caps = (Cap(name="user a", trainers=("t0", "t1"), most=3),)
    holding = trainer(1, current=("n0", "n1", "n2"))
    assert solve(problem_of(9, trainer(0), holding, caps=caps)).sizes() == {"t1": 3}


def test_who_must_run_does_though_it_is_worth_less() -> None:
    poor = trainer(1, n_min=4, curve=Curve(sizes=(1, 8), samples_per_s=(1.0, 1.1)))
    found = solve(problem_of(8, trainer(0), replace(poor, must_run=True)))
    assert found.sizes() == {"t0": 4, "t1": 4}
    assert "t1" not in solve(problem_of(8, trainer(0), poor)).sizes()


def test_the_checker_names_the_cap_and_who_must_run() -> None:
    problem = problem_of(
        2,
        trainer(0),
        trainer(1, must_run=True),
        caps=(Cap(name="user a", trainers=("t0",), most=1),),
    )
    taken = {"n0": "t0", "n1": "t0"}
    worth = allocation_value(problem, taken)
    found = find_violations(problem, Allocation(assignment=taken, objective=worth, node_price=0.0))
    assert found == ["trainer t1 must run, but has no nodes", "user a has 2 nodes, 1 at most"]


def test_a_cap_that_is_no_number_of_nodes_is_refused() -> None:
    with pytest.raises(ProblemError, match="BFT-1541"):
        solve(problem_of(2, trainer(0), caps=(Cap(name="user a", trainers=("t0",), most=-1),)))


def large(seed: int, *, n_trainers: int = 60, n_groups: int = 6, classes: str = "a") -> Problem:
    """Trainers of ``n_groups`` users, which a cap each keeps from half of what they could use."""
    chance = random.Random(seed)  # noqa: S311
    names = [f"n{i}" for i in range(4 * n_trainers)]
    free = iter(names)
    trainers = []
    for j in range(n_trainers):
        power = chance.uniform(0.6, 1.0)
        sizes = (1, 2, 4, 8, 16, 32)
        n_min = chance.choice([1, 1, 2, 4])
        n_current = chance.randint(0, 3) if classes == "a" else 0
        current = tuple(next(free) for _ in range(n_current))
        curve = Curve(sizes=sizes, samples_per_s=tuple(100.0 * n**power for n in sizes))
        trainers.append(
            trainer(j, n_min=n_min, n_max=32, curve=curve, current=current, must_run=j % 9 == 0)
        )
    groups = [[f"t{j}" for j in range(g, n_trainers, n_groups)] for g in range(n_groups)]
    caps = [Cap(name=f"u{g}", trainers=tuple(own), most=20) for g, own in enumerate(groups)]
    nodes = tuple(ProblemNode(name=n, eligibility=chance.choice(classes)) for n in names)
    return Problem(
        nodes=nodes,
        trainers=tuple(trainers),
        t_fwd_s=120.0,
        p_jmax=n_trainers,
        objective=Objective.SCALING_EFFICIENCY,
        caps=tuple(caps),
    )


@pytest.mark.parametrize("seed", range(3))
def test_nested_caps_of_many_are_as_good_as_highs_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = large(seed)
    whole = Cap(name="all", trainers=tuple(t.trainer_id for t in problem.trainers), most=100)
    problem = replace(problem, caps=(*problem.caps, whole))
    assert is_nested(binding(problem, view_pool(problem)))
    nested = solve(problem)
    check(problem, nested)
    assert sum(nested.sizes().values()) == 100
    monkeypatch.setattr("milp.solve.is_nested", lambda _: False)
    monkeypatch.setattr("milp.classes.MOST_CAPPED", 10**9)
    highs = solve(problem)
    check(problem, highs)
    assert nested.objective == pytest.approx(highs.objective, rel=1e-8)


def test_caps_that_cross_are_bounded_at_worst() -> None:
    problem = large(7, n_trainers=80, classes="ab")
    odd = Cap(name="odd", trainers=tuple(f"t{j}" for j in range(1, 60, 3)), most=30)
    problem = replace(problem, caps=(*problem.caps, odd))
    found = solve(problem)  # a search without an end would run into the time-out of every test
    check(problem, found)
    assert found.gap <= 0.02 * found.objective


def steps(j: int, chance: random.Random) -> ProblemTrainer:
    """A trainer of up to 32 nodes whose curve is noise."""
    sizes = (1, 2, 4, 8, 16, 32)
    curve = Curve(
        sizes=sizes, samples_per_s=tuple(n**0.8 * chance.uniform(20.0, 140.0) for n in sizes)
    )
    return trainer(j, n_max=32, curve=curve)


@pytest.mark.parametrize("classes", ["a"])
def test_crossing_caps_on_irregular_curves_are_proven(classes: str) -> None:
    """HiGHS alone takes a minute and more for such, as its relaxation is some per cent too high."""
    chance = random.Random(classes)  # noqa: S311
    trainers = [steps(j, chance) for j in range(48)]
    users = [(f"user {g}", range(g, 48, 12)) for g in range(12)]
    accounts = [(f"account {g}", range(6 * g, 6 * g + 6)) for g in range(8)]
    caps = tuple(
        Cap(name=name, trainers=tuple(f"t{j}" for j in own), most=chance.randint(15, 45))
        for name, own in [*users, *accounts]
    )
    nodes = tuple(ProblemNode(name=f"n{i}", eligibility=chance.choice(classes)) for i in range(300))
    problem = Problem(nodes=nodes, trainers=tuple(trainers), t_fwd_s=120.0, p_jmax=48, caps=caps)
    answer = solve(problem)
    check(problem, answer)
    assert answer.gap == 0.0


@pytest.mark.parametrize(("classes", "must_run"), [("a", False), ("a", True), ("ab", True)])
def test_crossing_caps_of_equal_trainers_are_used(classes: str, *, must_run: bool) -> None:
    """As of a study: sizes of equal trainers cost the same, whichever has them.

    A hundred trainers with n to the power of 0.9, 1,000 nodes. 62 for an account of seven leave
    eight for each trainer at least, and 40 for each of 25 users leave 1,000.
    """
    n_trainers, n_users, n_accounts, each = 100, 25, 16, 8
    sizes = (1, 2, 4, 8, 16, 32, 64)
    curve = Curve(sizes=sizes, samples_per_s=tuple(100.0 * n**0.9 for n in sizes))
    trainers = [
        ProblemTrainer(
            trainer_id=f"t{j}",
            n_min=1,
            n_max=64,
            curve=curve,
            rescale_up_s=0.0,
            rescale_down_s=0.0,
            must_run=must_run and j < n_users,
        )
        for j in range(n_trainers)
    ]
    groups = [{j for j in range(n_trainers) if j % n_users == user} for user in range(n_users)]
    groups += [
        {j for j in range(n_trainers) if (j // n_users + j) % n_accounts == account}
        for account in range(n_accounts)
    ]
    counts = [n_users] * n_users + [n_accounts] * n_accounts
    caps = [
        Cap(name=f"c{k}", trainers=tuple(f"t{j}" for j in sorted(group)), most=1000 // n)
        for k, (group, n) in enumerate(zip(groups, counts, strict=True))
    ]
    nodes = [ProblemNode(name=f"n{i}", eligibility=classes[i % len(classes)]) for i in range(1000)]
    problem = Problem(
        nodes=tuple(nodes),
        trainers=tuple(trainers),
        t_fwd_s=100.0,
        p_jmax=n_trainers,
        caps=tuple(caps),
    )
    found = solve(problem)
    check(problem, found)
    assert found.objective >= n_trainers * 100.0 * 100.0 * each**0.9
    assert found.gap <= 0.01 * found.objective
