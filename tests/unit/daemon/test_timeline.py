"""The timeline: what a reader pieces together is what the decisions saw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given as drawn
from hypothesis import strategies as st

from bftrainer.daemon.uses import FILE_NAME, UsesOfNodes
from bftrainer.model.cluster import NodeState
from bftrainer.model.decision import PoolNode
from bftrainer.model.reports import day_of
from bftrainer.model.timeline import MOST_AWAY_S, NodeUse, NodeUses, TimelineView, pieced
from tests.support.snapshots import T0, pending
from tests.support.timelines import PLAN, input_of, named, nodes, pilot, trained, uses_now

NAMES = ("n1", "n2", "n3")


def test_every_use_is_told() -> None:
    fold = NodeUses()
    allocated = NodeState.ALLOCATED
    seen = nodes(
        **dict.fromkeys(("trains", "starts", "waits", "leaves", "silent", "job"), allocated),
        free=NodeState.IDLE,
        kept=NodeState.PLANNED,
        down=NodeState.DOWN,
        ending=NodeState.COMPLETING,
    )
    given = input_of(
        seen,
        pilot("trains"),
        pilot("starts", is_held=False),
        pilot("waits"),
        replace(pilot("leaves"), is_leaving=True),
        replace(pilot("silent"), is_silent=True),
        training={"trains": "t1", "leaves": "t1", "silent": "t2"},
    )
    plan = replace(PLAN, assignment={"trains": "t1", "starts": "t2"}, reserve=("kept",))
    assert fold.saw(given, plan)
    assert uses_now(fold.timeline(1)) == {
        "trains": (NodeUse.TRAINING, "t1"),
        "starts": (NodeUse.STARTING, "t2"),
        "waits": (NodeUse.HELD, ""),
        "leaves": (NodeUse.LEAVING, "t1"),
        "silent": (NodeUse.UNREACHABLE, "t2"),
        "job": (NodeUse.ORDINARY, ""),
        "free": (NodeUse.IDLE, ""),
        "kept": (NodeUse.RESERVE, ""),
        "down": (NodeUse.UNAVAILABLE, ""),
        "ending": (NodeUse.ORDINARY, ""),
    }


def test_what_is_to_come_is_told() -> None:
    job = pending("7", 2, start_s=T0 + 60, planned=("n2", "gone"))
    seen = replace(nodes(n1=NodeState.ALLOCATED, n2=NodeState.IDLE), jobs=(job,))
    pool = PoolNode(name="n1", node_type="", gpus=0, usable_until_s=T0 + 300, pilot_id="p-n1")
    fold = NodeUses()
    fold.saw(input_of(seen, pilot("n1")), replace(PLAN, assignment={"n1": "t1"}, pool=(pool,)))
    assert [(p.node, p.trainer_id, p.from_s, p.until_s) for p in fold.timeline(1).planned] == [
        (0, "t1", 0.0, T0 + 300),
        (1, "", T0 + 60, T0 + 660),
    ]


def test_a_poll_that_saw_nothing_changes_nothing() -> None:
    fold = NodeUses()
    fold.saw(input_of(nodes(n1=NodeState.IDLE)), PLAN)
    before = fold.timeline(1)
    unread = replace(nodes(), nodes=None)
    assert not fold.saw(input_of(unread, at_s=T0 + 60), PLAN)
    assert fold.timeline(1) == before


def test_a_node_that_is_gone_is_unavailable() -> None:
    fold = NodeUses()
    fold.saw(input_of(nodes(n1=NodeState.IDLE, n2=NodeState.IDLE)), PLAN)
    fold.saw(input_of(nodes(n2=NodeState.IDLE), at_s=T0 + 1), PLAN)
    assert uses_now(fold.timeline(1))["n1"] == (NodeUse.UNAVAILABLE, "")


STATES = st.sampled_from([NodeState.IDLE, NodeState.ALLOCATED, NodeState.DOWN])
STEPS = st.lists(
    st.tuples(st.floats(0.0, 50.0), st.dictionaries(st.sampled_from(NAMES), STATES, min_size=1)),
    min_size=1,
    max_size=30,
)


@drawn(steps=STEPS, keep_s=st.sampled_from([10.0, 1e9]), most=st.sampled_from([3, 1000]))
def test_readers_of_all_and_of_news_see_the_same(
    steps: list[tuple[float, dict[str, NodeState]]], keep_s: float, most: int
) -> None:
    fold, at_s = NodeUses(keep_s=keep_s, most=most), T0
    known = list[tuple[int, str]]()
    seen, states = None, dict[str, NodeUse]()
    for passed_s, changed in steps:
        at_s += passed_s
        fold.saw(input_of(nodes(**changed), at_s=at_s), PLAN)
        whole, news = fold.timeline(1), fold.timeline(1, seen)
        states = {**dict.fromkeys(states, NodeUse.UNAVAILABLE), **uses_of(changed)}
        assert {n: use for n, (use, _) in uses_now(whole).items()} == states
        known = pieced(known, news)
        assert named(news, known) == uses_now(whole)
        assert all(whole.since_s <= change[0] <= at_s for change in whole.changes)
        assert len(whole.changes) <= most
        seen = whole.change


def test_a_day_has_the_time_without_ordinary_jobs_and_what_of_it_trained() -> None:
    fold, midnight_s = NodeUses(zone=lambda: "UTC"), T0 - T0 % 86_400 + 86_400
    for at_s, who in ((-200.0, ""), (-100.0, "t1"), (-40.0, "t1"), (60.0, "")):
        fold.saw(trained(midnight_s + at_s, n1=who, n2="t2"), PLAN)
    fold.saw(input_of(nodes(n1=NodeState.DOWN, n2=NodeState.ALLOCATED), at_s=midnight_s + 70), PLAN)
    fold.saw(input_of(nodes(n1=NodeState.IDLE), at_s=midnight_s + 1000), PLAN)
    fold.saw(input_of(nodes(n1=NodeState.IDLE), at_s=midnight_s + 1001), PLAN)
    before, after = day_of(midnight_s - 1, "UTC"), day_of(midnight_s, "UTC")
    # A span counts for the day in which it began.
    assert fold.timeline(1).days == ((before, 520.0, 420.0), (after, 21.0, 10.0))


def test_the_next_daemon_goes_on_where_this_one_ended(tmp_path: Path) -> None:
    file, first = tmp_path / FILE_NAME, UsesOfNodes(lambda: "UTC")
    first.saw(trained(T0, n1="t1", n2=""), PLAN)
    first.saw(trained(T0 + 30.0, n1="t1", n2="t2"), PLAN)
    first.keep(file)
    kept, before = file.read_bytes(), first.timeline(None)

    def heir(away_s: float) -> tuple[UsesOfNodes, TimelineView]:
        found = UsesOfNodes(lambda: "UTC")
        found.incarnation = 1
        found.take_over(file, T0 + 30.0 + away_s)
        found.saw(trained(T0 + 30.0 + away_s, n1="t1", n2=""), PLAN)
        return found, found.timeline(None)

    second, after = heir(60.0)
    assert (after.since_s, after.nodes, after.base) == (T0, before.nodes, before.base)
    assert after.changes[:-1] == before.changes
    assert after.changes[-1][0] == T0 + 90.0
    assert after.days == before.days == ((day_of(T0, "UTC"), 60.0, 30.0),), "it was away since"
    second.saw(trained(T0 + 100.0, n1="t1", n2=""), PLAN)
    assert second.timeline(None).days == ((day_of(T0, "UTC"), 80.0, 40.0),)
    assert not file.exists(), "one that is killed leaves none, and an older one would be wrong"
    file.write_bytes(kept)
    _, late = heir(MOST_AWAY_S + 1.0)
    assert (late.since_s, late.days) == (T0 + 31.0 + MOST_AWAY_S, before.days)
    unknown = kept.replace(b'"base": [[', b'"base": [[9')
    nobody = kept.replace(b'"nodes": [', b'"nodes": [], "gone": [')
    for spoiled in (b"", b"[]", kept[: len(kept) // 2], unknown, nobody):
        file.write_bytes(spoiled)
        assert heir(60.0)[1].since_s == T0 + 90.0


def uses_of(states: dict[str, NodeState]) -> dict[str, NodeUse]:
    told = {
        NodeState.IDLE: NodeUse.IDLE,
        NodeState.ALLOCATED: NodeUse.ORDINARY,
        NodeState.DOWN: NodeUse.UNAVAILABLE,
    }
    return {name: told[state] for name, state in states.items()}
