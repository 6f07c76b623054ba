"""Which nodes each trainer may have, and who waits for nodes that there are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from bftrainer.daemon.explain.sizes import explain_trainer
from bftrainer.model.cluster import Node, NodeState
from bftrainer.model.decision import Plan, Settings
from bftrainer.model.trainer import TrainerRecord
from tests.support.snapshots import Fold, held, node, record, snapshot, with_state

SETTINGS = Settings(reserve_nodes_per_type=0)


def nodes(*groups: tuple[int, str, str]) -> tuple[Node, ...]:
    """So many nodes of a type with features, one group after the other."""
    found: list[Node] = []
    for count, node_type, features in groups:
        gpus = int(node_type.rpartition(":")[2]) if node_type.startswith("gpu") else 0
        for _ in range(count):
            name = f"n{len(found) + 1:03}"
            has = tuple(filter(None, features.split(",")))
            found.append(node(name, node_type=node_type, gpus=gpus, features=has))
    return tuple(found)


def asking(
    trainer_id: str, gres: str = "", constraint: str = "", *, n_min: int = 1, n_max: int = 64
) -> TrainerRecord:
    plain = record(trainer_id, n_min=n_min, n_max=n_max)
    return replace(plain, spec=replace(plain.spec, gres=gres, constraint=constraint))


def sizes_by_type(plan: Plan, seen: Sequence[Node]) -> Mapping[str, dict[str, int]]:
    kind_of = {one.name: ",".join((one.node_type, *one.features)) for one in seen}
    found: dict[str, dict[str, int]] = {}
    for name, trainer_id in plan.assignment.items():
        own = found.setdefault(trainer_id, {})
        own[kind_of[name]] = own.get(kind_of[name], 0) + 1
    return found


THREE = nodes((3, "gpu:a100:4", ""), (4, "gpu:v100:2", ""), (5, "cpu", ""))


def test_one_trainer_has_nodes_of_one_type() -> None:
    plan = Fold().decide(snapshot(THREE), trainers=[asking("t1")])
    assert sizes_by_type(plan, THREE) == {"t1": {"cpu": 5}}


def test_a_trainer_that_runs_stays_with_its_type() -> None:
    fold = Fold()
    fold.memory = replace(fold.memory, assignment={"n001": "t1"})
    taken = with_state(THREE, NodeState.ALLOCATED, "n001")
    plan = fold.decide(snapshot(taken), held("n001"), [asking("t1")])
    assert sizes_by_type(plan, THREE) == {"t1": {"gpu:a100:4": 3}}


def test_each_request_is_met() -> None:
    trainers = [asking("t1", "gpu:a100:4"), asking("t2", "gpu:2"), asking("t3")]
    plan = Fold().decide(snapshot(THREE), trainers=trainers)
    assert sizes_by_type(plan, THREE) == {
        "t1": {"gpu:a100:4": 3}, "t2": {"gpu:v100:2": 4}, "t3": {"cpu": 5},
    }  # fmt: skip


def test_nodes_of_one_type_are_one_whatever_others_ask_of_them() -> None:
    seen = nodes((3, "gpu:a100:4", "nvlink"), (4, "gpu:a100:4", ""), (2, "cpu", ""))
    alone = Fold()
    anything = asking("t1", n_min=5)
    before = alone.decide(snapshot(seen), trainers=[anything])
    assert sizes_by_type(before, seen) == {"t1": {"gpu:a100:4,nvlink": 3, "gpu:a100:4": 4}}
    # Somebody comes who may have some of them: what it has is not taken apart.
    names = sorted(before.assignment)
    taken = with_state(seen, NodeState.ALLOCATED, *names)
    linked = asking("t2", "gpu:1", "nvlink", n_max=1)
    after = alone.decide(snapshot(taken), held(*names), [anything, linked])
    found = sizes_by_type(after, seen)
    assert found["t2"] == {"gpu:a100:4,nvlink": 1}
    assert sum(found["t1"].values()) == 6


def test_nobody_gets_what_it_does_not_ask_for() -> None:
    plan = Fold().decide(snapshot(THREE), trainers=[asking("t1", "gpu:h100:1")])
    assert plan.assignment == {}
    said = explain_trainer(
        asking("t1", "gpu:h100:1"), plan, SETTINGS, [asking("t1", "gpu:h100:1")], THREE, 0
    )
    assert said[0] == "No node of this cluster meets its request (gpu:h100:1)."


def test_too_few_nodes_of_a_type_are_told() -> None:
    wants = asking("t1", "gpu:a100:4", n_min=4)
    plan = Fold().decide(snapshot(THREE), trainers=[wants])
    said = explain_trainer(wants, plan, SETTINGS, [wants], THREE, 0)
    assert said[0] == (
        "It needs 4 nodes (n_min) of one type, and of those that it may use this cluster has 3."
    )
    busy = with_state(THREE, NodeState.ALLOCATED, "n001")
    fits = asking("t1", "gpu:a100:4", n_min=3)
    plan = Fold().decide(snapshot(busy), trainers=[fits])
    said = explain_trainer(fits, plan, SETTINGS, [fits], busy, 0)
    assert said[0] == "It needs 3 nodes (n_min) and the pool has 2 of one type that it may use."


def test_switches_and_pilots_decide_which_nodes() -> None:
    seen = tuple(
        replace(one, switch=f"s{k % 2}") for k, one in enumerate(nodes((8, "default", "")))
    )
    plan = Fold().decide(snapshot(seen), trainers=[record("t1", n_max=4), record("t2", n_max=4)])
    switch_of = {one.name: one.switch for one in seen}
    for trainer_id in ("t1", "t2"):
        own = {switch_of[n] for n, t in plan.assignment.items() if t == trainer_id}
        assert len(own) == 1
    # Two nodes are held and nobody's any more: they are taken before free ones.
    plain = nodes((6, "default", ""))
    ours = with_state(plain, NodeState.ALLOCATED, "n004", "n006")
    plan = Fold().decide(snapshot(ours), held("n004", "n006"), [record("t1", n_max=2)])
    assert set(plan.assignment) == {"n004", "n006"}
    assert plan.claims == ()


# ---- P_jmax ----------------------------------------------------------------------------


def waiting(count: int, n_min: int) -> list[TrainerRecord]:
    return [record(f"t{k}", n_min=n_min, n_max=64) for k in range(1, count + 1)]


def many(count: int) -> tuple[Node, ...]:
    return nodes((count, "default", ""))


def test_who_cannot_start_does_not_hold_up_those_behind_it() -> None:
    trainers = [*waiting(10, 64), record("last", n_max=20)]
    plan = Fold().decide(snapshot(many(20)), trainers=trainers)
    assert list(plan.assignment.values()) == ["last"] * 20
    said = explain_trainer(trainers[0], plan, SETTINGS, trainers, many(20), 0)
    assert said[0].startswith("It needs 64 nodes (n_min)")
    assert "It keeps its place" in said[1]
    said = explain_trainer(trainers[-1], plan, SETTINGS, trainers, many(20), 20)
    assert said == ("It has its maximum of 20 nodes (n_max).",)


def test_in_the_paper_it_does() -> None:
    as_in_the_paper = replace(SETTINGS, skip_unstartable=False)
    trainers = [*waiting(10, 64), record("last", n_max=20)]
    plan = Fold(settings=as_in_the_paper).decide(snapshot(many(20)), trainers=trainers)
    assert plan.assignment == {}
    said = explain_trainer(trainers[-1], plan, as_in_the_paper, trainers, many(20), 0)
    assert said[0].startswith("It is number 11 in the queue")


@pytest.mark.parametrize(("n_first", "gets_first"), [(8, 8), (12, 0)])
def test_who_was_passed_over_competes_as_soon_as_there_are_nodes(
    n_first: int, gets_first: int
) -> None:
    """The problem is again the paper's.

    Those behind keep the nodes on which their workers start where these are worth as much (ADR 44):
    with twelve of twelve nodes the first one makes no more than the second, which has begun.
    """
    settings = replace(SETTINGS, p_jmax=2)
    fold = Fold(settings=settings)
    first = record("first", n_min=n_first, n_max=16)
    others = [record("a", n_max=64), record("b", n_max=64)]
    plan = fold.decide(snapshot(many(6)), trainers=[first, *others])
    assert set(plan.assignment.values()) == {"a", "b"}
    assert len(plan.assignment) == 6
    seen = many(12)
    ours = sorted(plan.assignment)
    taken, memory = with_state(seen, NodeState.ALLOCATED, *ours), fold.memory
    # Twelve nodes now, six of them in the hands of those behind it: P_jmax is 2 again with it.
    plan = fold.decide(snapshot(taken), held(*ours), [first, *others])
    assert "b" not in plan.assignment.values()
    assert list(plan.assignment.values()).count("first") >= gets_first
    assert len(plan.assignment) == 12
    paper = Fold(settings=replace(settings, skip_unstartable=False), memory=memory)
    assert paper.decide(snapshot(taken), held(*ours), [first, *others]) == plan
    assert paper.policy.problems[-1] == fold.policy.problems[-1]
