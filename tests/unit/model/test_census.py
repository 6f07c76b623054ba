"""Whose each node is: one small cluster with a node of every kind, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.model.census import census_of, whole
from bftrainer.model.cluster import Job, NodeLeft, NodeState, Snapshot
from bftrainer.model.decision import Memory
from tests.support.snapshots import (
    T0,
    given_back,
    held,
    idle_nodes,
    pending,
    pilot,
    running,
    snapshot,
    with_state,
)


def of_pilot(pilot_id: str, *nodes: str) -> Job:
    return replace(running(f"job-{pilot_id}", *nodes), pilot_id=pilot_id)


def every_kind() -> Snapshot:
    """n1 is free, n2 planned, n3 a job's, n4 ours, n5 another daemon's, n6 down, n7 ending."""
    nodes = idle_nodes(7)
    nodes = with_state(nodes, NodeState.PLANNED, "n2")
    nodes = with_state(nodes, NodeState.ALLOCATED, "n3", "n4", "n5")
    nodes = with_state(nodes, NodeState.DOWN, "n6")
    nodes = with_state(nodes, NodeState.COMPLETING, "n7")
    jobs = [running("7", "n3", "n1"), of_pilot("p-n4", "n4"), of_pilot("theirs", "n5")]
    return snapshot(nodes, jobs)


def test_nodes_are_counted_by_what_the_batch_system_shows() -> None:
    census = census_of(every_kind())
    assert census.free == {"n1", "n2"}
    assert census.taken == {"n3"}, "n1 is shown free: its job has just begun or ended"
    assert census.lost == {"n6"}
    assert census.completing == {"n7"}
    assert census.pilot_of == {"n4": "p-n4", "n5": "theirs"}
    assert list(census.by_name) == ["n1", "n2", "n3", "n4", "n5", "n6", "n7"]


def test_nodes_are_counted_against_our_pilots() -> None:
    [ours] = held("n4")
    on_a_free_node, leaving = pilot("n1"), replace(pilot("n7"), is_leaving=True)
    census = census_of(every_kind(), [ours, on_a_free_node, leaving])
    assert census.ours == {"n4": ours, "n1": on_a_free_node}
    assert census.leaving == {"n7"}
    assert census.in_the_way == {"n4": ours, "n1": on_a_free_node}
    assert census.of_others == {"n5"}
    assert census.unoccupied == {"n1", "n2", "n4", "n5", "n7"}
    assert census_of(every_kind(), held("n9")).in_the_way == {}, "the node is not shown"
    assert census_of(every_kind()).ours == {}, "no pilots were counted"


def test_nodes_given_back_come_back_until_a_job_or_a_pilot_has_them() -> None:
    memory = Memory(held_off=dict.fromkeys(["n2", "n3", "n4", "n6", "gone"], T0))
    pilots = [*held("n4"), replace(pilot("n7"), is_leaving=True)]
    assert given_back(every_kind(), pilots, memory).coming_back == {"n2", "n7"}, (
        "n3 is taken, n4 has a pilot that stays, n6 is down, and one node is not shown"
    )


def test_where_pilots_come_last_a_pilot_on_a_free_node_is_in_nobodys_way() -> None:
    seen = replace(every_kind(), pilots_come_last=True)
    [ours] = held("n4")
    assert census_of(seen, [ours, pilot("n1")]).in_the_way == {"n4": ours}


def test_what_is_free_or_ours_is_told_in_parts() -> None:
    shown = every_kind()
    nodes = [
        replace(node, node_type="a100:4", gpus=4, cpus=64, memory_mb=512_000)
        for node in shown.nodes or ()
    ]
    nodes.append(replace(nodes[0], name="n8/1", gpus=1, cpus=16, memory_mb=128_000))
    census = census_of(replace(shown, nodes=tuple(nodes)), held("n4"))
    assert census.parts.keys() == {"n1", "n2", "n4", "n8/1"}
    whole_node, part = census.parts["n4"], census.parts["n8/1"]
    assert (whole_node.name, whole_node.node, whole_node.gpus) == ("n4", "n4", 4)
    assert (part.name, part.node, part.gpu_type, part.gpus) == ("n8/1", "n8", "a100:4", 1)
    assert (part.cores, part.memory_mb) == (16, 128_000)


@pytest.mark.parametrize(
    ("share", "has_room"),
    [
        (NodeLeft(cpus=16, memory_mb=1000, gpus=2), True),
        (NodeLeft(cpus=17), False),
        (NodeLeft(cpus=1, memory_mb=1001), False),
        (NodeLeft(cpus=1, gpus=3), False),
    ],
)
def test_a_job_fits_on_a_part_that_has_as_much_of_everything(
    share: NodeLeft, *, has_room: bool
) -> None:
    node = replace(idle_nodes(1)[0], cpus=16, memory_mb=1000, gpus=2)
    assert whole(node).has_room_for(share) is has_room
    memory_unknown = whole(replace(node, memory_mb=0))
    assert memory_unknown.has_room_for(NodeLeft(cpus=1, memory_mb=1001)), "it is not refused"


@pytest.mark.parametrize("unread", ["nodes", "jobs"])
def test_what_is_unread_counts_as_none(unread: str) -> None:
    seen = every_kind()
    without = replace(seen, jobs=None) if unread == "jobs" else replace(seen, nodes=None)
    census = census_of(without)
    assert census.free == ({"n1", "n2"} if unread == "jobs" else set())
    assert census.pilot_of.keys() == ({"n4", "n5"} if unread == "nodes" else set())


def test_a_snapshot_is_counted_once() -> None:
    seen = every_kind()
    census = census_of(seen)
    assert census_of(seen, held("n4")).taken is census.taken
    assert census_of(replace(seen, jobs=())).by_name is census.by_name, "the nodes are the same"


def test_jobs_wait_if_one_might_start() -> None:
    waits = snapshot(idle_nodes(1), [pending("8", 1), running("9", "n1")])
    assert [job.job_id for job in census_of(waits).pending_jobs] == ["8"]
    assert census_of(waits).has_startable_jobs
    held_by_user = replace(pending("8", 1), is_entitled=False)
    assert not census_of(snapshot(idle_nodes(1), [held_by_user])).has_startable_jobs
