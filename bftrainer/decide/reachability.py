"""Nodes that a trainer must not get now, because its other nodes cannot reach them. Pure.

They count as neither planned for it nor training for it; ``eligible`` gives them to others alone.
Called by ``decision``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bftrainer.model.decision import DecisionInput

HOLD_S = 120.0  # an unused one keeps its pilot, so that it is back soon after a short cut


def parted(given: DecisionInput) -> DecisionInput:
    """Return the input without what such nodes were for the trainers that must not get them."""
    if not given.apart:
        return given
    memory = replace(given.memory, assignment=_allowed(given.memory.assignment, given))
    return replace(given, training=_allowed(given.training, given), memory=memory)


def barred_from(given: DecisionInput) -> dict[str, frozenset[str]]:
    """Return the trainers that must not get a node, by node."""
    nodes = sorted({node for barred in given.apart.values() for node in barred})
    return {n: frozenset(t for t, barred in given.apart.items() if n in barred) for n in nodes}


def is_awaited(given: DecisionInput, node: str) -> bool:
    """Whether a trainer that must not get the node has had to do without it for a short time."""
    return any(
        given.now_s - barred[node] < HOLD_S for barred in given.apart.values() if node in barred
    )


def why_unused(given: DecisionInput, node: str) -> str:
    """Say which trainers cannot use the node; "": none."""
    names = sorted(t for t, barred in given.apart.items() if node in barred)
    return f"Other nodes of {', '.join(names)} cannot reach it (BFT-1340)." if names else ""


def _allowed(nodes: Mapping[str, str], given: DecisionInput) -> dict[str, str]:
    return {n: t for n, t in nodes.items() if n not in given.apart.get(t, ())}
