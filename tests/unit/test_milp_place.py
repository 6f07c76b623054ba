"""Which nodes: no migration, then soon-to-leave together, owner, switch, name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings

from milp.place import place
from milp.pool import view_pool
from milp.problem import Curve, Problem, ProblemNode, ProblemTrainer
from milp.solve import solve
from tests.support.problems import problems

LINEAR = Curve(sizes=(1, 100), samples_per_s=(1.0, 100.0))


def trainer(name: str, *current: str, owner: str = "") -> ProblemTrainer:
    return ProblemTrainer(
        trainer_id=name,
        n_min=1,
        n_max=100,
        curve=LINEAR,
        rescale_up_s=1.0,
        rescale_down_s=1.0,
        current=current,
        owner=owner,
    )


def placed(
    nodes: list[ProblemNode], trainers: list[ProblemTrainer], *sizes: int
) -> Mapping[str, set[str]]:
    problem = Problem(
        nodes=tuple(nodes), trainers=tuple(trainers), t_fwd_s=1.0, p_jmax=len(trainers)
    )
    assignment = place(problem, view_pool(problem), sizes, [0] * len(sizes))
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


def test_own_owner_first_then_nobodys() -> None:
    nodes = [
        ProblemNode(name="a", owner="bob"),
        ProblemNode(name="b"),
        ProblemNode(name="c", owner="eve"),
        ProblemNode(name="d", owner="ann"),
    ]
    ann, bob = trainer("t1", owner="ann"), trainer("t2", owner="bob")
    assert placed(nodes, [ann, bob], 1, 1) == {"t1": {"d"}, "t2": {"a"}}
    assert placed(nodes, [ann], 2) == {"t1": {"b", "d"}}
    assert placed(nodes, [ann], 3) == {"t1": {"a", "b", "d"}}


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
