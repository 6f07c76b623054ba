"""What users are told about limits and fair share."""

from __future__ import annotations

from bftrainer.daemon.explain.sizes import explain_trainer
from bftrainer.model.decision import Memory, Settings
from bftrainer.model.fairness import Limits, Usage, Used
from bftrainer.model.trainer import TrainerRecord
from tests.support.snapshots import T0, Fold, idle_nodes, record_of, snapshot

SIX = idle_nodes(6)


def told(
    settings: Settings, queue: list[TrainerRecord], memory: Memory | None = None
) -> dict[str, str]:
    fold = Fold(settings=settings, memory=memory or Memory())
    plan = fold.decide(snapshot(SIX), trainers=queue)
    sizes = {one.trainer_id: 0 for one in queue}
    for trainer_id in plan.assignment.values():
        sizes[trainer_id] += 1
    return {
        one.trainer_id: " ".join(
            explain_trainer(one, plan, settings, queue, SIX, sizes[one.trainer_id])
        )
        for one in queue
    }


def test_a_limit_makes_a_trainer_wait_or_small_or_never_start() -> None:
    limits = Limits(by_user={"ann": 3}, by_account={"x": 1})
    settings = Settings(reserve_nodes_per_type=0, limits=limits)
    queue = [
        record_of("ann", "t1", n_min=2),
        record_of("ann", "t2", n_min=2),
        record_of("ann", "t3", n_min=4),
        record_of("bob", "t4", account="x"),
    ]
    said = told(settings, queue)
    full = "The trainers of user ann have 3 nodes, and the policy allows 3 at once"
    assert said["t1"].startswith(full)
    assert said["t2"] == f"{full} (max_nodes_by_user)."
    assert said["t3"] == (
        "It cannot run: it needs 4 nodes (n_min) and the policy allows user ann 3 at once"
        " (max_nodes_by_user)."
    )
    assert "The trainers of account x have 1 node, and" in said["t4"]
    assert "One node more" not in said["t4"]


def test_fair_share_names_who_used_what_and_when_the_user_comes_first() -> None:
    settings = Settings(reserve_nodes_per_type=0, p_jmax=1, fair_share_half_life_s=86400.0)
    used = {"": {"ann": Used(amount=36_000.0, at_s=T0), "bob": Used(amount=3_600.0, at_s=T0)}}
    busy = Used(amount=36_000.0, at_s=T0)
    memory = Memory(usage=Usage(at_s=T0, node_s=used, busy_s=busy))
    said = told(
        settings, [record_of("ann", "t1"), record_of("bob", "t2"), record_of("bob", "t3")], memory
    )
    assert said["t1"] == (
        "It is the turn of others by fair share: user ann has used 10.0 node-hours, those who have"
        " nodes 1.0 to 1.0; half is forgotten in 24 h. At the latest in 38.4 h ann comes first."
    )
    assert "The pool has 6 nodes" in said["t2"]
    assert said["t3"].startswith("It is the turn of others by fair share: user bob has used 1.0")


def test_without_either_nothing_is_said_of_them() -> None:
    said = told(
        Settings(reserve_nodes_per_type=0, p_jmax=1),
        [record_of("ann", "t1"), record_of("bob", "t2")],
    )
    assert (
        said["t2"] == "It is number 2 in the queue and the policy runs 1 trainer at once (p_jmax)."
    )
