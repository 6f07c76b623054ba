"""From sizes to nodes: the map of nodes to trainers.

Takes a Problem and each trainer's size by class, returns the map node -> trainer;
called by the solver and by simple policies. No migration: a trainer that grows keeps
all its nodes, one that shrinks takes none. Otherwise the map costs as little as we
find: settled nodes stay, nodes that leave together or soon
touch few trainers, then few switches, then nodes with pilots, then the name. The parts are
settled one after the other (``end_times``, ``topology``, pilots), small pools refined.

``refine`` makes columns of numbers of the movable nodes and their trainers. Each round makes the
exchange of two nodes that saves most of the cost, until none saves anything. ``place_alike`` is for
nodes that all share one end and one switch, as on a machine about which no more is known.
``placement_cost`` measures the distance to the optimum. Where GPUs are lent, ``hosts`` places.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from milp.placement.end_times import ENDLESS, Share, Want, share_leavers
from milp.placement.hosts import place_units
from milp.placement.topology import Cell, Taker, take_from_switches
from milp.pool import PoolView
from milp.problem import Problem, ProblemNode, ProblemTrainer
from milp.tables import BoolArray, FloatArray, IntArray

WAYS = ((True, True), (False, True), (True, False), (False, False))
MANY = 128  # nodes; beyond, each trainer that shrinks chooses for itself, and once


def place(problem: Problem, pool: PoolView, split: Sequence[Sequence[int]]) -> dict[str, str]:
    """Choose the nodes; ``split[j][k]`` of class k are for ``pool.trainers[j]``.

    The sizes must fit: the trainers ask for no more nodes of a class than it has.
    """
    if pool.hosts is not None:
        return place_units(problem, pool, split)
    if are_alike(problem):
        return place_alike(problem, pool, split)
    nodes = {node.name: node for node in problem.nodes}
    requests: list[list[_Request]] = [[] for _ in pool.names]  # [k]
    for j, trainer in enumerate(pool.trainers):
        present = [nodes[name] for name in pool.present[j]]
        shrinks = sum(split[j]) < len(present)
        has = [] if shrinks else present  # shared by its requests
        for k, count in enumerate(split[j]):
            own = [node for node in present if pool.class_of.get(node.name) == k]
            if shrinks:
                requests[k].append(_keeping(trainer, has, own, count))
            else:
                requests[k].append(_Request(trainer=trainer, has=has, need=count - len(own)))
    assignment: dict[str, str] = {}
    for k, of_class in enumerate(requests):
        fixed = {node.name for request in of_class for node in request.has}
        free = [nodes[name] for name in pool.names[k] if name not in fixed]
        _hand_out(problem, [request for request in of_class if request.need > 0], free)
        for request in of_class:
            names = (node.name for node in request.has)
            assignment |= dict.fromkeys(names, request.trainer.trainer_id)
    return refine(problem, pool, assignment)


@dataclass(slots=True, kw_only=True)
class _Request:
    """A trainer that needs nodes of one class beside those it has for sure."""

    trainer: ProblemTrainer
    has: list[ProblemNode]  # grows as nodes are handed out; one list per trainer
    need: int
    own: list[ProblemNode] | None = None  # what it chooses from when it shrinks


def _keeping(
    trainer: ProblemTrainer, has: list[ProblemNode], own: list[ProblemNode], count: int
) -> _Request:
    """Return what a shrinking trainer keeps of one class.

    A node still starting is given up first: the others train, and a trainer left with
    starting nodes only would have to park.
    """
    settled = set(trainer.settled)
    trains = [node for node in own if node.name in settled]
    if count < len(trains):
        return _Request(trainer=trainer, has=has, need=count, own=trains)
    has += trains
    starts = [node for node in own if node.name not in settled]
    return _Request(trainer=trainer, has=has, need=count - len(trains), own=starts)


def _hand_out(problem: Problem, requests: Sequence[_Request], free: Sequence[ProblemNode]) -> None:
    """Give each request the nodes it needs; ``free`` includes what shrinking ones choose from."""
    if len(free) > MANY:
        kept: set[str] = set()
        for request in requests:
            if request.own is not None:
                own, request.own = request.own, None
                _hand_out(problem, [request], own)
                request.need = 0
                kept.update(node.name for node in request.has)
        requests = [request for request in requests if request.need > 0]
        free = [node for node in free if node.name not in kept]
    if not requests:
        return
    counts = Counter(map(_end_s, free))
    wants = [
        Want(
            need=request.need,
            feels_s=frozenset(map(_end_s, request.has)),
            own=None if request.own is None else Counter(map(_end_s, request.own)),
        )
        for request in requests
    ]
    weights = {end: leave_weight(end, problem.t_fwd_s) for end in counts}
    shares, roaming_ends_s = share_leavers(wants, counts, weights)
    share_of = {r.trainer.trainer_id: share for r, share in zip(requests, shares, strict=True)}

    def choose(among: Sequence[_Request], available: Sequence[ProblemNode]) -> set[str]:
        wants = [share_of[request.trainer.trainer_id] for request in among]
        chosen = _take_nodes(among, wants, roaming_ends_s, available)
        for request, got in zip(among, chosen, strict=True):
            request.has += got
        return {node.name for got in chosen for node in got}

    taken: set[str] = set()
    for request in requests:
        if request.own is not None:
            taken |= choose([request], request.own)
    growing = [request for request in requests if request.own is None]
    if growing:
        choose(growing, [node for node in free if node.name not in taken])


def _end_s(node: ProblemNode) -> float:
    return ENDLESS if node.expected_remaining_s is None else node.expected_remaining_s


def _take_nodes(
    requests: Sequence[_Request],
    wants: Sequence[Share],
    roaming_ends_s: frozenset[float],
    available: Sequence[ProblemNode],
) -> list[list[ProblemNode]]:
    """Nodes for each request, so many of each end, from few switches."""
    # Sources: what is exchangeable as far as leaves go; nodes in no source stay unused.
    source_of: dict[float, int] = {ENDLESS: 0}
    for want in wants:
        for end in want:
            source_of.setdefault(end, len(source_of))
    switches = {node.switch for request in requests for node in request.has}
    switches.update(node.switch for node in available)
    switch_of = {switch: i for i, switch in enumerate(sorted(switches))}
    cells: defaultdict[Cell, list[ProblemNode]] = defaultdict(list)
    for node in available:
        end = _end_s(node)
        source = source_of.get(ENDLESS if end in roaming_ends_s else end)
        if source is not None:
            cells[source, switch_of[node.switch]].append(node)
    supply = np.zeros((len(source_of), len(switch_of)), dtype=np.int64)
    for cell, members in cells.items():
        supply[cell] = len(members)
    for members in cells.values():  # the last is taken first
        members.sort(key=lambda node: (not node.has_pilot, node.name), reverse=True)
    if len(cells) == 1:
        members = next(iter(cells.values()))
        return [[members.pop() for _ in range(sum(want.values()))] for want in wants]
    favoured = [0] * len(switch_of)
    for (_, switch), members in cells.items():
        favoured[switch] += sum(node.has_pilot for node in members)
    choices: list[list[list[ProblemNode]]] = []
    # Which way suits shows at the end only; small pools try all.
    for prefers_tight, largest_first in WAYS[: len(WAYS) if len(available) <= MANY else 1]:
        takers = [
            Taker(
                wanted={source_of[end]: n for end, n in want.items() if n},
                kept_on=frozenset(switch_of[node.switch] for node in request.has),
            )
            for request, want in zip(requests, wants, strict=True)
        ]
        take_from_switches(
            takers, supply, favoured, prefers_tight=prefers_tight, largest_first=largest_first
        )
        choices.append(_named(takers, cells))
    return choices[0] if len(choices) == 1 else min(choices, key=partial(_cost, requests))


def _cost(requests: Sequence[_Request], chosen: Sequence[Sequence[ProblemNode]]) -> tuple[int, int]:
    """Switches and claims, the last two parts of the rule."""
    pairs = list(zip(requests, chosen, strict=True))
    return (
        sum(len({node.switch for node in (*request.has, *got)}) for request, got in pairs),
        sum(not node.has_pilot for got in chosen for node in got),
    )


def _named(
    takers: Sequence[Taker], cells: Mapping[Cell, Sequence[ProblemNode]]
) -> list[list[ProblemNode]]:
    """Nodes for the numbers that each takes: those with pilots first, then by name."""
    left = {cell: list(members) for cell, members in cells.items()}
    got: list[list[ProblemNode]] = [[] for _ in takers]
    for j, taker in enumerate(takers):
        for switch, at in taker.takes.items():
            for source, n in at.items():
                got[j] += [left[source, switch].pop() for _ in range(n)]
    return got


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlacementCost:
    """Compared in the order of the fields: the first that differs decides."""

    settled_given_up: int  # nodes that train and that a trainer loses
    disturbances: float  # expected leaves that trainers will feel: see ``leave_weight``
    leaving: float  # the same by node: expected nodes that trainers will lose
    switches: int  # distinct switches, summed over the trainers
    claims: int  # nodes that have no pilot yet


def placement_cost(problem: Problem, assignment: Mapping[str, str]) -> PlacementCost:
    """The cost of a map; sizes and legality are not its subject."""
    groups: dict[str, list[ProblemNode]] = {t.trainer_id: [] for t in problem.trainers}
    for node in problem.nodes:
        trainer_id = assignment.get(node.name)
        if trainer_id is not None:
            groups[trainer_id].append(node)
    pool = {node.name for node in problem.nodes}
    settled_given_up, switches, claims = 0, 0, 0
    disturbances: list[float] = []
    leaving: list[float] = []
    for trainer in problem.trainers:
        group = groups[trainer.trainer_id]
        settled_given_up += len(pool.intersection(trainer.settled) - {node.name for node in group})
        ends = [node.expected_remaining_s for node in group]
        disturbances += [leave_weight(end, problem.t_fwd_s) for end in set(ends)]
        leaving += [leave_weight(end, problem.t_fwd_s) for end in ends]
        switches += len({node.switch for node in group})
        claims += sum(not node.has_pilot for node in group)
    return PlacementCost(
        settled_given_up=settled_given_up,
        disturbances=math.fsum(disturbances),
        leaving=math.fsum(leaving),
        switches=switches,
        claims=claims,
    )


def leave_weight(expected_remaining_s: float | None, t_fwd_s: float) -> float:
    """Chance that a node leaves before the next decision, 0 when no end is in sight.

    Nodes with the same ``expected_remaining_s`` leave in one event, which disturbs each
    trainer that has any of them once. Decisions come on average t_fwd_s apart, and how
    often is known no better than that (an exponential rate with an exponential prior):
    none comes within r seconds with probability t_fwd / (t_fwd + r).
    """
    if expected_remaining_s is None or expected_remaining_s == math.inf:
        return 0.0
    between_s = max(t_fwd_s, 1.0)
    return between_s / (between_s + max(expected_remaining_s, 0.0))


# One unit of an earlier part of the rule outweighs what one exchange can do to later ones.
DISTURBANCE, LEAVING, SWITCH, CLAIM, CROWD = 1e9, 1e5, 16.0, 1.0, 1e-4
NOISE = 1e-6
MAX_NODES = 128  # beyond, exchanges would take longer than the rest of the decision
MAX_WORK = 100_000  # pairs of nodes looked at: deterministic, unlike a clock


@dataclass(slots=True, kw_only=True)
class Movable:
    """Nodes that may change trainers, with their holders; the last holder stands for no trainer."""

    holder: IntArray  # [n]
    end: IntArray  # [n]
    switch: IntArray  # [n]
    group: IntArray  # [n]: only nodes of one group are exchanged
    may_have: BoolArray  # [holder, n]
    claims: IntArray  # [n]: 1 where there is no pilot yet
    on_end: IntArray  # [holder, end]: nodes it has, fixed ones included
    on_switch: IntArray  # [holder, switch]
    weights: FloatArray  # [end]: of a leave, 0 when there is none


def refine(problem: Problem, pool: PoolView, assignment: Mapping[str, str]) -> dict[str, str]:
    """The map after exchanges, with the same sizes by trainer and class."""
    if len(pool.class_of) > MAX_NODES:
        return dict(assignment)
    names, nodes = _view(problem, pool, assignment)
    if len(names) < 2:
        return dict(assignment)
    for _ in range(1 + MAX_WORK // (len(names) * len(names))):
        change = _changes(nodes)
        n, m = divmod(int(change.argmin()), len(names))
        if change[n, m] >= -NOISE:
            break
        _exchange(nodes, n, m)
    refined = dict(assignment)
    for name, j in zip(names, nodes.holder.tolist(), strict=True):
        refined.pop(name, None)
        if j < len(pool.trainers):
            refined[name] = pool.trainers[j].trainer_id
    return refined


def _view(
    problem: Problem, pool: PoolView, assignment: Mapping[str, str]
) -> tuple[list[str], Movable]:
    """Return the nodes that may change trainers, and the same as numbers."""
    by_name = {node.name: node for node in problem.nodes}
    index = {trainer.trainer_id: j for j, trainer in enumerate(pool.trainers)}
    nobody = len(index)
    holder_of = {name: index[trainer_id] for name, trainer_id in assignment.items()}
    fixed: set[str] = set()
    limits: dict[int, set[str]] = {}
    for j, (trainer, present) in enumerate(zip(pool.trainers, pool.present, strict=True)):
        kept = {name for name in present if holder_of.get(name) == j}
        if len(kept) == len(present):
            fixed |= kept
            continue
        # Settled nodes are given up last: either all stay or no other does.
        settled = set(trainer.settled).intersection(present)
        if kept <= settled:
            limits[j] = settled
        else:
            fixed |= settled
            limits[j] = set(present) - settled
    names = sorted(name for name in pool.class_of if name not in fixed)
    members = [by_name[name] for name in names]
    ends = {end: e for e, end in enumerate({node.expected_remaining_s for node in problem.nodes})}
    switches = {switch: s for s, switch in enumerate({node.switch for node in problem.nodes})}
    on_end = np.zeros((nobody + 1, len(ends)), dtype=np.int64)
    on_switch = np.zeros((nobody + 1, len(switches)), dtype=np.int64)
    for name, node in by_name.items():
        j = holder_of.get(name, nobody)
        on_end[j, ends[node.expected_remaining_s]] += 1
        on_switch[j, switches[node.switch]] += 1
    may_have = np.ones((nobody + 1, len(names)), dtype=np.bool_)
    for j, limit in limits.items():
        may_have[j] = [name in limit for name in names]
    return names, Movable(
        holder=np.array([holder_of.get(name, nobody) for name in names], dtype=np.int64),
        end=np.array([ends[node.expected_remaining_s] for node in members], dtype=np.int64),
        switch=np.array([switches[node.switch] for node in members], dtype=np.int64),
        group=np.array([pool.class_of[name] for name in names], dtype=np.int64),
        may_have=may_have,
        claims=np.array([not node.has_pilot for node in members], dtype=np.int64),
        on_end=on_end,
        on_switch=on_switch,
        weights=np.array([leave_weight(end, problem.t_fwd_s) for end in ends]),
    )


def _exchange(nodes: Movable, n: int, m: int) -> None:
    j, i = nodes.holder[n], nodes.holder[m]
    for counts, at in ((nodes.on_end, nodes.end), (nodes.on_switch, nodes.switch)):
        counts[j, at[n]] -= 1
        counts[j, at[m]] += 1
        counts[i, at[m]] -= 1
        counts[i, at[n]] += 1
    nodes.holder[n], nodes.holder[m] = i, j


def _changes(nodes: Movable) -> FloatArray:
    """[n, m]: what the exchange of nodes n and m changes; inf where it is not allowed."""
    holder, end, switch = nodes.holder, nodes.end, nodes.switch
    nobody = len(nodes.on_end) - 1
    own = nodes.on_end[holder[:, None], end]  # [n, m]: nodes at the end of m that n's holder has
    weight = nodes.weights[end]
    is_held = (holder != nobody).astype(np.float64)
    alone = is_held * (nodes.on_end[holder, end] == 1)
    differs = end[:, None] != end
    disturbances = differs * is_held[:, None] * (own == 0) * weight
    disturbances -= differs * (alone * weight)[:, None]
    leaving = is_held[:, None] * (weight[None, :] - weight[:, None])
    own = nodes.on_switch[holder[:, None], switch]
    count = nodes.on_switch[holder, switch]
    differs = switch[:, None] != switch
    switches = differs * is_held[:, None] * (1.0 * (own == 0) - (count == 1)[:, None])
    crowd = differs * is_held[:, None] * (count[:, None] - 1 - own)
    claims = is_held[:, None] * (nodes.claims[None, :] - nodes.claims[:, None])
    half = (
        DISTURBANCE * disturbances
        + LEAVING * leaving
        + SWITCH * switches
        + CLAIM * claims
        + CROWD * crowd
    )
    change: FloatArray = half + half.T
    may = nodes.may_have[holder]
    allowed = may & may.T & (holder[:, None] != holder) & (nodes.group[:, None] == nodes.group)
    change[~allowed] = np.inf
    return change


def are_alike(problem: Problem) -> bool:
    """Return whether no node is better than another, but that it has a pilot."""
    return len({(node.switch, node.expected_remaining_s) for node in problem.nodes}) <= 1


def place_alike(problem: Problem, pool: PoolView, split: Sequence[Sequence[int]]) -> dict[str, str]:
    """Return the map: nodes that do not train yet go first; then pilots, name and order count."""
    claims = {node.name for node in problem.nodes if not node.has_pilot}
    assignment: dict[str, str] = {}
    wants: list[list[tuple[str, int]]] = [[] for _ in pool.names]  # [k]: trainer, nodes
    for j, (trainer, counts, present) in enumerate(
        zip(pool.trainers, split, pool.present, strict=True)
    ):
        size = sum(counts)
        if not size:
            continue
        trainer_id = trainer.trainer_id
        if size < len(present):
            settled = set(trainer.settled)
            ordered = sorted(present, key=lambda name: (name not in settled, name in claims, name))
            for k, count in enumerate(counts):
                own = [name for name in ordered if pool.class_of.get(name) == k]
                assignment.update(dict.fromkeys(own[:count], trainer_id))
            continue
        assignment.update(dict.fromkeys(present, trainer_id))
        if size > len(present):
            for k, count in enumerate(counts):
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
