"""Limits of users, accounts, partitions, types and shares of the idle nodes, in decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import AllocationPolicy, load_policy, policy_names
from bftrainer.model.cluster import NodeState
from bftrainer.model.decision import DecisionInput, Memory, Plan, Settings
from bftrainer.model.fairness import Limits, Usage, Used
from bftrainer.model.trainer import TrainerRecord
from tests.support.snapshots import (
    T0,
    Fold,
    held,
    idle_nodes,
    node,
    record,
    record_of,
    released,
    snapshot,
)

TEN = idle_nodes(10)
NAMES = [one.name for one in TEN]


def settings_with(p_jmax: int = 10, **limits: object) -> Settings:
    return Settings(
        reserve_nodes_per_type=0,
        p_jmax=p_jmax,
        limits=Limits(**limits),  # type: ignore[arg-type]  # of its fields
    )


def decided(
    trainers: list[TrainerRecord],
    settings: Settings,
    policy: AllocationPolicy,
    training: Mapping[str, str] | None = None,
) -> Plan:
    given = DecisionInput(
        now_s=T0,
        snapshot=snapshot(TEN),
        is_new_snapshot=True,
        pilots=(),
        trainers=tuple(trainers),
        settings=settings,
        memory=Memory(assignment=training or {}),
        training=training or {},
    )
    return decide(given, policy)


def sizes_by(plan: Plan, trainers: list[TrainerRecord], field: str) -> Counter[str]:
    whose = {one.trainer_id: str(getattr(one.spec, field)) for one in trainers}
    return Counter(whose[one] for one in plan.assignment.values())


@pytest.mark.parametrize("name", [n for n in policy_names() if not n.startswith("example")])
@pytest.mark.parametrize("is_running", [False, True])
def test_every_policy_keeps_within_the_limits(name: str, is_running: bool) -> None:
    trainers = [
        record_of("ann", "t1"),
        record_of("ann", "t2"),
        record_of("bob", "t3"),
        record_of("ann", "t4", account="x"),
    ]
    settings = settings_with(by_user={"ann": 4}, by_account={"*": 6, "x": 1})
    held_by = {"ann": ["t1", "t2", "t4"], "bob": ["t3"]}
    order = [one for own in held_by.values() for one in own]
    training = {n: order[i % 4] for i, n in enumerate(NAMES)} if is_running else {}
    plan = decided(trainers, settings, load_policy(name), training)
    by_user = sizes_by(plan, trainers, "user")
    by_account = sizes_by(plan, trainers, "account")
    assert by_user["ann"] <= 4
    assert by_account["x"] <= 1
    assert by_account[""] <= 6
    assert plan.trouble == ""


@pytest.mark.parametrize("name", [n for n in policy_names() if not n.startswith("example")])
def test_every_policy_lets_those_run_whose_turn_it_is(name: str) -> None:
    trainers = [record_of("ann", f"t{j}", n_min=3) for j in range(1, 6)] + [
        record_of("bob", "t6", n_min=2)
    ]
    used = {"": {"ann": Used(amount=1e5, at_s=T0), "cat": Used(amount=1e4, at_s=T0)}}
    settings = replace(settings_with(p_jmax=2), fair_share_half_life_s=3600.0)
    given = DecisionInput(
        now_s=T0,
        snapshot=snapshot(TEN),
        is_new_snapshot=True,
        pilots=(),
        trainers=tuple(trainers),
        settings=settings,
        memory=Memory(usage=Usage(at_s=T0, node_s=used, busy_s=Used(amount=1e4, at_s=T0))),
        training=dict.fromkeys(NAMES[:3], "t5"),
    )
    plan = decide(given, load_policy(name))
    assert plan.trouble == ""
    # Bob's before all, and of ann's the first submitted, though another one trains.
    assert set(plan.assignment.values()) <= {"t1", "t6"}
    if name == "milp":
        assert set(plan.assignment.values()) == {"t1", "t6"}
        assert plan.order == ("t1", "t6")
        assert plan.wake_at_s == T0 + 72.0


def test_what_a_full_user_leaves_goes_to_others() -> None:
    trainers = [record_of("ann", "t1"), record_of("ann", "t2"), record_of("bob", "t3")]
    for name in ("milp", "equal-share", "fcfs-greedy"):
        plan = decided(trainers, settings_with(by_user={"*": 3, "bob": 7}), load_policy(name))
        assert sizes_by(plan, trainers, "user") == {"ann": 3, "bob": 7}, name


def test_who_has_no_room_takes_no_place_in_the_queue() -> None:
    trainers = [record_of("ann", f"t{j}", n_min=2) for j in range(1, 6)] + [record_of("bob", "t6")]
    plan = decided(trainers, settings_with(p_jmax=3, by_user={"ann": 4}), load_policy("milp"))
    assert sizes_by(plan, trainers, "user") == {"ann": 4, "bob": 6}
    assert plan.order == ("t1", "t2", "t6")


def test_a_lowered_limit_takes_nodes_though_the_rescale_budget_is_used_up() -> None:
    trainers = [record_of("ann", "t1"), record_of("bob", "t2")]
    training = dict.fromkeys(NAMES[:6], "t1")
    given = DecisionInput(
        now_s=T0,
        snapshot=snapshot(TEN),
        is_new_snapshot=True,
        pilots=(),
        trainers=tuple(trainers),
        settings=settings_with(by_user={"ann": 6, "bob": 1}),
        memory=Memory(assignment=training),
        training=training,
        settled_until_s={"t1": T0 + 100.0},
    )
    policy = load_policy("milp")
    kept = Counter(decide(given, policy).assignment.values())
    assert kept == {"t1": 6, "t2": 1}
    lowered = replace(given, settings=settings_with(by_user={"ann": 2}))
    assert Counter(decide(lowered, policy).assignment.values()) == {"t1": 2, "t2": 8}


def test_of_a_type_and_a_partition() -> None:
    nodes = tuple(
        node(f"n{i}", node_type="big" if i < 4 else "small", partitions=("p",) if i % 2 else ("q",))
        for i in range(10)
    )
    trainers = [record("t1"), record("t2")]
    fold = Fold(settings=settings_with(by_type={"big": 1}, by_partition={"*": 3, "q": 0}))
    plan = fold.decide(snapshot(nodes), trainers=trainers)
    assert len(plan.pool) == 3
    assert Counter(n.node_type for n in plan.pool)["big"] <= 1
    assert "of type big (max_nodes_by_type)" in " ".join(plan.not_used.values())
    assert "The policy allows 0 nodes at most of partition q (max_nodes_by_partition)." in set(
        plan.not_used.values()
    )


def test_a_share_of_the_idle_nodes_stays_free_as_their_number_changes() -> None:
    fold = Fold(settings=settings_with(share_of_idle=0.7))
    trainers = [record("t1", n_max=10)]
    plan = fold.decide(snapshot(TEN), trainers=trainers)
    assert len(plan.claims) == 7
    ours = sorted(plan.assignment)
    taken = set(NAMES) - set(ours)  # ordinary jobs take the three that were left
    seen = snapshot(
        tuple(replace(n, state=NodeState.ALLOCATED) for n in TEN),
    )
    plan = fold.decide(seen, held(*ours), trainers, training=dict.fromkeys(ours, "t1"))
    assert len(taken) == 3
    assert len(released(plan)) == 3  # 4 of 7
    assert "70% of the idle nodes" in plan.releases[0].reason
    left = [name for name in ours if name not in released(plan)]
    seen = snapshot(
        tuple(n if n.name in released(plan) else replace(n, state=NodeState.ALLOCATED) for n in TEN)
    )
    again = fold.decide(seen, held(*left), trainers, training=dict.fromkeys(left, "t1"))
    assert (again.releases, again.claims) == ((), ())
