"""From sizes to nodes where GPUs are lent: units of hosts for each trainer.

Takes a Problem, its PoolView and each trainer's units by kind, returns the map node -> trainer;
``milp.placement.place`` calls it. The sizes are given, and the wishes follow in this order:

1. A trainer that grows keeps all it has, one that shrinks has nothing new; what already trains is
   given up last, then what is expected to stay longest.
2. Units that are there, with a pilot, come before free GPUs, of which a pilot has to take hold:
   those that are expected to stay longest first.
3. Free GPUs of partly used hosts come before those of wholly free ones, and of these the host with
   the fewest that suffice (``packing`` has the details), then that which stays free longest.
4. Among trainers of one kind the units are shared out so that each has those on its own hosts, then
   those behind its own switches, and otherwise few switches and few hosts; the largest need first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from milp.hosts import HostsView, PartKind, UnitKind
from milp.placement.packing import NO_PLAN, UnitPlan, pack, pack_as_planned, plan_units
from milp.placement.unit_shares import UnitLot, UnitTaker, share_out
from milp.pool import PoolView
from milp.problem import Problem, ProblemNode, ProblemTrainer
from milp.supply import Supply, supply_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """What is given, and how units come about where they cannot be taken one by one."""

    pool: PoolView
    hosts: HostsView
    nodes: Mapping[str, ProblemNode]
    ends_s: Mapping[str, float]  # how long nodes are expected to stay, of those with an end
    split: Sequence[Sequence[int]]  # [j][k]
    supply: Supply | None
    plan: UnitPlan | None


def place_units(problem: Problem, pool: PoolView, split: Sequence[Sequence[int]]) -> dict[str, str]:
    """Choose the nodes; ``split[j][k]`` units of kind k are for ``pool.trainers[j]``.

    Raises:
        milp.problem.ProblemError: BFT-3023, the sizes do not fit.
    """
    hosts = pool.hosts
    if hosts is None or not hosts.kinds:
        return {}
    nodes = {node.name: node for node in problem.nodes}
    supply = supply_of(pool)
    plan: UnitPlan | None = None
    if supply is not None and supply.contended:
        plan = plan_units(pool, supply, split)
    scene = _Scene(
        pool=pool,
        hosts=hosts,
        nodes=nodes,
        ends_s={
            node.name: node.expected_remaining_s
            for node in problem.nodes
            if node.expected_remaining_s is not None
        },
        split=split,
        supply=supply,
        plan=plan,
    )
    assignment: dict[str, str] = {}
    takers: list[list[UnitTaker]] = [[] for _ in hosts.kinds]  # [k]
    for j, trainer in enumerate(pool.trainers):
        kept, size = _kept(scene, j), sum(split[j])
        assignment.update(dict.fromkeys(kept, trainer.trainer_id))
        if size <= len(pool.present[j]):
            continue
        own_nodes = [nodes[name] for name in kept]
        own_hosts = {node.host or node.name for node in own_nodes}
        switches = {node.switch for node in own_nodes}
        for k, count in enumerate(split[j]):
            if count > pool.held[j][k]:
                taker = UnitTaker(
                    trainer_id=trainer.trainer_id,
                    need=count - pool.held[j][k],
                    hosts=own_hosts,
                    switches=switches,
                )
                takers[k].append(taker)
    lots, missing = _ready(scene, takers, assignment)
    if missing:
        for kind, own_lots in _carved(scene, takers, missing).items():
            lots[hosts.kinds.index(kind)] += own_lots
    for own, offered in zip(takers, lots, strict=True):
        share_out(own, offered, nodes, assignment)
    return assignment


def _remaining_s(node: ProblemNode) -> float:
    return math.inf if node.expected_remaining_s is None else node.expected_remaining_s


# ---- what is kept ----------------------------------------------------------------------------


def _kept(scene: _Scene, j: int) -> list[str]:
    """Return the names of the units that a trainer keeps."""
    pool, nodes, counts = scene.pool, scene.nodes, scene.split[j]
    present, trainer = pool.present[j], pool.trainers[j]
    size = sum(counts)
    if not size or not present:
        return []
    if size >= len(present):
        return list(present)
    kept: list[str] = []
    last_to_go = _last_to_go(trainer, nodes)
    for k, count in enumerate(counts):
        if count:
            kind = scene.hosts.kinds[k]
            own = [name for name in present if nodes[name].eligibility == kind.eligibility]
            own = [name for name in own if scene.hosts.part_of[name].serves(kind.width)]
            own.sort(key=last_to_go.__getitem__)
            quota = scene.plan.keeps.get((j, k)) if scene.plan else None
            kept += own[:count] if quota is None else _within(own, count, quota, scene.hosts)
    return kept


def _last_to_go(
    trainer: ProblemTrainer, nodes: Mapping[str, ProblemNode]
) -> dict[str, tuple[bool, float, str]]:
    """Return a key by which those come first that are given up last."""
    settled = set(trainer.settled)
    return {
        name: (name not in settled, -_remaining_s(nodes[name]), name)
        for name in trainer.current
        if name in nodes
    }


def _within(
    own: Sequence[str], count: int, quota: Mapping[PartKind, int], hosts: HostsView
) -> list[str]:
    """Return the first names with no more contended parts than planned."""
    left, kept = dict(quota), list[str]()
    for name in own:
        part = hosts.part_of[name]
        if len(kept) < count and left.get(part, 1):
            kept.append(name)
            if part in left:
                left[part] -= 1
    return kept


# ---- what the others get ---------------------------------------------------------------------


def _ready(
    scene: _Scene, takers: Sequence[Sequence[UnitTaker]], assignment: Mapping[str, str]
) -> tuple[list[list[UnitLot]], dict[UnitKind, int]]:
    """Return by kind the units that are there for its takers, and how many are missing."""
    pool, nodes = scene.pool, scene.nodes
    lots: list[list[UnitLot]] = []
    missing: dict[UnitKind, int] = {}
    given = set(assignment)
    for k, (kind, own) in enumerate(zip(scene.hosts.kinds, takers, strict=True)):
        need = sum([taker.need for taker in own])
        names = [name for name in pool.names[k] if name not in given] if need else []
        if scene.supply is not None and k in scene.supply.contended:
            names = _serving(scene, names, k, assignment)
        if len(names) > need or len({nodes[name].has_pilot for name in names}) > 1:
            names.sort(
                key=lambda name: (not nodes[name].has_pilot, -_remaining_s(nodes[name]), name)
            )
            del names[need:]
        given.update(names)
        of_host: dict[str, list[str]] = {}
        for name in names:
            of_host.setdefault(nodes[name].host or name, []).append(name)
        lots.append([UnitLot(own_names, 1) for own_names in of_host.values()])
        if need > len(names):
            missing[kind] = need - len(names)
    return lots, missing


def _carved(
    scene: _Scene, takers: Sequence[Sequence[UnitTaker]], wanted: Mapping[UnitKind, int]
) -> dict[UnitKind, list[UnitLot]]:
    """Return by kind as many units of free GPUs as are wanted."""
    hosts, plan = scene.hosts, scene.plan
    liked: dict[UnitKind, set[str]] = {}
    for kind, own in zip(hosts.kinds, takers, strict=True):
        liked[kind] = {host for taker in own for host in taker.hosts}

    remaining_s = _stays_s(scene)
    packed = pack(hosts.free, wanted, liked, remaining_s)
    if packed is None:  # seldom, and only where some width does not divide the next larger one
        if plan is None and scene.supply is not None:
            plan = plan_units(scene.pool, scene.supply, scene.split)
        packed = pack_as_planned(hosts.free, wanted, plan or NO_PLAN, remaining_s)
    used: dict[int, int] = {}  # by index of the host
    lots: dict[UnitKind, list[UnitLot]] = {}
    for kind, slots in packed.items():
        own_lots = lots.setdefault(kind, [])
        for index, count in slots:
            _, _, host_width, names = hosts.free[index]
            width = kind.width or host_width
            start = used.get(index, 0)
            used[index] = end = start + count * width
            own_lots.append(UnitLot(names[start:end], width))
    return lots


def _stays_s(scene: _Scene) -> list[float]:
    """Return how long the GPUs of each free host are expected to stay free, by its index."""
    ends_s = scene.ends_s
    if not ends_s:
        return [math.inf] * len(scene.hosts.free)
    endless = repeat(math.inf)
    return [min(map(ends_s.get, names, endless)) for *_, names in scene.hosts.free]


def _serving(
    scene: _Scene, names: Sequence[str], k: int, assignment: Mapping[str, str]
) -> list[str]:
    """Return those of the names that serve this kind by the plan."""
    hosts, plan = scene.hosts, scene.plan or NO_PLAN
    width_of = {trainer.trainer_id: trainer.width for trainer in scene.pool.trainers}
    left: dict[PartKind, int] = {}
    for (part, of_kind), count in plan.serves.items():
        if of_kind == k:
            owners = [assignment.get(name, "") for name in hosts.parts[part]]
            kept = [own for own in owners if width_of.get(own, -1) == hosts.kinds[k].width]
            left[part] = count - len(kept)
    serving: list[str] = []
    for name in names:
        part = hosts.part_of[name]
        if left.get(part, 1) > 0:
            serving.append(name)
            if part in left:
                left[part] -= 1
    return serving
