"""Nodes that lend their GPUs one by one, as people see them: one node, with what has its GPUs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from bftrainer.api.documents import document, encode, view_of
from bftrainer.api.page import parts as page_parts
from bftrainer.api.privacy import Sight
from bftrainer.api.service import Peer
from bftrainer.cli import status
from bftrainer.cli.top_panes import LETTERS, cells_of, legend
from bftrainer.daemon.node_views import LentCounts, NodeTable
from bftrainer.daemon.state import DaemonState
from bftrainer.daemon.uses import UsesOfNodes
from bftrainer.fleet.pilots.pilots import Pilot
from bftrainer.journal.projection import PilotRecord
from bftrainer.model.cluster import LentGpus, Node, NodeLeft, NodeState
from bftrainer.model.decision import DecisionInput, Memory, Plan, PoolNode, Settings
from bftrainer.model.gpu_shares import GpuCount, HeldPart, gpu_counts, shares_of, shares_text
from bftrainer.model.reports import day_of
from bftrainer.model.timeline import USES, NodeUse, NodeUses, TimelineView, UsesNote, pieced
from bftrainer.model.views import NodeView
from tests.support.parted_nodes import (
    big_site,
    lending_node,
    part_of,
    part_pilot,
    plan_of,
    seen_with,
)
from tests.support.snapshots import T0, pending
from tests.support.timelines import PLAN, input_of, nodes, trained, uses_now

SHARED = NodeUse.SHARED


# ---- counts --------------------------------------------------------------------------------


def counted(node: Node, *held_parts: HeldPart) -> GpuCount:
    [count] = gpu_counts(node, held_parts)
    return count


def test_what_no_pilot_has_and_is_not_free_is_in_use() -> None:
    begun = HeldPart(part=part_of("n1/0"), is_started=True)
    asked = HeldPart(part=part_of("n1/1"), is_started=False)
    # The node is shown with two free: the second pilot's job has not begun.
    count = counted(lending_node("n1", 2), begun, asked)
    assert (count.gpus, count.held, count.free, count.in_use, count.blocked) == (4, 2, 1, 1, 0)


def test_gpus_without_cpus_left_are_no_jobs() -> None:
    node = replace(lending_node("n1", 0), left=NodeLeft(cpus=0, gpus=3))
    count = counted(node)
    assert (count.free, count.in_use, count.blocked) == (0, 1, 3)


def test_types_are_told_apart() -> None:
    lends = (
        LentGpus(gpu_type="a100", n_gpus=4, n_free=1, cpus=4, memory_mb=0),
        LentGpus(gpu_type="", n_gpus=2, n_free=2, cpus=4, memory_mb=0),
    )
    node = replace(lending_node("n1", 0), lends=lends)
    parts = [HeldPart(part=part_of("n1/0", 2, "gpu:a100"), is_started=True)]
    typed, untyped = gpu_counts(node, parts)
    assert (typed.gpu_type, typed.held, typed.free, typed.in_use) == ("gpu:a100", 2, 1, 1)
    assert (untyped.gpu_type, untyped.held, untyped.free, untyped.in_use) == ("gpu", 0, 2, 0)


@drawn(
    n_gpus=st.integers(1, 8),
    n_free=st.integers(0, 8),
    left=st.one_of(st.none(), st.integers(0, 9)),
    parts=st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=4),
)
def test_every_gpu_is_counted_once_whatever_was_seen_when(
    n_gpus: int, n_free: int, left: int | None, parts: list[tuple[int, bool]]
) -> None:
    node = lending_node("n1", min(n_free, n_gpus), n_gpus=n_gpus)
    if left is not None:
        node = replace(node, left=NodeLeft(cpus=1, gpus=left))
    held_parts = [
        HeldPart(part=part_of(f"n1/{k}", gpus), is_started=is_started)
        for k, (gpus, is_started) in enumerate(parts)
    ]
    count = counted(node, *held_parts)
    figures = (count.held, count.free, count.in_use, count.blocked)
    assert min(figures) >= 0
    assert sum(figures) == count.gpus == n_gpus


# ---- nodes ---------------------------------------------------------------------------------


def pilot(pilot_id: str, name: str, *, gpus: int = 1, start_s: float | None = T0) -> Pilot:
    part = part_of(name, gpus) if "/" in name else None
    record = PilotRecord(
        pilot_id=pilot_id,
        node=name,
        job_id=None,
        public_key="",
        requested_s=T0,
        time_limit_s=600.0,
        owner="ada",
        part=part,
    )
    return Pilot(record=record, start_s=start_s)


def state_of(
    *pilots: Pilot, plan: Plan = PLAN, hosts: tuple[Node, ...] = (), held: tuple[str, ...] = ()
) -> DaemonState:
    by_id = {pilot.record.pilot_id: pilot for pilot in pilots}
    agents = SimpleNamespace(away={}, connected=set(held), held=dict.fromkeys(held, ""))
    state = SimpleNamespace(
        seen=SimpleNamespace(plan=plan, memory=Memory(), given=None, nodes=hosts),
        pilots=SimpleNamespace(
            pilots=by_id, by_node=lambda: {pilot.record.node: pilot for pilot in pilots}
        ),
        late=SimpleNamespace(by_node=dict),
        plane=SimpleNamespace(agents=agents),
        in_force=SimpleNamespace(settings=Settings()),
    )
    return cast("DaemonState", state)


def view(node: Node, state: DaemonState) -> NodeView:
    table = NodeTable(state, waits={}, cooling={}, slow={}, gpu_use={})
    return table.view(node)


def test_a_node_in_parts_tells_who_has_what_of_it() -> None:
    offers = [
        PoolNode(name=name, node_type="gpu:a100", gpus=1, usable_until_s=until_s)
        for name, until_s in (("n1/0", T0 + 90.0), ("n1/1", T0 + 60.0))
    ]
    plan = replace(plan_of({"n1/0": "t1", "n1/1": "t2"}), pool=tuple(offers))
    state = state_of(
        pilot("p000002", "n1/1", start_s=None),
        pilot("p000001", "n1/0"),
        plan=plan,
        held=("p000001",),
    )
    told = view(lending_node("n1", 2), state)
    assert [(p.name, p.use, p.trainer_id, p.pilot_id, p.usable_until_s) for p in told.parts] == [
        ("n1/0", "held", "t1", "p000001", T0 + 90.0),
        ("n1/1", "requested", "t2", "p000002", T0 + 60.0),
    ]
    assert (told.use, told.trainer_id, told.pilot_id) == ("held", "", "")
    assert told.usable_until_s == T0 + 60.0
    assert status.gpus_in_words(told) == "2 of 4 GPUs: t1 1, t2 1; 1 in use; 1 free"
    assert view_of(NodeView, "node", document("node", told)) == told


def test_a_pilot_without_a_trainer_and_gpus_without_cpus_are_said() -> None:
    node = replace(lending_node("n1", 0), left=NodeLeft(cpus=0, gpus=1))
    told = view(node, state_of(pilot("p000001", "n1/0", gpus=2)))
    said = "2 of 4 GPUs: without a trainer 2; 1 in use; 1 without CPUs or memory"
    assert status.gpus_in_words(told) == said


@pytest.mark.parametrize(
    ("node", "plan", "use", "reason"),
    [
        (lending_node("n1", 0), PLAN, "busy", ""),
        (lending_node("n1", 2), PLAN, "free", ""),
        (lending_node("n1", 2), plan_of({}, reserve=("n1/0", "n1/1")), "reserve", ""),
        (lending_node("n1", 2), plan_of({}, reserve=("n1/0",)), "free", ""),
        (lending_node("n1", 2), replace(PLAN, not_used={"n1": "No."}), "free", "No."),
        (
            lending_node("n1", 2),
            replace(PLAN, not_used={"n1/0": "Too short.", "n1/1": "Too short."}),
            "free",
            "Too short.",
        ),
        (lending_node("n1", 2, state=NodeState.DRAINED), PLAN, "not ours", ""),
    ],
)
def test_why_nothing_of_a_node_is_used_is_said(
    node: Node, plan: Plan, use: str, reason: str
) -> None:
    told = view(node, state_of(plan=plan))
    assert (told.use, told.reason, told.parts) == (use, reason, ())


def test_a_node_that_lends_no_more_still_shows_what_pilots_have() -> None:
    node = replace(lending_node("n1", 0, state=NodeState.DRAINED), lends=())
    told = view(node, state_of(pilot("p000001", "n1/0"), held=("p000001",)))
    assert told.use == "held"
    assert status.gpus_in_words(told) == "1 of 4 GPUs: without a trainer 1; 3 in use"


def test_a_whole_node_is_as_it_was() -> None:
    offer = PoolNode(name="n1", node_type="gpu", gpus=4, usable_until_s=T0)
    state = state_of(
        pilot("p000001", "n1"),
        plan=replace(plan_of({"n1": "t1"}), pool=(offer,)),
        held=("p000001",),
    )
    assert view(Node(name="n1", state=NodeState.ALLOCATED, gpus=4), state) == NodeView(
        name="n1",
        state="allocated",
        use="held",
        gpus=4,
        trainer_id="t1",
        pilot_id="p000001",
        usable_until_s=T0,
    )


def test_nodes_prints_a_line_for_each_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = NodeView(name="n2", state="idle", use="free", gpus=2, why_whole="Jobs do not share it.")
    parted = view(
        lending_node("n1", 1),
        state_of(pilot("p000001", "n1/0"), pilot("p000002", "n1/1"), plan=plan_of({"n1/0": "t1"})),
    )

    def printed(*views: NodeView, as_json: bool = False) -> str:
        client = SimpleNamespace(nodes=lambda: views)
        monkeypatch.setattr(status, "connect", lambda _: client)
        status.nodes.callback(socket_name=None, as_json=as_json)  # type: ignore[misc]
        return capsys.readouterr().out

    assert [line.split() for line in printed(replace(whole, why_whole="")).splitlines()] == [
        ["NODE", "TYPE", "GPUS", "STATE", "USE", "TRAINER", "PILOT", "USABLE", "REASON"],
        ["n2", "default", "2", "idle", "free", "-", "-", "-"],
    ]
    heading, *rows, last = printed(parted, whole).splitlines()
    assert len(rows) == 2
    assert "2 of 4 GPUs: t1 1, without a trainer 1; 1 in use; 1 free" in rows[0]
    assert "p000001,p000002" in rows[0]
    assert last == "as a whole: n2. Jobs do not share it."
    assert heading.startswith("NODE")
    [told] = json.loads(printed(parted, as_json=True))["nodes"]
    assert [part["name"] for part in told["parts"]] == ["n1/0", "n1/1"]
    assert told["gpu_counts"][0]["free"] == 1


def test_nodes_and_gpus_are_counted_apart() -> None:
    hosts = (lending_node("n1", 2), lending_node("n2", 4), Node(name="n3", state=NodeState.IDLE))
    state = state_of(
        pilot("p000001", "n1/0"),
        pilot("p000002", "n1/1"),
        pilot("p000003", "n1/2", gpus=2, start_s=None),
        pilot("p000004", "n2/0", start_s=None),
        pilot("p000005", "n3"),
        hosts=hosts,
        held=("p000001", "p000002", "p000005"),
    )
    assert LentCounts(state).n_nodes() == (2, 1)
    totals = LentCounts(state).totals()
    assert totals is not None
    assert (totals.gpus, totals.held, totals.requested, totals.free) == (8, 2, 3, 3)
    whole = state_of(pilot("p000005", "n3"), hosts=hosts[2:], held=("p000005",))
    assert (LentCounts(whole).n_nodes(), LentCounts(whole).totals()) == ((1, 0), None)


# ---- the timeline --------------------------------------------------------------------------


def partly_used(at_s: float = T0) -> tuple[DecisionInput, Plan]:
    """A node with a training, a starting and an ordinary GPU, and one that is left to the queue."""
    trains, starts = part_pilot("n1/0"), part_pilot("n1/1", is_held=False)
    seen = seen_with([lending_node("n1", 2)], trains)
    given = input_of(seen, trains, starts, at_s=at_s, training={"n1/0": "t1"})
    return given, plan_of({"n1/0": "t1", "n1/1": "t2"}, reserve=("n1/2",))


def told_by(fold: NodeUses, name: str = "n1") -> tuple[NodeUse, str]:
    return uses_now(fold.timeline(1))[name]


def test_a_node_in_parts_has_a_share_for_each_use() -> None:
    fold = NodeUses()
    assert fold.saw(*partly_used())
    shares = "training:t1:1,starting:t2:1,reserve::1,ordinary::1"
    assert told_by(fold) == (SHARED, shares)
    assert fold.timeline(1).nodes == ("n1",)


@pytest.mark.parametrize(
    ("node", "pilots", "shares"),
    [
        (lending_node("n1", 4, state=NodeState.IDLE), (), "idle::4"),
        (lending_node("n1", 0), (), "ordinary::4"),
        (lending_node("n1", 1, state=NodeState.DOWN), (), "unavailable::4"),
        (lending_node("n1", 0), (replace(part_pilot("n1/0"), node="n1", part=None),), "held::4"),
        (
            lending_node("n1", 0),
            (part_pilot("n1/1"), replace(part_pilot("n1/0", 2), is_leaving=True)),
            "leaving::2,held::1,ordinary::1",
        ),
    ],
)
def test_shares_are_in_the_order_of_parts(node: Node, pilots: Any, shares: str) -> None:
    fold = NodeUses()
    fold.saw(input_of(seen_with([node], *pilots), *pilots), PLAN)
    assert told_by(fold) == (SHARED, shares)


def test_a_day_counts_parts_of_nodes() -> None:
    midnight_s = T0 - T0 % 86_400
    fold = NodeUses(zone=lambda: "UTC")
    fold.saw(*partly_used(midnight_s))
    fold.passes(midnight_s + 100.0)
    # Of four GPUs one trains, three have no ordinary job.
    assert fold.timeline(1).days == ((day_of(midnight_s, "UTC"), 75.0, 25.0),)


def test_alike_parts_are_planned_together() -> None:
    pool = [
        PoolNode(name=f"n1/{k}", node_type="", gpus=1, usable_until_s=T0 + 9, pilot_id=f"p{k}")
        for k in range(3)
    ]
    assignment = {"n1/0": "t1", "n1/1": "t1", "n1/2": "t2"}
    job = replace(
        pending("7", 1, start_s=T0 + 60, planned=("n1",)), can_share=True, gpus_per_node=2
    )
    seen = replace(seen_with([lending_node("n1", 0)]), jobs=(job,))
    fold = NodeUses()
    fold.saw(input_of(seen), replace(plan_of(assignment), pool=tuple(pool)))
    told = fold.timeline(1)
    assert [(span.node, span.trainer_id, span.gpus) for span in told.planned] == [
        (0, "t1", 2),
        (0, "t2", 1),
        (0, "", 2),
    ]
    assert page_parts.planned(told)[0] == (0, "t1", 0.0, T0 + 9, 2)


def test_the_journal_and_the_next_daemon_tell_the_same(tmp_path: Path) -> None:
    notes: list[UsesNote] = []
    first = UsesOfNodes(lambda: "UTC", notes.append)
    first.saw(*partly_used())
    replayed = NodeUses()
    for note in notes:
        replayed.add(note)
    assert told_by(replayed) == uses_now(first.timeline(None))["n1"]
    file = tmp_path / "timeline.json"
    first.keep(file)
    second = UsesOfNodes(lambda: "UTC")
    second.take_over(file, T0 + 1.0)
    second.saw(*partly_used(T0 + 1.0))
    assert uses_now(second.timeline(None)) == uses_now(first.timeline(None))
    assert second.timeline(None).changes == first.timeline(None).changes  # nothing is new
    with pytest.raises(ValueError, match="shares"):
        replayed.add(replace(notes[0], changes=(("n1", "shared", "training:t1"),)))


def test_whole_nodes_are_told_byte_for_byte_as_before() -> None:
    notes: list[UsesNote] = []
    fold = UsesOfNodes(lambda: "UTC", notes.append)
    fold.saw(trained(T0, n1="t1", n2=""), PLAN)
    fold.saw(trained(T0 + 60, n1="t1", n2="t2"), PLAN)
    assert [note.changes for note in notes] == [
        (("n1", "training", "t1"), ("n2", "idle", "")),
        (("n2", "training", "t2"),),
    ]
    told = fold.timeline(None)
    assert json.dumps(encode(told.days)) == f'[["{day_of(T0, "UTC")}", 120.0, 60.0]]'
    assert json.dumps(page_parts.uses(told)["changes"]) == json.dumps(
        [[T0, 0, 0, "t1"], [T0, 1, 5, ""], [T0 + 60, 1, 0, "t2"]]
    )


def test_trainers_of_others_are_not_shown_in_shares() -> None:
    fold = NodeUses()
    fold.saw(*partly_used())
    told = fold.timeline(1)
    peer = Peer(uid=54321, user="bob", pid=1)
    sight = Sight(peer=peer, is_own=True, hidden=frozenset({"t1"}), foreign=frozenset({"t1"}))
    shown = uses_now(sight.timeline(told))["n1"]
    assert shown == (SHARED, "training::1,starting:t2:1,reserve::1,ordinary::1")
    node = view(
        lending_node("n1", 0),
        state_of(pilot("p000001", "n1/0"), plan=plan_of({"n1/0": "t1"})),
    )
    [seen] = sight.nodes([node])
    assert [part.trainer_id for part in seen.parts] == [""]


@drawn(
    shares=st.dictionaries(
        st.tuples(st.sampled_from([str(use) for use in USES]), st.sampled_from(["", "t1", "t22"])),
        st.integers(1, 99),
        max_size=5,
    )
)
def test_texts_of_shares_are_read_as_they_were_written(shares: dict[tuple[str, str], int]) -> None:
    told = shares_of(shares_text(shares))
    assert {(share.use, share.trainer_id): share.gpus for share in told} == shares


# ---- top -----------------------------------------------------------------------------------


def drawn_map(fold: NodeUses, chosen: str | None = None) -> str:
    cells = cells_of(pieced((), fold.timeline(1)), chosen)
    return "".join(LETTERS[use][0] for use, _, _ in cells)


def test_the_map_has_a_letter_for_each_gpu_between_bars() -> None:
    hosts = [
        lending_node("n1", 2),
        lending_node("n2", 4, state=NodeState.IDLE),
        Node(name="n3", state=NodeState.IDLE),
        Node(name="n4", state=NodeState.DOWN),
        lending_node("n5", 0),
    ]
    given, plan = partly_used()
    fold = NodeUses()
    fold.saw(replace(given, snapshot=replace(given.snapshot, nodes=tuple(hosts))), plan)
    assert drawn_map(fold) == "|TSr#|....|.x|####|"
    states = pieced((), fold.timeline(1))
    assert legend(states).plain == (
        "T 1 training  S 1 starting  . 5 idle  r 1 reserve  # 5 ordinary  x 1 unavailable"
        "  | 3 nodes with a letter for each GPU"
    )
    chosen = [cell for cell in cells_of(states, "t2") if cell[1]]
    assert chosen == [(USES.index("starting"), True, "t2")]


def test_the_map_of_whole_nodes_has_a_letter_for_each() -> None:
    fold = NodeUses()
    fold.saw(input_of(nodes(n1=NodeState.IDLE, n2=NodeState.DOWN)), PLAN)
    assert drawn_map(fold) == ".x"


# ---- a thousand nodes ----------------------------------------------------------------------


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions are called: what work costs, on any machine."""
    count = 0

    def count_one(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_one)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def table_calls(n_nodes: int) -> int:
    hosts = tuple([lending_node(f"n{k}", 0, n_gpus=8) for k in range(n_nodes)])
    pilots = [pilot(f"p{k:06}", f"n{k // 8}/{k % 8}") for k in range(1, 8 * n_nodes)]
    state = state_of(*pilots, hosts=hosts)

    def work() -> None:
        table = NodeTable(state, waits={}, cooling={}, slow={}, gpu_use={})
        list(map(table.view, hosts))
        LentCounts(state).totals()

    return calls_of(work)


def fold_calls(n_nodes: int) -> int:
    given, plan = big_site(n_nodes)
    return calls_of(lambda: NodeUses().saw(given, plan))


def map_calls(n_nodes: int) -> int:
    fold = NodeUses()
    fold.saw(*big_site(n_nodes))
    states = pieced((), fold.timeline(1))
    return calls_of(lambda: (cells_of(states, "t1"), legend(states)))


@pytest.mark.parametrize("cost", [table_calls, fold_calls, map_calls])
def test_four_times_the_nodes_cost_four_times_as_much(cost: Callable[[int], int]) -> None:
    for n_nodes in (20, 80):
        cost(n_nodes)  # what is worked out once
    assert cost(80) <= 4.4 * cost(20)


def test_news_of_one_part_are_as_long_on_any_site() -> None:
    def news(n_nodes: int) -> TimelineView:
        given, plan = big_site(n_nodes)
        fold = NodeUses()
        fold.saw(given, plan)
        before = fold.timeline(1)
        training = {**given.training, "n0001/3": "t7"}
        fold.saw(replace(given, now_s=T0 + 1, training=training), plan)
        return fold.timeline(1, before.change)

    small, large = news(5), news(50)
    assert small.changes == large.changes
    assert len(small.changes) == 1
