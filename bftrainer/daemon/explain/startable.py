"""Explains why a trainer cannot start: too few suitable nodes in the cluster or the pool. Pure.

Called by ``service`` and ``sizes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from bftrainer.decide.eligible import Classes
from bftrainer.decide.problem_input import nodes_by_trainer
from bftrainer.model.cluster import Node
from bftrainer.model.decision import PoolNode
from bftrainer.model.node_request import asked
from bftrainer.model.trainer import TrainerRecord


def impossible(records: Sequence[TrainerRecord], seen: Sequence[Node]) -> dict[str, str]:
    """Say why for each trainer that needs more nodes than this cluster has of a suitable type.

    Args:
        records: trainers that are not final.
        seen: all nodes of the last snapshot, in any state; empty: unknown.
    """
    found: dict[str, str] = {}
    for record, there in _too_few(records, [node.name for node in seen], seen, {}):
        found[record.trainer_id] = (
            f"It needs {record.spec.n_min} nodes (n_min) of one type, and of those that it may use"
            f" this cluster has {there}."
            if there
            else f"No node of this cluster meets its request ({asked(record.spec)})."
        )
    return found


def cannot_start(
    records: Sequence[TrainerRecord],
    pool: Sequence[PoolNode],
    seen: Sequence[Node],
    assignment: Mapping[str, str],
) -> dict[str, str]:
    """Say why for each trainer that could not run now even if it were alone.

    Args:
        records: trainers that are not final.
        pool: nodes of the last decision.
        seen: all nodes of the last snapshot.
        assignment: node -> trainer, of that decision.
    """
    known = {node.name for node in seen}
    names = [node.name for node in pool if node.name in known]
    held = nodes_by_trainer(assignment, set(names))
    found: dict[str, str] = {}
    for record, there in _too_few(records, names, seen, held):
        of_type = "" if there == len(names) else " of one type that it may use"
        needs = f"It needs {record.spec.n_min} nodes (n_min) and the pool has {there}{of_type}."
        found[record.trainer_id] = needs
    return {**found, **impossible(records, seen)}


def _too_few(
    records: Sequence[TrainerRecord],
    names: Iterable[str],
    seen: Sequence[Node],
    held: Mapping[str, Sequence[str]],
) -> Iterator[tuple[TrainerRecord, int]]:
    """Yield the trainers that need more of these nodes than they could have, with that number."""
    requests = [asked(record.spec) for record in records] if seen else []
    classes = Classes(names, {node.name: node for node in seen}, requests)
    for record, request in zip(records, requests, strict=False):  # none: unknown
        there = classes.choice(request, record.spec.n_min, held.get(record.trainer_id, ())).most
        if there < record.spec.n_min:
            yield record, there
