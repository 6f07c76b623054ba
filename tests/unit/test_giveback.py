"""Which pilots go when ordinary jobs wait, and for how long their nodes stay free."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from bftrainer.decide.giveback import GiveBack, coming_back, give_back, still_held_off
from bftrainer.decide.types import Memory, PilotView, Settings
from bftrainer.poll.snapshot import Job, Node, NodeState, Snapshot
from tests.support.snapshots import (
    T0,
    held,
    idle_nodes,
    node,
    pending,
    pilot,
    running,
    snapshot,
    with_state,
)

SETTINGS = Settings(reserve_nodes_per_type=0, cycle_s=30.0)


def _busy(count: int, *busy: str) -> tuple[Node, ...]:
    return with_state(idle_nodes(count), NodeState.ALLOCATED, *busy)


def _give(
    seen: Snapshot,
    pilots: Sequence[PilotView],
    memory: Memory | None = None,
    *,
    now_s: float = T0,
) -> GiveBack:
    return give_back(seen, pilots, memory or Memory(), SETTINGS, now_s, _by_name)


def _by_name(count: int, candidates: Collection[str], gone: Collection[str]) -> list[str]:
    return sorted(candidates)[:count]


def _nodes_for(given: GiveBack) -> dict[str, set[str]]:
    """Job → the nodes released for it."""
    result: dict[str, set[str]] = {}
    for release in given.releases:
        result.setdefault(release.for_job, set()).add(release.node)
    return result


# ---- who gets something ----------------------------------------------------------------


def test_nobody_waits_nothing_is_released() -> None:
    assert _give(snapshot(_busy(2, "n1")), held("n1")).releases == ()


def test_the_head_job_gets_what_it_lacks() -> None:
    seen = snapshot(_busy(6, "n1", "n2", "n3", "n4"), [pending("7", 4)])
    given = _give(seen, held("n1", "n2", "n3", "n4"))
    assert _nodes_for(given) == {"7": {"n1", "n2"}}
    assert [r.pilot_id for r in given.releases] == ["p-n1", "p-n2"]
    assert "7" in given.releases[0].reason


def test_free_nodes_suffice() -> None:
    seen = snapshot(_busy(4, "n1", "n2"), [pending("7", 2)])
    assert _give(seen, held("n1", "n2")).releases == ()


def test_a_job_too_large_for_all_we_hold_gets_nothing() -> None:
    seen = snapshot(_busy(4, "n1", "n2", "n4"), [pending("7", 4), running("6", "n4")])
    assert _give(seen, held("n1", "n2")).releases == ()


def test_several_jobs_add_up() -> None:
    jobs = [pending("7", 2, submit_s=T0), pending("8", 1, submit_s=T0 + 1), pending("9", 9)]
    given = _give(snapshot(_busy(5, "n1", "n2", "n3", "n4"), jobs), held("n1", "n2", "n3", "n4"))
    assert _nodes_for(given) == {"7": {"n1"}, "8": {"n2"}}  # n5 was free


def test_priority_comes_before_age() -> None:
    jobs = [pending("7", 2, submit_s=T0), pending("8", 2, submit_s=T0 + 9, priority=5.0)]
    given = _give(snapshot(_busy(3, "n1", "n2", "n3"), jobs), held("n1", "n2", "n3"))
    assert set(_nodes_for(given)) == {"8"}


def test_a_job_that_fits_before_the_blocked_head_gets_nodes() -> None:
    head = pending("7", 8, start_s=T0 + 700, planned=("n1", "n2", "n3", "n4"), priority=9.0)
    seen = snapshot(_busy(4, "n1", "n2", "n3", "n4"), [head, pending("8", 2, limit_s=600.0)])
    assert _nodes_for(_give(seen, held("n1", "n2", "n3"))) == {"8": {"n1", "n2"}}


def test_a_job_that_would_delay_the_blocked_head_gets_none() -> None:
    head = pending("7", 8, start_s=T0 + 500, planned=("n1", "n2", "n3", "n4"), priority=9.0)
    seen = snapshot(_busy(4, "n1", "n2", "n3", "n4"), [head, pending("8", 2, limit_s=600.0)])
    assert _give(seen, held("n1", "n2", "n3")).releases == ()


def test_nodes_the_head_is_not_planned_on_are_not_in_its_way() -> None:
    head = pending("7", 8, start_s=T0 + 500, planned=("n1", "n2"), priority=9.0)
    jobs = [head, pending("8", 1, limit_s=9000.0), pending("9", 2, limit_s=9000.0)]
    seen = snapshot(_busy(4, "n1", "n2", "n3", "n4"), jobs)
    assert _nodes_for(_give(seen, held("n1", "n2", "n3"))) == {"8": {"n3"}}


@pytest.mark.parametrize("limit_s", [None, 86400.0])
def test_in_doubt_nodes_are_given_back(limit_s: float | None) -> None:
    head = pending("7", 8, start_s=None if limit_s else T0 + 10, priority=9.0)
    seen = snapshot(_busy(2, "n1", "n2"), [head, pending("8", 1, limit_s=limit_s)])
    assert _nodes_for(_give(seen, held("n1", "n2"))) == {"8": {"n1"}}


def test_a_head_that_can_start_blocks_nobody() -> None:
    head = pending("7", 1, start_s=T0 + 1, priority=9.0)
    seen = snapshot(_busy(2, "n1", "n2"), [head, pending("8", 1, limit_s=9000.0)])
    assert _nodes_for(_give(seen, held("n1", "n2"))) == {"7": {"n1"}, "8": {"n2"}}


@pytest.mark.parametrize(
    "reason",
    [
        "Dependency",
        "DependencyNeverSatisfied",
        "JobHeldUser",
        "JobHeldAdmin",
        "JobHoldMaxRequeue",
        "BeginTime",
        "Reservation",
        "AssocGrpCpuLimit",
        "QOSMaxJobsPerUserLimit",
        "PartitionTimeLimit",
        "JobArrayTaskLimit",
        "Licenses",
        "InvalidAccount",
    ],
)
def test_jobs_that_cannot_start_cost_nothing(reason: str) -> None:
    seen = snapshot(_busy(2, "n1", "n2"), [pending("7", 1, reason=reason, priority=9.0)])
    assert _give(seen, held("n1", "n2")).releases == ()


@pytest.mark.parametrize("reason", ["Resources", "Priority", "None", "", "SomethingNew"])
def test_all_other_reasons_count(reason: str) -> None:
    seen = snapshot(_busy(2, "n1", "n2"), [pending("7", 1, reason=reason)])
    assert len(_give(seen, held("n1", "n2")).releases) == 1


# ---- on which nodes --------------------------------------------------------------------


def test_required_nodes_are_the_ones_released() -> None:
    seen = snapshot(_busy(4, "n1", "n2", "n3"), [pending("7", 1, required=("n3",))])
    assert _nodes_for(_give(seen, held("n1", "n2", "n3"))) == {"7": {"n3"}}


def test_free_nodes_that_do_not_fit_are_no_help() -> None:
    nodes = (
        node("n1", NodeState.ALLOCATED, gpus=4, features=("a100", "ib"), partitions=("batch",)),
        node("n2", gpus=0, features=("ib",), partitions=("batch",)),
        node("n3", gpus=4, features=("a100", "ib"), partitions=("debug",)),
        node("n4", gpus=4, features=("v100", "ib"), partitions=("batch",)),
    )
    job = pending("7", 1, gpus_per_node=2, features="a100&ib")
    assert _nodes_for(_give(snapshot(nodes, [job]), held("n1"))) == {"7": {"n1"}}


def test_nodes_we_hold_that_do_not_fit_stay() -> None:
    nodes = (node("n1", NodeState.ALLOCATED, gpus=1, features=("v100",)),)
    for job in (pending("7", 1, gpus_per_node=2), pending("7", 1, features="a100")):
        assert _give(snapshot(nodes, [job]), held("n1")).releases == ()


def test_an_expression_we_do_not_understand_fits_everywhere() -> None:
    nodes = (node("n1", NodeState.ALLOCATED, features=("v100",)),)
    seen = snapshot(nodes, [pending("7", 1, features="[a100|v100]*2")])
    assert len(_give(seen, held("n1")).releases) == 1


def test_requested_pilots_go_before_held_ones() -> None:
    pilots = [pilot("n1"), pilot("n2", is_held=False), pilot("n3")]
    seen = snapshot(_busy(3, "n1", "n3"), [pending("7", 2)])
    assert [r.node for r in _give(seen, pilots).releases] == ["n2", "n1"]


def test_the_cheapest_for_the_trainers_go_first() -> None:
    price = {"n1": 2.0, "n2": 0.0, "n3": 1.0}

    def cheapest(count: int, candidates: Collection[str], gone: Collection[str]) -> list[str]:
        return sorted(candidates, key=price.__getitem__)[:count]

    given = give_back(
        snapshot(_busy(3, "n1", "n2", "n3"), [pending("7", 2)]),
        held("n1", "n2", "n3"),
        Memory(assignment=dict.fromkeys(price, "t1")),
        SETTINGS,
        T0,
        cheapest,
    )
    assert [r.node for r in given.releases] == ["n2", "n3"]


@pytest.mark.parametrize("state", [NodeState.DRAINED, NodeState.DOWN, NodeState.RESERVED])
def test_nodes_nobody_can_use_are_neither_offered_nor_counted(state: NodeState) -> None:
    nodes = with_state(_busy(3, "n1", "n2", "n3"), state, "n1")
    seen = snapshot(nodes, [pending("7", 2)])
    assert _nodes_for(_give(seen, held("n1", "n2", "n3"))) == {"7": {"n2", "n3"}}
    leaving = [pilot("n1", is_leaving=True), *held("n2", "n3")]
    assert _nodes_for(_give(seen, leaving)) == {"7": {"n2", "n3"}}
    assert _give(seen, held("n1", "n2")).releases == ()


def test_a_node_an_ordinary_job_took_is_not_given_twice() -> None:
    pilots = [pilot("n1", is_held=False), pilot("n2")]
    seen = snapshot(_busy(2, "n1", "n2"), [running("6", "n1"), pending("7", 1)])
    assert _nodes_for(_give(seen, pilots)) == {"7": {"n2"}}


def test_a_pilot_on_a_node_that_vanished_disturbs_nothing() -> None:
    pilots = [pilot("n8"), pilot("n9", is_leaving=True), pilot("n1")]
    seen = snapshot(_busy(1, "n1"), [pending("7", 1)])
    assert _nodes_for(_give(seen, pilots)) == {"7": {"n1"}}


# ---- once is enough --------------------------------------------------------------------


def test_nodes_on_their_way_back_are_counted() -> None:
    seen = snapshot(_busy(3, "n1", "n2", "n3"), [pending("7", 2)])
    leaving = [pilot("n1", is_leaving=True), pilot("n2", is_leaving=True), pilot("n3")]
    assert _give(seen, leaving).releases == ()


@pytest.mark.parametrize("state", [NodeState.COMPLETING, NodeState.ALLOCATED, NodeState.IDLE])
def test_nodes_given_back_are_counted_until_somebody_takes_them(state: NodeState) -> None:
    memory = Memory(held_off={"n1": T0 - 1})
    nodes = with_state(_busy(2, "n2"), state, "n1")
    seen = snapshot(nodes, [pending("7", 1)])
    assert coming_back(seen, held("n2"), memory) == {"n1"}
    assert _give(seen, held("n2"), memory).releases == ()


def test_a_node_given_back_and_taken_by_another_job_is_gone() -> None:
    memory = Memory(held_off={"n1": T0 - 1})
    seen = snapshot(_busy(2, "n1", "n2"), [running("6", "n1"), pending("7", 1)])
    assert _nodes_for(_give(seen, held("n2"), memory)) == {"7": {"n2"}}


def _after_a_chance(job: Job, nodes: Sequence[Node]) -> Memory:
    """Memory of having given back for a job at T0, and of holding the nodes again."""
    given = _give(snapshot(nodes, [job]), held("n1", "n2"))
    assert given.releases
    return Memory(gave_back=given.gave_back)


def test_a_job_that_a_whole_cycle_did_not_start_gets_none_again() -> None:
    job, nodes = pending("7", 1), _busy(2, "n1", "n2")
    memory = _after_a_chance(job, nodes)
    before = snapshot(nodes, [job], at_s=T0 + 5, cycle_ended_s=T0 - 1)
    assert _give(before, held("n1", "n2"), memory, now_s=T0 + 5).releases
    after = snapshot(nodes, [job], at_s=T0 + 31, cycle_ended_s=T0 + 30)
    again = _give(after, held("n1", "n2"), memory, now_s=T0 + 31)
    assert again.releases == ()
    aged = snapshot(nodes, [replace(job, priority=99.0)], at_s=T0 + 61, cycle_ended_s=T0 + 60)
    memory = Memory(gave_back=again.gave_back)
    assert _give(aged, held("n1", "n2"), memory, now_s=T0 + 61).releases == ()


@pytest.mark.parametrize(
    ("jobs", "nodes", "what"),
    [
        ([pending("7", 2)], _busy(2, "n1", "n2"), "the job asks for something else"),
        ([pending("7", 1), pending("8", 9)], _busy(2, "n1", "n2"), "the queue changed"),
        ([pending("7", 1), running("6", "n3")], _busy(3, "n1", "n2", "n3"), "a job started"),
        ([pending("7", 1, required=("n1",))], _busy(2, "n1", "n2"), "the job was modified"),
    ],
)
def test_a_change_gives_it_another_chance(
    jobs: list[Job], nodes: Sequence[Node], what: str
) -> None:
    memory = _after_a_chance(pending("7", 1), _busy(2, "n1", "n2"))
    seen = snapshot(nodes, jobs, at_s=T0 + 31, cycle_ended_s=T0 + 30)
    assert "7" in _nodes_for(_give(seen, held("n1", "n2"), memory, now_s=T0 + 31)), what


def test_a_change_of_the_pool_gives_it_another_chance() -> None:
    memory = _after_a_chance(pending("7", 1), _busy(2, "n1", "n2"))
    nodes = with_state(_busy(3, "n1", "n2"), NodeState.COMPLETING, "n3")
    same = snapshot(nodes, [pending("7", 1)], at_s=T0 + 31, cycle_ended_s=T0 + 30)
    assert _give(same, held("n1", "n2"), memory, now_s=T0 + 31).releases == ()
    larger = snapshot(
        _busy(3, "n1", "n2", "n3"), [pending("7", 1)], at_s=T0 + 31, cycle_ended_s=T0 + 30
    )
    assert _give(larger, held("n1", "n2", "n3"), memory, now_s=T0 + 31).releases


def test_a_plan_for_the_nodes_it_seemed_to_have_gives_it_another_chance() -> None:
    """Until the blocked head is planned, a small job behind it seems to start on n3."""
    head, job = pending("7", 4, priority=9.0), pending("8", 1, limit_s=600.0)
    nodes = _busy(4, "n1", "n2", "n4")  # ours are n1 and n2
    first = _give(snapshot(nodes, [head, job]), held("n1", "n2"))
    assert first.releases == ()
    planned = replace(head, start_s=T0 + 300, planned_nodes=("n1", "n3", "n4"))
    seen = snapshot(nodes, [planned, job], at_s=T0 + 31, cycle_ended_s=T0 + 30)
    memory = Memory(gave_back=first.gave_back)
    assert _nodes_for(_give(seen, held("n1", "n2"), memory, now_s=T0 + 31)) == {"8": {"n2"}}


def test_jobs_that_are_gone_are_forgotten() -> None:
    memory = _after_a_chance(pending("7", 1), _busy(2, "n1", "n2"))
    assert _give(snapshot(idle_nodes(2)), (), memory).gave_back == {}


# ---- hold-off --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended_s", "is_kept"), [(None, True), (T0 - 20.0, True), (T0, True), (T0 + 1.0, False)]
)
def test_nodes_stay_free_until_a_cycle_has_passed(ended_s: float | None, *, is_kept: bool) -> None:
    seen = snapshot(idle_nodes(1), [pending("7", 9)], at_s=T0 + 20, cycle_ended_s=ended_s)
    assert still_held_off({"n1": T0}, seen, SETTINGS) == ({"n1": T0} if is_kept else {})


def test_a_scheduler_that_reports_no_cycle_gets_two_cycle_times() -> None:
    for at_s, is_kept in ((T0 + 60, True), (T0 + 61, False)):
        seen = snapshot(idle_nodes(1), [pending("7", 9)], at_s=at_s)
        assert bool(still_held_off({"n1": T0}, seen, SETTINGS)) is is_kept


def test_nobody_waits_nothing_is_held_off() -> None:
    assert still_held_off({"n1": T0}, snapshot(idle_nodes(1)), SETTINGS) == {}
    held_job = snapshot(idle_nodes(1), [pending("7", 1, reason="JobHeldUser")])
    assert still_held_off({"n1": T0}, held_job, SETTINGS) == {}


# ---- jobs the scheduler has tried before anybody heard of them -----------------------------


def _interactive(job_id: str, n_nodes: int, partition: str = "batch") -> Job:
    return replace(pending(job_id, n_nodes, reason="", partition=partition), was_tried=True)


def test_nothing_more_is_given_back_for_a_job_the_scheduler_has_preempted_for() -> None:
    seen = snapshot(_busy(3, "n1", "n2"), [_interactive("announced-1", 2)])
    given = _give(seen, held("n1", "n2"))
    assert given.releases == ()
    assert given.left_to_jobs == {"n3"}
    # Announced it counts for one node; the look that shows it says which it has.
    assert given.spoken_for.keys() == {"n3"}


def test_once_a_look_shows_that_it_waits_it_is_a_job_like_any_other() -> None:
    seen = snapshot(_busy(3, "n1", "n2"), [pending("9", 2)])
    assert len(_give(seen, held("n1", "n2")).releases) == 1


@pytest.mark.parametrize(
    ("other", "n_released"),
    [
        (pending("5", 1), 2),  # in the same queue: perhaps it was first
        (_interactive("announced-2", 1, partition=""), 2),  # perhaps in the same
        (pending("5", 1, partition="debug"), 1),
        (pending("5", 1, reason="JobHeldUser"), 0),
    ],
)
def test_who_was_perhaps_not_first_in_line_was_perhaps_not_tried(
    other: Job, n_released: int
) -> None:
    seen = snapshot(_busy(3, "n1", "n2", "n3"), [other, _interactive("announced-1", 1)])
    assert len(_give(seen, held("n1", "n2", "n3")).releases) == n_released


HEAD = pending("7", 5, priority=9.0, start_s=T0 + 300, planned=("n1", "n2", "n3", "n4", "n5"))


def test_who_was_tried_while_idle_nodes_were_enough_has_them_past_the_queue_and_its_plan() -> None:
    """So a later job that would have fitted there needs one of ours, and so may the reserve."""
    nodes = _busy(5, "n1", "n2", "n4", "n5")  # n1 and n2 are ours, n3 is idle
    short = pending("announced-2", 1, limit_s=100.0, reason="", submit_s=T0 + 1)
    before = _give(snapshot(nodes, [HEAD, short]), held("n1", "n2"))
    assert (before.releases, before.left_to_jobs) == ((), {"n3"})
    tried = replace(_interactive("announced-1", 1), time_limit_s=3600.0)
    after = _give(snapshot(nodes, [HEAD, tried, short]), held("n1", "n2"))
    assert after.left_to_jobs == {"n3"}
    assert len(_nodes_for(after)["announced-2"]) == 1


def test_who_had_no_room_then_waits_its_turn() -> None:
    nodes = _busy(5, "n1", "n2", "n4", "n5")
    tried = replace(_interactive("announced-1", 2), time_limit_s=3600.0)
    given = _give(snapshot(nodes, [HEAD, tried]), held("n1", "n2"))
    assert (given.releases, given.left_to_jobs) == ((), set())


def test_two_that_were_tried_have_no_more_than_there_was() -> None:
    nodes = _busy(5, "n1", "n2", "n4", "n5")
    tried = [replace(_interactive(f"announced-{n}", 1), time_limit_s=3600.0) for n in (1, 2)]
    given = _give(snapshot(nodes, [HEAD, *tried]), held("n1", "n2"))
    assert given.left_to_jobs == {"n3"}
    assert given.verdicts[0].job_id == "announced-1"
    assert [v.answer.value for v in given.verdicts].count("cannot start") == 2
