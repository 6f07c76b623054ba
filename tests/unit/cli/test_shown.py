"""What a look shows is worked out once for each look."""

from __future__ import annotations

from bftrainer.model.census import census_of, once_per_look
from bftrainer.model.cluster import JobState, NodeState, Snapshot
from tests.support.snapshots import idle_nodes, running, snapshot, with_state


def test_one_of_the_last_two_objects_is_asked_once_and_an_equal_one_again() -> None:
    asked: list[Snapshot] = []
    note = once_per_look(asked.append)
    hosts, parts, next_hosts = (snapshot(idle_nodes(1)) for _ in range(3))
    assert hosts == parts == next_hosts
    for seen in (hosts, hosts, parts, hosts, next_hosts, parts):
        note(seen)
    assert [id(seen) for seen in asked] == [id(hosts), id(parts), id(next_hosts), id(parts)]


def test_nodes_are_taken_where_an_ordinary_job_is_unless_they_are_seen_free() -> None:
    nodes = with_state(idle_nodes(3), NodeState.ALLOCATED, "n1", "n2")
    seen = snapshot(nodes, [running("7", "n1", "n3")])
    assert seen.jobs is not None
    assert seen.jobs[0].state is JobState.RUNNING
    census = census_of(seen)
    assert census.taken == {"n1"}
    assert census.free == {"n3"}
    assert census.lost == census.completing == set()
