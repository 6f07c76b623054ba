"""Parts of nodes as nodes: which slots there are, which are free, and how jobs name them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bftrainer.model.cluster import Job, JobState, Node, NodeLeft, NodeState, Reservation, node_of
from slurm_plugins import slots

SHARE = NodeLeft(cpus=2, gpus=1)
FREE = (NodeState.IDLE, NodeState.PLANNED)


def _node(state: NodeState = NodeState.IDLE, left: NodeLeft | None = None) -> Node:
    return Node(name="n1", state=state, cpus=8, gpus=4, memory_mb=4000, left=left)


def _states(node: Node, *occupied: str) -> dict[str, NodeState]:
    return {s.name: s.state for s in slots.split_nodes([node], SHARE, occupied)}


def test_an_idle_node_is_as_many_idle_slots_as_fit() -> None:
    found = slots.split_nodes([_node()], SHARE, ())
    assert [s.name for s in found] == ["n1/0", "n1/1", "n1/2", "n1/3"]
    assert {s.state for s in found} == {NodeState.IDLE}
    assert {(s.cpus, s.gpus, s.left) for s in found} == {(2, 1, None)}
    assert node_of("n1/2") == "n1" == node_of("n1")


def test_what_is_left_of_a_node_is_free_beside_our_slots() -> None:
    left = NodeLeft(cpus=3, gpus=2, memory_mb=100)
    states = _states(_node(NodeState.ALLOCATED, left), "n1/0")
    assert [n for n, state in states.items() if state in FREE] == ["n1/1"]
    assert set(_states(_node(NodeState.ALLOCATED)).values()) == {NodeState.ALLOCATED}


def test_a_node_that_is_lost_is_lost_with_all_its_slots() -> None:
    for state in (NodeState.DOWN, NodeState.DRAINED, NodeState.RESERVED, NodeState.UNKNOWN):
        assert set(_states(_node(state), "n1/1").values()) == {state}


@given(
    cpus=st.integers(0, 8),
    gpus=st.integers(0, 4),
    ours=st.sets(st.integers(0, 3)),
)
def test_never_more_slots_are_free_than_fit_beside_ours(
    cpus: int, gpus: int, ours: set[int]
) -> None:
    left = NodeLeft(cpus=cpus, gpus=gpus)
    states = _states(_node(NodeState.ALLOCATED, left), *(f"n1/{k}" for k in ours))
    free = [name for name, state in states.items() if state in FREE]
    assert len(free) == min(4 - len(ours), cpus // 2, gpus)
    assert not {f"n1/{k}" for k in ours} & set(free)


def test_memory_counts_where_the_share_names_it() -> None:
    share = NodeLeft(cpus=1, memory_mb=1500)
    assert len(slots.names(_node(), share)) == 2
    assert slots.fitting(NodeLeft(cpus=8, memory_mb=2900), share) == 1


def test_jobs_and_reservations_name_slots() -> None:
    pilot = Job(
        job_id="7", user="me", state=JobState.RUNNING, n_nodes=1, time_limit_s=60.0,
        nodes=("n1",), required_nodes=("n1",), pilot_id="p7",
    )  # fmt: skip
    other = Job(
        job_id="8", user="you", state=JobState.PENDING, n_nodes=1, time_limit_s=60.0,
        planned_nodes=("n1", "n9"),
    )  # fmt: skip
    slots_of = {"n1": ("n1/0", "n1/1")}
    ours, theirs = slots.split_jobs([pilot, other], slots_of, {"7": "n1/1"})
    assert ours.nodes == ours.required_nodes == ("n1/1",)
    assert theirs.planned_nodes == ("n1/0", "n1/1")
    (reserved,) = slots.split_reservations(
        [Reservation(name="r", start_s=0.0, end_s=1.0, nodes=("n1",))], slots_of
    )
    assert reserved.nodes == ("n1/0", "n1/1")
