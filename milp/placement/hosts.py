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
from milp.placement.packing import UnitPlan, pack, pack_as_planned, plan_units
from milp.placement.unit_shares import UnitLot, UnitTaker, share_out
from milp.pool import PoolView
from milp.problem import (
    Problem,
    ProblemNode,
    ProblemTrainer,
    names_outside,
    nodes_by_name,
    widths_by_id,
)
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
    nodes = nodes_by_name(problem.nodes)
    supply = supply_of(pool)
    plan: UnitPlan | None = None
    if supply is not None and supply.contended:
        plan = plan_units(pool, supply, split)
    scene = _Scene(
        pool=pool,
        hosts=hosts,
        nodes=nodes,
        ends_s=_ends_s(problem),
        split=split,
        supply=supply,
        plan=plan,
    )
    assignment: dict[str, str] = {}
    takers: list[list[UnitTaker]] = [[] for _ in hosts.kinds]  # [k]
    for j, trainer in enumerate(pool.trainers):
        kept_names = _names_kept(scene, j)
        assignment.update(dict.fromkeys(kept_names, trainer.trainer_id))
        if sum(split[j]) <= len(pool.present[j]):
            continue
        own_hosts: set[str] = set()
        own_switches: set[str] = set()
        for name in kept_names:
            own_hosts.add(nodes[name].host or name)
            own_switches.add(nodes[name].switch)
        for k, count in enumerate(split[j]):
            if count > pool.held[j][k]:
                taker = UnitTaker(
                    trainer_id=trainer.trainer_id,
                    need=count - pool.held[j][k],
                    hosts=own_hosts,
                    switches=own_switches,
                )
                takers[k].append(taker)
    lots, missing = _ready_lots(scene, takers, assignment)
    if missing:
        for kind, new_lots in _carved_lots(scene, takers, missing).items():
            lots[hosts.kinds.index(kind)] += new_lots
    for takers_of_kind, lots_of_kind in zip(takers, lots, strict=True):
        share_out(takers_of_kind, lots_of_kind, nodes, assignment)
    return assignment


def _ends_s(problem: Problem) -> dict[str, float]:
    ends_s: dict[str, float] = {}
    for node in problem.nodes:
        if node.expected_remaining_s is not None:
            ends_s[node.name] = node.expected_remaining_s
    return ends_s


def _remaining_s(node: ProblemNode) -> float:
    return math.inf if node.expected_remaining_s is None else node.expected_remaining_s


# ---- what is kept ----------------------------------------------------------------------------


def _names_kept(scene: _Scene, j: int) -> list[str]:
    """Return the names of the units that a trainer keeps."""
    pool, nodes, counts = scene.pool, scene.nodes, scene.split[j]
    present, trainer = pool.present[j], pool.trainers[j]
    size = sum(counts)
    if not size or not present:
        return []
    if size >= len(present):
        return list(present)
    kept_names: list[str] = []
    last_to_go = _last_to_go(trainer, nodes)
    for k, count in enumerate(counts):
        if not count:
            continue
        kind = scene.hosts.kinds[k]
        of_kind: list[str] = []
        for name in present:
            is_of_class = nodes[name].eligibility == kind.eligibility
            if is_of_class and scene.hosts.part_of[name].serves(kind.width):
                of_kind.append(name)
        of_kind.sort(key=last_to_go.__getitem__)
        quota = scene.plan.keeps.get((j, k)) if scene.plan else None
        if quota is not None:
            of_kind = _within(of_kind, count, quota, scene.hosts)
        kept_names += of_kind[:count]
    return kept_names


def _last_to_go(
    trainer: ProblemTrainer, nodes: Mapping[str, ProblemNode]
) -> dict[str, tuple[bool, float, str]]:
    """Return a key by which those come first that are given up last."""
    settled = set(trainer.settled)
    keys: dict[str, tuple[bool, float, str]] = {}
    for name in trainer.current:
        if name in nodes:
            keys[name] = (name not in settled, -_remaining_s(nodes[name]), name)
    return keys


def _within(
    names: Sequence[str], count: int, quota: Mapping[PartKind, int], hosts: HostsView
) -> list[str]:
    """Return the first names with no more contended parts than planned."""
    quota_left, first_names = dict(quota), list[str]()
    for name in names:
        part = hosts.part_of[name]
        if len(first_names) < count and quota_left.get(part, 1):
            first_names.append(name)
            if part in quota_left:
                quota_left[part] -= 1
    return first_names


# ---- what the others get ---------------------------------------------------------------------


def _ready_lots(
    scene: _Scene, takers: Sequence[Sequence[UnitTaker]], assignment: Mapping[str, str]
) -> tuple[list[list[UnitLot]], dict[UnitKind, int]]:
    """Return by kind the units that are there for its takers, and how many are missing."""
    pool, nodes = scene.pool, scene.nodes
    lots: list[list[UnitLot]] = []
    missing: dict[UnitKind, int] = {}
    taken_names = set(assignment)
    for k, (kind, takers_of_kind) in enumerate(zip(scene.hosts.kinds, takers, strict=True)):
        need = sum([taker.need for taker in takers_of_kind])
        names: list[str] = []
        if need:
            names = names_outside(pool.names[k], taken_names)
        if scene.supply is not None and k in scene.supply.contended:
            names = _serving(scene, names, k, assignment)
        if len(names) > need or len({nodes[name].has_pilot for name in names}) > 1:
            names.sort(
                key=lambda name: (not nodes[name].has_pilot, -_remaining_s(nodes[name]), name)
            )
            del names[need:]
        taken_names.update(names)
        names_by_host: dict[str, list[str]] = {}
        for name in names:
            names_by_host.setdefault(nodes[name].host or name, []).append(name)
        lots.append([UnitLot(names_of_host, 1) for names_of_host in names_by_host.values()])
        if need > len(names):
            missing[kind] = need - len(names)
    return lots, missing


def _carved_lots(
    scene: _Scene, takers: Sequence[Sequence[UnitTaker]], wanted: Mapping[UnitKind, int]
) -> dict[UnitKind, list[UnitLot]]:
    """Return by kind as many units of free GPUs as are wanted."""
    hosts, plan = scene.hosts, scene.plan
    liked_hosts: dict[UnitKind, set[str]] = {}
    for kind, takers_of_kind in zip(hosts.kinds, takers, strict=True):
        hosts_of_kind: set[str] = set()
        for taker in takers_of_kind:
            hosts_of_kind |= taker.hosts
        liked_hosts[kind] = hosts_of_kind

    remaining_s = _stays_s(scene)
    carved = pack(hosts.free, wanted, liked_hosts, remaining_s)
    if carved is None:  # seldom, and only where some width does not divide the next larger one
        if plan is None and scene.supply is not None:
            plan = plan_units(scene.pool, scene.supply, scene.split)
        carved = pack_as_planned(hosts.free, wanted, plan or UnitPlan(), remaining_s)
    n_used: dict[int, int] = {}  # GPUs by index of the host
    lots: dict[UnitKind, list[UnitLot]] = {}
    for kind, slots in carved.items():
        lots_of_kind = lots.setdefault(kind, [])
        for index, count in slots:
            host = hosts.free[index]
            width = kind.width or host.host_width
            start = n_used.get(index, 0)
            end = start + count * width
            n_used[index] = end
            lots_of_kind.append(UnitLot(host.names[start:end], width))
    return lots


def _stays_s(scene: _Scene) -> list[float]:
    """Return how long the GPUs of each free host are expected to stay free, by its index."""
    ends_s = scene.ends_s
    if not ends_s:
        return [math.inf] * len(scene.hosts.free)
    endless = repeat(math.inf)
    return [min(map(ends_s.get, host.names, endless)) for host in scene.hosts.free]


def _serving(
    scene: _Scene, names: Sequence[str], k: int, assignment: Mapping[str, str]
) -> list[str]:
    """Return those of the names that serve this kind by the plan."""
    hosts, plan = scene.hosts, scene.plan or UnitPlan()
    width = hosts.kinds[k].width
    widths = widths_by_id(scene.pool.trainers)
    quota_left: dict[PartKind, int] = {}  # contended parts that may still serve this kind
    for (part, part_k), count in plan.serves.items():
        if part_k == k:
            quota_left[part] = count
            for name in hosts.parts[part]:
                owner = assignment.get(name)
                if owner is not None and widths[owner] == width:  # it keeps the part
                    quota_left[part] -= 1
    serving: list[str] = []
    for name in names:
        part = hosts.part_of[name]
        if quota_left.get(part, 1) > 0:
            serving.append(name)
            if part in quota_left:
                quota_left[part] -= 1
    return serving
