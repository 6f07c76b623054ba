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
from dataclasses import dataclass, field
from typing import NamedTuple

from milp.hosts import WHOLE, FreeHost, HostsView, Kind, PartKind, usable_as
from milp.placement.packing import Plan, pack, pack_as_planned, plan_units
from milp.pool import PoolView
from milp.problem import Problem, ProblemNode, ProblemTrainer
from milp.supply import Supply, supply_of

class Place(NamedTuple):
    """The host of a unit; a node without one is its own."""

    switch: str
    host: str


class _Lot(NamedTuple):
    """Units of one host that are handed out together or one by one."""

    names: list[str]  # of their nodes, unit after unit
    width: int  # nodes of one unit

    def count(self) -> int:
        """Return how many units there are."""
        return len(self.names) // self.width


@dataclass(slots=True, kw_only=True)
class _Taker:
    """A trainer that gets units of one kind beside those it keeps."""

    trainer_id: str
    need: int
    places: set[Place]  # of its units


def place_units(
    problem: Problem, pool: PoolView, split: Sequence[Sequence[int]]
) -> dict[str, str]:
    """Choose the nodes; ``split[j][k]`` units of kind k are for ``pool.trainers[j]``.

    Raises:
        milp.problem.ProblemError: BFT-3023, the sizes do not fit.
    """
    hosts = pool.hosts
    if hosts is None or not hosts.kinds:
        return {}
    nodes = {node.name: node for node in problem.nodes}
    supply = supply_of(pool)
    plan: Plan | None = None
    if supply is not None and supply.contended:
        plan = plan_units(pool, supply, split)
    assignment: dict[str, str] = {}
    takers: list[list[_Taker]] = [[] for _ in hosts.kinds]  # [k]
    for j, trainer in enumerate(pool.trainers):
        kept = _kept(pool, j, split[j], nodes, plan)
        assignment.update(dict.fromkeys(kept, trainer.trainer_id))
        places = {_place_of(nodes[name]) for name in kept}
        for k, count in enumerate(split[j]):
            n_kept = count if sum(split[j]) < len(pool.present[j]) else pool.held[j][k]
            if count > n_kept:
                need = count - n_kept
                takers[k].append(
                    _Taker(trainer_id=trainer.trainer_id, need=need, places=places)
                )
    lots = _chosen(pool, hosts, supply, plan, takers, split, assignment, nodes)
    for own, offered in zip(takers, lots, strict=True):
        _share_out(own, offered, nodes, assignment)
    return assignment


def _place_of(node: ProblemNode) -> Place:
    return Place(node.switch, node.host or node.name)


def _remaining_s(node: ProblemNode) -> float:
    return math.inf if node.expected_remaining_s is None else node.expected_remaining_s


# ---- what is kept ----------------------------------------------------------------------------


def _kept(
    pool: PoolView,
    j: int,
    counts: Sequence[int],
    nodes: Mapping[str, ProblemNode],
    plan: Plan | None,
) -> list[str]:
    """Return the names of the units that a trainer keeps."""
    present, trainer = pool.present[j], pool.trainers[j]
    size = sum(counts)
    if not size or not present:
        return []
    if size >= len(present):
        return list(present)
    kept: list[str] = []
    for k, count in enumerate(counts):
        if not count:
            continue
        kind = pool.hosts.kinds[k] if pool.hosts else Kind("", WHOLE)
        own = [name for name in present if nodes[name].eligibility == kind.eligibility]
        own = [name for name in own if usable_as(nodes[name], trainer.width)]
        own.sort(key=_last_to_go(trainer, nodes).__getitem__)
        quota = plan.keeps.get((j, k)) if plan else None
        kept += own[:count] if quota is None else _within(own, count, quota, nodes)
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
    own: Sequence[str], count: int, quota: Mapping[PartKind, int], nodes: Mapping[str, ProblemNode]
) -> list[str]:
    """Return the first names with no more contended parts than planned."""
    left, kept = dict(quota), list[str]()
    for name in own:
        node = nodes[name]
        part = PartKind(node.eligibility, node.width, node.width == node.host_width)
        is_contended = bool(node.host) and part in left
        if len(kept) < count and (not is_contended or left[part]):
            kept.append(name)
            if is_contended:
                left[part] -= 1
    return kept


# ---- what the others get ---------------------------------------------------------------------


def _chosen(
    pool: PoolView,
    hosts: HostsView,
    supply: Supply | None,
    plan: Plan | None,
    takers: Sequence[Sequence[_Taker]],
    split: Sequence[Sequence[int]],
    assignment: Mapping[str, str],
    nodes: Mapping[str, ProblemNode],
) -> list[list[_Lot]]:
    """Return by kind as many units as its takers need: those there are, then of free GPUs."""
    lots: list[list[_Lot]] = []
    carved: dict[Kind, int] = {}
    liked: dict[Kind, set[str]] = {}
    given = set(assignment)
    for k, (kind, own) in enumerate(zip(hosts.kinds, takers, strict=True)):
        need = sum([taker.need for taker in own])
        ready = [name for name in pool.names[k] if name not in given] if need else []
        if plan is not None and supply is not None and k in supply.contended:
            ready = _serving(ready, k, plan, assignment, hosts, pool)
        if len(ready) > need or len({nodes[name].has_pilot for name in ready}) > 1:
            ready.sort(
                key=lambda name: (not nodes[name].has_pilot, -_remaining_s(nodes[name]), name)
            )
            del ready[need:]
        given.update(ready)
        lots.append([_Lot([name], 1) for name in ready])
        if need > len(ready):
            carved[kind] = need - len(ready)
            liked[kind] = {place.host for taker in own for place in taker.places}
    if not carved:
        return lots
    ends_s: dict[tuple[str, str], float] = {}

    def remaining_s(host: FreeHost) -> float:
        key = host.host, host.eligibility
        if key not in ends_s:
            ends_s[key] = min([_remaining_s(nodes[name]) for name in host.names])
        return ends_s[key]

    packed = None
    if plan is None or not plan.patterns:
        packed = pack(hosts.free, carved, liked, remaining_s)
    if packed is None:
        if plan is None and supply is not None:
            plan = plan_units(pool, supply, split)
        packed = pack_as_planned(hosts.free, carved, plan or Plan(keeps={}, serves={}, patterns={}), remaining_s)
    used: dict[tuple[str, str], int] = {}
    index = {kind: k for k, kind in enumerate(hosts.kinds)}
    for kind, slots in packed.items():
        own_lots = lots[index[kind]]
        for host, count in slots:
            width, key = kind.width or host.host_width, (host.host, host.eligibility)
            start = used.get(key, 0)
            used[key] = end = start + count * width
            own_lots.append(_Lot(host.names[start:end], width))
    return lots


def _serving(
    ready: Sequence[str],
    k: int,
    plan: Plan,
    assignment: Mapping[str, str],
    hosts: HostsView,
    pool: PoolView,
) -> list[str]:
    """Return those of the names that serve this kind by the plan."""
    width_of = {trainer.trainer_id: trainer.width for trainer in pool.trainers}
    left: dict[str, list[int]] = {}  # by name: how many of its parts may serve, shared
    for (part, of_kind), count in plan.serves.items():
        if of_kind != k:
            continue
        width = hosts.kinds[k].width
        kept = [n for n in hosts.parts[part] if width_of.get(assignment.get(n, ""), -1) == width]
        quota = [count - len(kept)]
        left.update(dict.fromkeys(hosts.parts[part], quota))
    serving: list[str] = []
    for name in ready:
        quota_of = left.get(name)
        if quota_of is None or quota_of[0] > 0:
            serving.append(name)
            if quota_of is not None:
                quota_of[0] -= 1
    return serving


@dataclass(slots=True, kw_only=True)
class _Switch:
    """Units behind one switch, by host."""

    total: int = 0  # units
    of_host: dict[str, list[_Lot]] = field(default_factory=dict)
    count_of: dict[str, int] = field(default_factory=dict)  # host -> units
    by_count: dict[int, list[str]] = field(default_factory=dict)  # hosts, some no longer right

    def fill(self, need: int, names: list[str]) -> int:
        """Take up to ``need`` units: of the smallest host that has so many, else of the largest.

        Returns:
            How many units, whose nodes are added to ``names``.
        """
        n_taken = 0
        while n_taken < need and self.total:
            missing = need - n_taken
            counts = [count for count, hosts in self.by_count.items() if hosts]
            enough = [count for count in counts if count >= missing]
            count = min(enough) if enough else max(counts)
            host = self.by_count[count].pop()
            if self.count_of[host] == count:
                n_taken += self.take(host, missing, names)
        return n_taken

    def take(self, host: str, need: int, names: list[str]) -> int:
        """Take up to ``need`` units of a host likewise."""
        count = self.count_of.get(host, 0)
        missing = n_taken = min(need, count)
        lots = self.of_host.get(host, [])
        while missing:
            lot = lots.pop()
            n_of_lot = min(missing, lot.count())
            names += lot.names[: n_of_lot * lot.width]
            missing -= n_of_lot
            if n_of_lot < lot.count():
                lots.append(_Lot(lot.names[n_of_lot * lot.width :], lot.width))
        self.total -= n_taken
        if n_taken:
            self.count_of[host] = count - n_taken
            if count > n_taken:
                self.by_count.setdefault(count - n_taken, []).append(host)
        return n_taken


def _share_out(
    takers: Sequence[_Taker],
    lots: Sequence[_Lot],
    nodes: Mapping[str, ProblemNode],
    assignment: dict[str, str],
) -> None:
    """Give each taker its units; there are as many as they need."""
    if len(takers) == 1:
        for lot in lots:
            assignment.update(dict.fromkeys(lot.names, takers[0].trainer_id))
        return
    switches: dict[str, _Switch] = {}
    for lot in lots:
        place = _place_of(nodes[lot.names[0]])
        at = switches.setdefault(place.switch, _Switch())
        at.of_host.setdefault(place.host, []).append(lot)
        at.count_of[place.host] = at.count_of.get(place.host, 0) + lot.count()
        at.total += lot.count()
    for at in switches.values():
        for host in sorted(at.of_host, reverse=True):  # the last is taken first
            at.by_count.setdefault(at.count_of[host], []).append(host)
    for taker in sorted(takers, key=lambda taker: (-taker.need, taker.trainer_id)):
        names: list[str] = []
        missing = taker.need
        for place in sorted(taker.places):
            if missing and place.switch in switches:
                missing -= switches[place.switch].take(place.host, missing, names)
        own_switches = {place.switch for place in taker.places} & switches.keys()
        for switch in sorted(own_switches):
            missing -= switches[switch].fill(missing, names)
        while missing:
            best = min(
                [
                    (at.total < missing, at.total if at.total >= missing else -at.total, switch)
                    for switch, at in switches.items()
                    if at.total
                ]
            )
            missing -= switches[best[-1]].fill(missing, names)
        assignment.update(dict.fromkeys(names, taker.trainer_id))
