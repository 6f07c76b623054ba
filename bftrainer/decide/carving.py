"""Makes units of several GPUs of a host's free ones, as an answer wants them. Pure.

The pool offers the free GPUs of a host one by one. A trainer whose sizes count units of several
GPUs (``TrainerSpec.gpus_per_unit``), or whole nodes, gets GPUs of one host together: one pilot asks
for them. So an answer that gives it free GPUs is put again, with these GPUs as one part of the pool
(``carved``): what counts the parts of a trainer then counts its units. Called by ``allocation``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bftrainer.decide.draft import Draft
from bftrainer.model.census import census_of
from bftrainer.model.cluster import PART_MARK, Node, NodeState, node_of
from bftrainer.model.decision import PoolNode
from bftrainer.model.lookups import by_name
from bftrainer.model.parts import n_gpus_of_host


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Free GPUs of a host that become one part."""

    names: tuple[str, ...]  # of the parts that they are now
    is_whole_host: bool


def units_of(draft: Draft, assignment: Mapping[str, str]) -> list[Unit]:
    """Return the units that an answer makes of free GPUs, each of several."""
    width_of: dict[str, int] = {}
    for record in draft.given.trainers:
        width_of[record.trainer_id] = record.spec.gpus_per_unit
    by_owner: dict[tuple[str, str, str], list[str]] = {}
    for node in draft.pool.nodes:
        trainer_id = assignment.get(node.name, "")
        is_free_gpu = PART_MARK in node.name and not node.pilot_id and node.gpus == 1
        if is_free_gpu and width_of.get(trainer_id, 1) != 1:
            key = trainer_id, node_of(node.name), node.node_type
            by_owner.setdefault(key, []).append(node.name)
    units: list[Unit] = []
    for (trainer_id, _, _), names in by_owner.items():
        width = width_of[trainer_id] or n_gpus_of_host(draft.census.by_name[names[0]])
        for start in range(0, len(names) - width + 1, width):
            unit = Unit(
                names=tuple(names[start : start + width]), is_whole_host=not width_of[trainer_id]
            )
            units.append(unit)
    return units


def without_loose_gpus(draft: Draft, assignment: Mapping[str, str]) -> dict[str, str]:
    """Return an answer without the free GPUs of trainers that have use for units of several only.

    None are left where each answer's units were made; a policy that keeps changing its mind about
    them gets those of its last answer at the next decision.
    """
    loose: set[str] = set()
    for unit in units_of(draft, assignment):
        loose.update(unit.names)
    return {name: owner for name, owner in assignment.items() if name not in loose}


def carved(draft: Draft, units: Iterable[Unit]) -> Draft:
    """Return the draft with units instead of the free GPUs of which they are made."""
    unit_of: dict[str, Unit] = {}
    for unit in units:
        unit_of.update(dict.fromkeys(unit.names, unit))
    nodes: list[Node] = []
    pool_nodes: list[PoolNode] = []
    members: dict[str, Node] = {}
    names_of_units: dict[str, str] = {}  # of the first GPU of a unit, as it is called then
    for node in draft.given.snapshot.nodes or ():
        if node.name in unit_of:
            members[node.name] = node
        else:
            nodes.append(node)
    for unit in dict.fromkeys(unit_of.values()):
        node = _joined(draft, unit, members)
        names_of_units[unit.names[0]] = node.name
        nodes.append(node)
    ends_s = {node.name: node.usable_until_s for node in draft.pool.nodes}
    node_of_name = by_name(nodes)
    for pool_node in draft.pool.nodes:
        if pool_node.name not in unit_of:
            pool_nodes.append(pool_node)
        elif pool_node.name in names_of_units:
            node = node_of_name[names_of_units[pool_node.name]]
            unit_ends_s = [ends_s[name] for name in unit_of[pool_node.name].names]
            earliest_s = min([end_s for end_s in unit_ends_s if end_s is not None], default=None)
            pool_nodes.append(
                replace(
                    pool_node,
                    name=node.name,
                    node_type=node.node_type,
                    gpus=node.gpus,
                    usable_until_s=earliest_s,
                )
            )
    given = replace(draft.given, snapshot=replace(draft.given.snapshot, nodes=tuple(nodes)))
    return replace(
        draft,
        given=given,
        census=census_of(given.snapshot, given.pilots),
        pool=replace(draft.pool, nodes=tuple(pool_nodes)),
    )


def _joined(draft: Draft, unit: Unit, members: Mapping[str, Node]) -> Node:
    """Return a unit as a node: under the name of its first GPU, or as its host."""
    first = members[unit.names[0]]
    if unit.is_whole_host:
        host = draft.hosts.by_name[node_of(first.name)]
        return replace(host, state=NodeState.IDLE, lends=(), left=None)
    cpus = memory_mb = 0
    for name in unit.names:
        cpus += members[name].cpus
        memory_mb += members[name].memory_mb
    return replace(first, gpus=len(unit.names), cpus=cpus, memory_mb=memory_mb)
