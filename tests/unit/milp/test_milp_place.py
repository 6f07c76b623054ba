"""Which nodes: no migration, then soon-to-leave together, switch, pilot, name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings

from milp.check import find_violations, objective_value
from milp.placement.place import PlacementCost, leave_weight, place, placement_cost
from milp.pool import view_pool
from milp.problem import Allocation, Curve, Problem, ProblemNode, ProblemTrainer
from milp.solve import solve
from tests.support.placement import draw_placement, placement_gap
from tests.support.problems import problems

LINEAR = Curve(sizes=(1, 100), samples_per_s=(1.0, 100.0))


def trainer(name: str, *current: str) -> ProblemTrainer:
    return ProblemTrainer(
        trainer_id=name,
        n_min=1,
        n_max=100,
        curve=LINEAR,
        rescale_up_s=1.0,
        rescale_down_s=1.0,
        current=current,
    )


def placed(
    nodes: list[ProblemNode], trainers: list[ProblemTrainer], *sizes: int
) -> Mapping[str, set[str]]:
    problem = Problem(
        nodes=tuple(nodes), trainers=tuple(trainers), t_fwd_s=1.0, p_jmax=len(trainers)
    )
    assignment = place(problem, view_pool(problem), [[size] for size in sizes])
    groups: dict[str, set[str]] = {t.trainer_id: set() for t in trainers}
    for node, trainer_id in assignment.items():
        groups[trainer_id].add(node)
    return groups


def test_shrink_gives_up_the_nodes_that_leave_first() -> None:
    remaining = {"n1": 50.0, "n2": 10.0, "n3": None, "n4": 30.0}
    nodes = [ProblemNode(name=n, expected_remaining_s=s) for n, s in remaining.items()]
    assert placed(nodes, [trainer("t1", *remaining)], 2) == {"t1": {"n1", "n3"}}


def test_shrink_gives_up_starting_nodes_before_training_ones() -> None:
    nodes = [
        ProblemNode(name="n1", expected_remaining_s=20.0),
        ProblemNode(name="n2", expected_remaining_s=900.0),
        ProblemNode(name="n3", expected_remaining_s=500.0),
    ]
    shrinking = replace(trainer("t1", "n1", "n2", "n3"), settled=("n1", "n3"))
    assert placed(nodes, [shrinking], 2) == {"t1": {"n1", "n3"}}
    assert placed(nodes, [shrinking], 1) == {"t1": {"n3"}}


def test_freed_nodes_serve_those_that_grow() -> None:
    nodes = [ProblemNode(name=f"n{i}") for i in range(4)]
    groups = placed(nodes, [trainer("t1", "n0", "n1", "n2"), trainer("t2", "n3")], 1, 3)
    assert groups["t1"] == {"n0"}
    assert groups["t2"] == {"n1", "n2", "n3"}


def test_nodes_that_leave_soonest_stay_unused() -> None:
    nodes = [ProblemNode(name=f"n{i}", expected_remaining_s=10.0 * i) for i in range(5)]
    assert placed(nodes, [trainer("t1")], 2) == {"t1": {"n3", "n4"}}


def test_nodes_that_leave_soon_meet_in_one_trainer() -> None:
    nodes = [
        ProblemNode(name=f"n{i}", expected_remaining_s=10.0 if i % 2 else None) for i in range(8)
    ]
    groups = placed(nodes, [trainer("t1"), trainer("t2")], 4, 4)
    assert groups["t1"] in ({"n1", "n3", "n5", "n7"}, {"n0", "n2", "n4", "n6"})


def test_trainer_that_loses_a_node_anyhow_takes_the_others_that_leave() -> None:
    nodes = [
        ProblemNode(name="kept-soon", expected_remaining_s=20.0),
        ProblemNode(name="kept-long"),
        ProblemNode(name="soon", expected_remaining_s=20.0),
        ProblemNode(name="long"),
    ]
    groups = placed(nodes, [trainer("t1", "kept-soon"), trainer("t2", "kept-long")], 2, 2)
    assert groups == {"t1": {"kept-soon", "soon"}, "t2": {"kept-long", "long"}}


@pytest.mark.parametrize("switch", ["", "s"])
def test_nodes_with_pilots_come_before_those_to_be_claimed(switch: str) -> None:
    # With a switch of its own for a node that nobody needs, not all nodes are alike.
    nodes = [
        ProblemNode(name="a"),
        ProblemNode(name="b", has_pilot=True),
        ProblemNode(name="c"),
        ProblemNode(name="d", has_pilot=True),
        ProblemNode(name="far", switch=switch),
    ]
    assert placed(nodes, [trainer("t1"), trainer("t2")], 1, 1) == {"t1": {"b"}, "t2": {"d"}}
    assert placed(nodes, [trainer("t1")], 3) == {"t1": {"a", "b", "d"}}
    assert placed(nodes, [trainer("t1", "a", "b")], 1) == {"t1": {"b"}}


def test_few_switches_per_trainer() -> None:
    nodes = [ProblemNode(name=f"n{i}", switch=f"s{i % 2}") for i in range(8)]
    groups = placed(nodes, [trainer("t1", "n1"), trainer("t2")], 3, 4)
    assert groups["t1"] == {"n1", "n3", "n5"}
    assert groups["t2"] == {"n0", "n2", "n4", "n6"}


def test_names_decide_last() -> None:
    nodes = [ProblemNode(name=name) for name in ("c", "a", "b")]
    assert placed(nodes, [trainer("t1")], 2) == {"t1": {"a", "b"}}


@settings(max_examples=60, deadline=None)
@given(problems(max_nodes=9, max_trainers=4, classes="ab"))
def test_order_of_the_nodes_in_the_problem_does_not_matter(problem: Problem) -> None:
    turned = Problem(
        nodes=tuple(reversed(problem.nodes)),
        trainers=problem.trainers,
        t_fwd_s=problem.t_fwd_s,
        p_jmax=problem.p_jmax,
        objective=problem.objective,
    )
    if len(view_pool(problem).names) == 1:
        assert dict(solve(turned).assignment) == dict(solve(problem).assignment)


def test_cost_by_hand() -> None:
    nodes = (
        ProblemNode(name="a", expected_remaining_s=30.0, switch="s", has_pilot=True),
        ProblemNode(name="b", expected_remaining_s=30.0, switch="s"),
        ProblemNode(name="c", switch="t"),
        ProblemNode(name="d", expected_remaining_s=90.0, switch="t", has_pilot=True),
    )
    trainers = (
        replace(trainer("t1", "d", "gone"), settled=("d", "gone")),
        trainer("t2"),
    )
    problem = Problem(nodes=nodes, trainers=trainers, t_fwd_s=10.0, p_jmax=2)
    cost = placement_cost(problem, {"a": "t1", "b": "t1", "c": "t2"})
    assert cost == PlacementCost(
        settled_given_up=1, disturbances=0.25, leaving=0.5, switches=2, claims=2
    )
    both = placement_cost(problem, {"a": "t1", "d": "t1", "b": "t2"})
    assert both.disturbances == pytest.approx(0.25 + 0.1 + 0.25)
    assert (both.settled_given_up, both.switches, both.claims) == (0, 3, 1)
    assert cost > both  # settled nodes decide first


def test_what_leaves_now_weighs_most_and_what_stays_nothing() -> None:
    ends = [None, float("inf"), 1e6, 60.0, 0.0, -5.0]
    weights = [leave_weight(end, 60.0) for end in ends]
    assert weights == sorted(weights)
    assert weights[:2] == [0.0, 0.0]
    assert weights[3:] == [0.5, 1.0, 1.0]
    assert leave_weight(1.0, 0.0) == 0.5  # a problem without forward time has one second


def test_a_block_that_leaves_at_once_goes_to_one_trainer() -> None:
    # Endless nodes are short: whoever needs most does without, from one block.
    nodes = [
        ProblemNode(name=f"n{i}", expected_remaining_s=500.0 if i < 5 else 40.0 + i)
        for i in range(10)
    ]
    nodes += [ProblemNode(name=f"x{i}") for i in range(3)]
    groups = placed(nodes, [trainer("t1"), trainer("t2")], 5, 3)
    assert groups == {"t1": {f"n{i}" for i in range(5)}, "t2": {"x0", "x1", "x2"}}


def test_a_shrinking_trainer_leaves_whole_switches() -> None:
    nodes = [ProblemNode(name=f"n{i}", switch="big" if i % 3 else "small") for i in range(9)]
    groups = placed(nodes, [trainer("t1", *(node.name for node in nodes))], 6)
    assert groups == {"t1": {"n1", "n2", "n4", "n5", "n7", "n8"}}


def test_trainers_exchange_nodes_to_leave_a_switch() -> None:
    nodes = [ProblemNode(name=f"n{i:02}", switch=f"s{i // 4}") for i in range(12)]
    groups = placed(nodes, [trainer("t1"), trainer("t2"), trainer("t3")], 4, 4, 4)
    switches = {node.name: node.switch for node in nodes}
    for names in groups.values():
        assert len({switches[name] for name in names}) == 1


def test_a_split_over_classes_is_kept() -> None:
    nodes = tuple(
        ProblemNode(name=f"{kind}{i}", eligibility=kind, switch=f"s{i % 2}")
        for kind in "ab"
        for i in range(5)
    )
    mixed = replace(trainer("t1", "a0", "b0"), mixes_classes=True, eligible=("a", "b"))
    shrinks = replace(
        trainer("t3", "a1", "a2", "b1", "b2"), mixes_classes=True, eligible=("a", "b")
    )
    only_a = replace(trainer("t2"), eligible=("a",))
    problem = Problem(nodes=nodes, trainers=(mixed, only_a, shrinks), t_fwd_s=1.0, p_jmax=3)
    pool = view_pool(problem)
    k = {name[0]: pool.class_of[name] for name in ("a0", "b0")}
    split = [[0, 0], [0, 0], [0, 0]]
    split[0][k["a"]], split[0][k["b"]] = 2, 3
    split[1][k["a"]] = 1
    split[2][k["a"]], split[2][k["b"]] = 1, 1
    assignment = place(problem, pool, split)
    counts = {
        (trainer_id, kind): sum(
            owner == trainer_id and name[0] == kind for name, owner in assignment.items()
        )
        for trainer_id in ("t1", "t2", "t3")
        for kind in "ab"
    }
    assert counts == {
        ("t1", "a"): 2,
        ("t1", "b"): 3,
        ("t2", "a"): 1,
        ("t2", "b"): 0,
        ("t3", "a"): 1,
        ("t3", "b"): 1,
    }
    value = objective_value(problem, {"t1": 5, "t2": 1, "t3": 2})
    allocation = Allocation(assignment=assignment, objective=value, node_price=0.0)
    assert find_violations(problem, allocation) == []


def judge(problem: Problem, sizes: list[int]) -> dict[str, str]:
    """Place, and check that the map has the sizes and breaks no rule."""
    assignment = place(problem, view_pool(problem), [[size] for size in sizes])
    by_trainer = dict(zip([t.trainer_id for t in problem.trainers], sizes, strict=True))
    value = objective_value(problem, by_trainer)
    allocation = Allocation(assignment=assignment, objective=value, node_price=0.0)
    assert find_violations(problem, allocation) == []
    assert allocation.sizes() == {name: size for name, size in by_trainer.items() if size}
    return assignment


@pytest.mark.parametrize("seed", range(200))
def test_every_map_has_the_sizes_and_moves_nobody(seed: int) -> None:
    problem, sizes = draw_placement(seed)
    judge(problem, sizes)


def test_large_pools_are_placed_by_the_same_rules() -> None:
    ends = [None, 60.0, 60.0, 900.0]
    nodes = tuple(
        ProblemNode(
            name=f"n{i:03}",
            switch=f"s{i // 18:02}",
            expected_remaining_s=ends[i // 36 % 4],
            has_pilot=i % 2 == 0,
        )
        for i in range(400)
    )
    names = [node.name for node in nodes]
    trainers = [trainer(f"t{j}", *names[j * 25 : j * 25 + 20]) for j in range(12)]
    problem = Problem(nodes=nodes, trainers=tuple(trainers), t_fwd_s=60.0, p_jmax=12)
    assignment = judge(problem, [5 if j % 3 == 0 else 40 for j in range(12)])
    # Beside it: keep and take in the order of the names.
    by_name: dict[str, str] = {}
    for t, size in zip(trainers, [5 if j % 3 == 0 else 40 for j in range(12)], strict=True):
        by_name |= dict.fromkeys(t.current[:size], t.trainer_id)
    for t in trainers[1::3] + trainers[2::3]:
        free = [name for name in names if name not in by_name and name not in t.current]
        by_name |= dict.fromkeys(free[:20], t.trainer_id)
    cost, plain = placement_cost(problem, assignment), placement_cost(problem, by_name)
    assert sorted(Counter(by_name.values()).items()) == sorted(Counter(assignment.values()).items())
    assert cost.disturbances < 0.85 * plain.disturbances
    assert cost.switches < plain.switches


def test_close_to_the_optimum_of_the_rule() -> None:
    found, least, n_optimal = [0.0] * 5, [0.0] * 5, 0
    for seed in (0, 3, 4, 7, 8, 11, 12, 14, 19, 23, 25, 27, 30):
        problem, sizes = draw_placement(seed)
        gap = placement_gap(problem, judge(problem, sizes))
        assert gap.is_proven
        # What the model calls least is no more than what was found.
        assert all(one <= two + 1e-6 for one, two in zip(gap.least, gap.found, strict=True))
        found = [one + two for one, two in zip(found, gap.found, strict=True)]
        least = [one + two for one, two in zip(least, gap.least, strict=True)]
        n_optimal += gap.is_optimal()
    assert found[0] == least[0]
    assert found[1] <= 1.05 * least[1]  # disturbances
    assert found[3] <= 1.10 * least[3]  # switches
    assert n_optimal >= 6
