"""Questions to an assignment (node -> trainer): which trainer has which nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet


def nodes_by_trainer(
    assignment: Mapping[str, str], names: AbstractSet[str]
) -> dict[str, tuple[str, ...]]:
    """Return each trainer's nodes among ``names``, sorted."""
    nodes_of: dict[str, list[str]] = {}
    for name in sorted(assignment.keys() & names):
        nodes_of.setdefault(assignment[name], []).append(name)
    return {trainer_id: tuple(nodes) for trainer_id, nodes in nodes_of.items()}
