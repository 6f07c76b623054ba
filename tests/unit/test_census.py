"""Whose each node is: one small cluster with a node of every kind, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.model.census import census_of
from bftrainer.model.cluster import Job, NodeState, Snapshot
from tests.support.snapshots import held, idle_nodes, pending, pilot, running, snapshot, with_state


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
    census = census_of(every_kind())
    [ours] = held("n4")
    on_a_free_node, leaving = pilot("n1"), replace(pilot("n7"), is_leaving=True)
    pilots = [ours, on_a_free_node, leaving]
    assert census.not_leaving(pilots) == {"n4": ours, "n1": on_a_free_node}
    assert census.in_the_way(pilots) == {"n4": ours, "n1": on_a_free_node}
    assert census.of_others(pilots) == {"n5"}
    assert census.coming_back(pilots, ["n2", "n3", "n4", "n6", "gone"]) == {"n2", "n7"}, (
        "n3 is taken, n4 has a pilot that stays, n6 is down, and one node is not shown"
    )


def test_where_pilots_come_last_a_pilot_on_a_free_node_is_in_nobodys_way() -> None:
    seen = replace(every_kind(), pilots_come_last=True)
    [ours] = held("n4")
    assert census_of(seen).in_the_way([ours, pilot("n1")]) == {"n4": ours}


@pytest.mark.parametrize("unread", ["nodes", "jobs"])
def test_what_is_unread_counts_as_none(unread: str) -> None:
    seen = every_kind()
    without = replace(seen, jobs=None) if unread == "jobs" else replace(seen, nodes=None)
    census = census_of(without)
    assert census.free == ({"n1", "n2"} if unread == "jobs" else set())
    assert census.pilot_of.keys() == ({"n4", "n5"} if unread == "nodes" else set())


def test_a_snapshot_is_counted_once() -> None:
    seen = every_kind()
    assert census_of(seen) is census_of(seen)
    assert census_of(seen).free is census_of(seen).free


def test_jobs_wait_if_one_might_start() -> None:
    waits = snapshot(idle_nodes(1), [pending("8", 1), running("9", "n1")])
    assert [job.job_id for job in census_of(waits).pending_jobs] == ["8"]
    assert census_of(waits).has_startable_jobs
    held_by_user = replace(pending("8", 1), is_entitled=False)
    assert not census_of(snapshot(idle_nodes(1), [held_by_user])).has_startable_jobs
