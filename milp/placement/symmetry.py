"""Nodes that differ in nothing the placement rule looks at: any choice is the best.

Takes sizes, returns the map at once. Called by ``place`` when all nodes of the pool share
one end and one switch, as on a machine about which no more is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from milp.pool import PoolView
from milp.problem import Problem


def are_alike(problem: Problem) -> bool:
    """Whether no node is better than another, but that it has a pilot."""
    return len({(node.switch, node.expected_remaining_s) for node in problem.nodes}) <= 1


def place_alike(
    problem: Problem,
    pool: PoolView,
    sizes: Sequence[int],
    classes: Sequence[int],
    split: Sequence[Sequence[int]] | None,
) -> dict[str, str]:
    """Who shrinks gives up what does not train yet first; then pilots, name and order count."""
    claims = {node.name for node in problem.nodes if not node.has_pilot}
    assignment: dict[str, str] = {}
    wants: list[list[tuple[str, int]]] = [[] for _ in pool.names]  # [k]: trainer, nodes
    for j, (trainer, size, present) in enumerate(
        zip(pool.trainers, sizes, pool.present, strict=True)
    ):
        if not size:
            continue
        trainer_id = trainer.trainer_id
        if size < len(present):
            settled = set(trainer.settled)
            ordered = sorted(present, key=lambda name: (name not in settled, name in claims, name))
            for k, count in _counts(j, size, classes, split):
                own = [name for name in ordered if pool.class_of.get(name) == k]
                assignment.update(dict.fromkeys(own[:count], trainer_id))
            continue
        assignment.update(dict.fromkeys(present, trainer_id))
        if size > len(present):
            for k, count in _counts(j, size, classes, split):
                if count > pool.held[j][k]:
                    wants[k].append((trainer_id, count - pool.held[j][k]))
    for names, takers in zip(pool.names, wants, strict=True):
        if takers:
            free = sorted(
                [name for name in names if name not in assignment],
                key=lambda name: (name in claims, name),
            )
            at = 0
            for trainer_id, count in takers:
                assignment.update(dict.fromkeys(free[at : at + count], trainer_id))
                at += count
    return assignment


def _counts(
    j: int, size: int, classes: Sequence[int], split: Sequence[Sequence[int]] | None
) -> list[tuple[int, int]]:
    """Nodes by class."""
    if split is None:
        return [(classes[j], size)]
    return [(k, count) for k, count in enumerate(split[j]) if count]
