"""Nodes in the status: those that are idle and those that are held are never the same."""

from __future__ import annotations

import pytest

from bftrainer.model.cluster import Node, NodeState
from bftrainer.model.views import idle_nodes

STATES = (NodeState.IDLE, NodeState.PLANNED, NodeState.IDLE, NodeState.ALLOCATED)
NODES = [Node(name=f"n{i}", state=state) for i, state in enumerate(STATES)]


@pytest.mark.parametrize(
    ("held", "idle"),
    [((), 3), (("n0", "n1", "n2"), 0), (("n0",), 2), (("n3",), 3), (("gone",), 3)],
)
def test_a_node_that_is_held_since_the_last_poll_is_not_idle(
    held: tuple[str, ...], idle: int
) -> None:
    assert idle_nodes(NODES, held) == idle
