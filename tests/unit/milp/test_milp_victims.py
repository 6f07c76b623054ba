"""Victims: the cheapest nodes to give back, against every subset and a plain program."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection
from dataclasses import replace

import pytest

from milp.check import allocation_value
from milp.problem import Curve, Objective, Problem, ProblemError, ProblemNode, ProblemTrainer
from milp.victims import Victims, choose_victims


def trainer(name: str, current: tuple[str, ...], **changes: object) -> ProblemTrainer:
    plain = ProblemTrainer(
        trainer_id=name,
        n_min=1,
        n_max=100,
        curve=Curve(sizes=(1, 4, 100), samples_per_s=(1.0, 3.0, 40.0)),
        rescale_up_s=2.0,
        rescale_down_s=1.0,
        current=current,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # names of fields, in tests only


def draw_problem(chance: random.Random, n_nodes: int, n_trainers: int) -> Problem:
    """Nodes with and without trainer, gaps below n_min, curves of any shape, every extra."""
    names = [f"n{i}" for i in range(n_nodes)]
    nodes = [
        ProblemNode(
            name=name,
            expected_remaining_s=chance.choice([None, 5.0, 40.0, 900.0]),
            has_pilot=True,
            switch=chance.choice("st"),
        )
        for name in names
    ]
    left = chance.sample(names, n_nodes)
    trainers = []
    for j in range(n_trainers):
        size = min(chance.randint(0, 2 * n_nodes // n_trainers), len(left))
        current, left = left[:size], left[size:]
        sizes = sorted(chance.sample(range(1, n_nodes + 2), 3))
        rates = [chance.choice([chance.random() * n, float(n), 2.0]) for n in sizes]
        trainers.append(
            trainer(
                f"t{j}",
                (*current, "departed") if chance.random() < 0.2 else tuple(current),
                n_min=chance.choice([1, 1, 2, 4]),
                curve=Curve(sizes=tuple(sizes), samples_per_s=(max(rates[0], 0.1), *rates[1:])),
                settled=tuple(name for name in current if chance.random() < 0.7),
                rescale_down_s=chance.choice([0.0, 1.0, 12.0]),
            )
        )
    if chance.random() < 0.3:  # some that nobody has are not ours
        nodes = [
            replace(n, has_pilot=chance.choice([True, False] if n.name in left else [True]))
            for n in nodes
        ]
    return Problem(
        nodes=tuple(nodes),
        trainers=tuple(trainers),
        t_fwd_s=chance.choice([0.0, 10.0, 120.0]),
        p_jmax=n_trainers,
        objective=chance.choice([Objective.THROUGHPUT, Objective.WEIGHTED]),
    )


def holdings(problem: Problem) -> dict[str, set[str]]:
    pool = {node.name for node in problem.nodes}
    held = {t.trainer_id: pool & set(t.current) for t in problem.trainers}
    return {trainer_id: names for trainer_id, names in held.items() if names}


def value_without(problem: Problem, given: Collection[str]) -> float:
    """What the trainers are worth when these nodes go; below n_min a trainer is parked."""
    least = {t.trainer_id: t.n_min for t in problem.trainers}
    assignment: dict[str, str] = {}
    for trainer_id, names in holdings(problem).items():
        stay = names.difference(given)
        if len(stay) >= least[trainer_id] or stay == names:
            assignment |= dict.fromkeys(stay, trainer_id)
    return allocation_value(problem, assignment)


def touched(problem: Problem, given: Collection[str]) -> int:
    return sum(bool(names.intersection(given)) for names in holdings(problem).values())


def require_consistent(problem: Problem, victims: Victims, n_nodes: int) -> None:
    """The answer says what its own nodes mean."""
    assert len(set(victims.nodes)) == len(victims.nodes) == n_nodes
    held, least = holdings(problem), {t.trainer_id: t.n_min for t in problem.trainers}
    assert victims.sizes_after.keys() == held.keys()
    freed: set[str] = set()
    for trainer_id, names in held.items():
        stay = names.difference(victims.nodes)
        if stay != names and len(stay) < least[trainer_id]:
            freed |= stay
            assert trainer_id in victims.parked
            assert victims.sizes_after[trainer_id] == 0
        else:
            assert victims.sizes_after[trainer_id] == len(stay)
    assert set(victims.freed) == freed
    unheld = {n.name for n in problem.nodes if n.has_pilot}.difference(*held.values())
    assert len(unheld.intersection(victims.nodes)) == min(n_nodes, len(unheld))


def in_order(problem: Problem, owner: ProblemTrainer) -> list[str]:
    """A trainer's nodes, first to go first, by the two rules that bear on the value."""
    ends = {n.name: n.expected_remaining_s for n in problem.nodes}
    return sorted(
        (name for name in owner.current if name in ends),
        key=lambda name: (name in owner.settled, math.inf if ends[name] is None else ends[name]),
    )


@pytest.mark.parametrize("seed", range(150))
def test_no_subset_of_nodes_is_cheaper(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - random tests
    problem = draw_problem(chance, 8, chance.randint(1, 3))
    before = value_without(problem, ())
    held = set().union(*holdings(problem).values())
    names = [node.name for node in problem.nodes if node.has_pilot]
    for n_nodes in range(len(names) + 1):
        victims = choose_victims(problem, n_nodes)
        require_consistent(problem, victims, n_nodes)
        assert victims.cost == pytest.approx(before - value_without(problem, victims.nodes))
        n_free = min(n_nodes, len(names) - len(held))
        options = [
            given
            for given in itertools.combinations(names, n_nodes)
            if len(given) - len(held.intersection(given)) == n_free
        ]
        costs = [before - value_without(problem, given) for given in options]
        assert victims.cost == pytest.approx(min(costs), rel=1e-9, abs=1e-9)
        fewest = min(
            touched(problem, given)
            for given, cost in zip(options, costs, strict=True)
            if cost <= min(costs) + 1e-10
        )
        assert touched(problem, victims.nodes) == fewest


@pytest.mark.parametrize("seed", range(20))
def test_the_cost_is_that_of_a_plain_program(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - random tests
    problem = draw_problem(chance, 120, 8)
    names = {node.name for node in problem.nodes}
    candidates = set(chance.sample(sorted(names), 90))
    before = value_without(problem, ())
    held = set().union(*holdings(problem).values())
    n_free = len(candidates - held)  # named one by one, unclaimed ones count too
    best = {0: 0.0}  # nodes given by the trainers so far -> least cost
    for owner in problem.trainers:
        may_go = [name for name in in_order(problem, owner) if name in candidates]
        costs = [before - value_without(problem, may_go[:n]) for n in range(len(may_go) + 1)]
        reached: dict[int, float] = {}
        for given, cost in best.items():
            for n, more in enumerate(costs):
                reached[given + n] = min(reached.get(given + n, math.inf), cost + more)
        best = reached
    for n_nodes in (0, 1, n_free, n_free + 1, n_free + 20, n_free + max(best)):
        victims = choose_victims(problem, n_nodes, candidates=candidates)
        assert set(victims.nodes) <= candidates
        assert len(victims.nodes) == n_nodes
        expected = best[max(n_nodes - n_free, 0)]
        assert victims.cost == pytest.approx(expected, rel=1e-9, abs=1e-7)
        assert victims.cost == pytest.approx(
            before - value_without(problem, victims.nodes), rel=1e-9, abs=1e-7
        )


def test_unheld_nodes_go_first_those_that_leave_soonest() -> None:
    ends = {"a": None, "b": 30.0, "c": 10.0, "d": 5.0}
    nodes = tuple(
        ProblemNode(name=name, expected_remaining_s=end, has_pilot=True)
        for name, end in ends.items()
    )
    problem = Problem(nodes=nodes, trainers=(trainer("t1", ("d",)),), t_fwd_s=10.0, p_jmax=1)
    victims = choose_victims(problem, 2)
    assert victims.nodes == ("c", "b")
    assert victims.cost == 0.0
    assert victims.sizes_after == {"t1": 1}


def test_nodes_without_a_pilot_are_no_victims() -> None:
    nodes = (ProblemNode(name="a"), ProblemNode(name="b", has_pilot=True))
    problem = Problem(nodes=nodes, trainers=(), t_fwd_s=10.0, p_jmax=1)
    assert choose_victims(problem, 1).nodes == ("b",)
    with pytest.raises(ProblemError, match="BFT-3060"):
        choose_victims(problem, 2)


def test_a_trainer_below_n_min_is_parked_and_frees_the_rest() -> None:
    names = ("a", "b", "c", "d")
    problem = Problem(
        nodes=tuple(ProblemNode(name=name) for name in names),
        trainers=(trainer("t1", names, n_min=4),),
        t_fwd_s=10.0,
        p_jmax=1,
    )
    victims = choose_victims(problem, 1)
    assert (victims.nodes, victims.freed) == (("a",), ("b", "c", "d"))
    assert (victims.parked, victims.sizes_after) == (("t1",), {"t1": 0})
    assert victims.cost == pytest.approx(10.0 * 3.0 + 3.0 * 1.0)


def test_ties_touch_few_trainers_and_later_ones() -> None:
    flat = {"curve": Curve(sizes=(1,), samples_per_s=(5.0,)), "rescale_down_s": 0.0}
    held = {f"t{j}": tuple(f"t{j}n{i}" for i in range(4)) for j in range(3)}
    problem = Problem(
        nodes=tuple(ProblemNode(name=name) for names in held.values() for name in names),
        trainers=tuple(trainer(name, nodes, **flat) for name, nodes in held.items()),
        t_fwd_s=10.0,
        p_jmax=3,
    )
    assert choose_victims(problem, 3).sizes_after == {"t0": 4, "t1": 4, "t2": 1}
    assert choose_victims(problem, 5).sizes_after == {"t0": 4, "t1": 2, "t2": 1}


def test_starting_nodes_go_before_settled_ones() -> None:
    ends = {"a": 1.0, "b": 900.0, "c": 5.0}
    nodes = tuple(ProblemNode(name=name, expected_remaining_s=end) for name, end in ends.items())
    problem = Problem(
        nodes=nodes,
        trainers=(trainer("t1", tuple(ends), settled=("a", "c")),),
        t_fwd_s=10.0,
        p_jmax=1,
    )
    assert choose_victims(problem, 1).nodes == ("b",)
    assert choose_victims(problem, 2).nodes == ("b", "a")


def test_wrong_requests_are_refused_by_name() -> None:
    problem = Problem(nodes=(ProblemNode(name="a"),), trainers=(), t_fwd_s=1.0, p_jmax=0)
    for n_nodes in (-1, 2):
        with pytest.raises(ProblemError, match="BFT-3060"):
            choose_victims(problem, n_nodes)
    with pytest.raises(ProblemError, match=r"BFT-3061.*zz"):
        choose_victims(problem, 1, candidates=["zz"])
