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
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

import numpy as np

from milp.placement.end_times import ENDLESS, Share, Want, share_leavers
from milp.placement.hosts import place_units
from milp.placement.topology import Cell, Taker, take_from_switches
from milp.pool import PoolView
from milp.problem import (
    Problem,
    ProblemNode,
    ProblemTrainer,
    names_of,
    names_outside,
    nodes_by_name,
)
from milp.tables import BoolArray, FloatArray, IntArray

# Ways to take nodes from switches: prefers tight switches, largest need first.
WAYS = ((True, True), (False, True), (True, False), (False, False))
MANY = 128  # nodes; beyond, each trainer that shrinks chooses for itself, and once
# One unit of an earlier part of the rule outweighs what one exchange can do to later ones.
DISTURBANCE, LEAVING, SWITCH, CLAIM, CROWD = 1e9, 1e5, 16.0, 1.0, 1e-4
NOISE = 1e-6
MAX_NODES = 128  # beyond, exchanges would take longer than the rest of the decision
MAX_WORK = 100_000  # pairs of nodes looked at: deterministic, unlike a clock


def place(problem: Problem, pool: PoolView, split: Sequence[Sequence[int]]) -> dict[str, str]:
    """Choose the nodes; ``split[j][k]`` of class k are for ``pool.trainers[j]``.

    The sizes must fit: the trainers ask for no more nodes of a class than it has.
    """
    if pool.hosts is not None:
        return place_units(problem, pool, split)
    if are_alike(problem):
        return place_alike(problem, pool, split)
    nodes = nodes_by_name(problem.nodes)
    assignment: dict[str, str] = {}
    for k, requests in enumerate(_requests(pool, split, nodes)):
        taken_names: set[str] = set()
        for request in requests:
            taken_names.update(names_of(request.has))
        free_nodes = [nodes[name] for name in names_outside(pool.names[k], taken_names)]
        _hand_out(problem, _unmet(requests), free_nodes)
        for request in requests:
            for node in request.has:
                assignment[node.name] = request.trainer.trainer_id
    return refine(problem, pool, assignment)


@dataclass(slots=True, kw_only=True)
class _Request:
    """A trainer that needs nodes of one class beside those it has for sure."""

    trainer: ProblemTrainer
    has: list[ProblemNode]  # grows as nodes are handed out; one list per trainer
    need: int
    choice: list[ProblemNode] | None = None  # what it chooses from when it shrinks


def _requests(
    pool: PoolView, split: Sequence[Sequence[int]], nodes: Mapping[str, ProblemNode]
) -> list[list[_Request]]:
    """Return the requests by class, in the order of the trainers."""
    requests: list[list[_Request]] = [[] for _ in pool.names]  # [k]
    for j, trainer in enumerate(pool.trainers):
        present = [nodes[name] for name in pool.present[j]]
        shrinks = sum(split[j]) < len(present)
        has: list[ProblemNode] = []  # shared by its requests
        if not shrinks:
            has = present
        for k, count in enumerate(split[j]):
            of_class = [node for node in present if pool.class_of.get(node.name) == k]
            if shrinks:
                request = _request_to_keep(trainer, has, of_class, count)
            else:
                request = _Request(trainer=trainer, has=has, need=count - len(of_class))
            requests[k].append(request)
    return requests


def _request_to_keep(
    trainer: ProblemTrainer, has: list[ProblemNode], of_class: list[ProblemNode], count: int
) -> _Request:
    """Return what a shrinking trainer keeps of its nodes of one class.

    A node still starting is given up first: the others train, and a trainer left with
    starting nodes only would have to park.
    """
    settled_names = set(trainer.settled)
    training: list[ProblemNode] = []
    starting: list[ProblemNode] = []
    for node in of_class:
        if node.name in settled_names:
            training.append(node)
        else:
            starting.append(node)
    if count < len(training):
        return _Request(trainer=trainer, has=has, need=count, choice=training)
    has += training
    return _Request(trainer=trainer, has=has, need=count - len(training), choice=starting)


def _hand_out(
    problem: Problem, requests: Sequence[_Request], free_nodes: Sequence[ProblemNode]
) -> None:
    """Give each request the nodes it needs; the free ones include what shrinking ones have."""
    if len(free_nodes) > MANY:
        kept_names: set[str] = set()
        for request in requests:
            if request.choice is not None:
                choice, request.choice = request.choice, None
                _hand_out(problem, [request], choice)
                request.need = 0
                kept_names.update(names_of(request.has))
        requests = _unmet(requests)
        free_nodes = _without(free_nodes, kept_names)
    if not requests:
        return
    counts = Counter(map(_end_s, free_nodes))
    wants = list(map(_want, requests))
    weights = {end: leave_weight(end, problem.t_fwd_s) for end in counts}
    shares, roaming_ends_s = share_leavers(wants, counts, weights)
    # Those that shrink choose first, each among its own nodes; those that grow have the others.
    taken_names: set[str] = set()
    growing: list[_Request] = []
    growing_shares: list[Share] = []
    for request, share in zip(requests, shares, strict=True):
        if request.choice is None:
            growing.append(request)
            growing_shares.append(share)
        else:
            (nodes,) = _take_nodes([request], [share], roaming_ends_s, request.choice)
            request.has += nodes
            taken_names.update(names_of(nodes))
    if growing:
        available = _without(free_nodes, taken_names)
        node_lists = _take_nodes(growing, growing_shares, roaming_ends_s, available)
        for request, nodes in zip(growing, node_lists, strict=True):
            request.has += nodes


def _unmet(requests: Sequence[_Request]) -> list[_Request]:
    return [request for request in requests if request.need > 0]


def _without(nodes: Sequence[ProblemNode], names: AbstractSet[str]) -> list[ProblemNode]:
    return [node for node in nodes if node.name not in names]


def _want(request: _Request) -> Want:
    own_ends: Counter[float] | None = None
    if request.choice is not None:
        own_ends = Counter(map(_end_s, request.choice))
    feels_s = frozenset(map(_end_s, request.has))
    return Want(need=request.need, feels_s=feels_s, own_ends=own_ends)


def _end_s(node: ProblemNode) -> float:
    return ENDLESS if node.expected_remaining_s is None else node.expected_remaining_s


def _take_nodes(
    requests: Sequence[_Request],
    shares: Sequence[Share],
    roaming_ends_s: frozenset[float],
    available: Sequence[ProblemNode],
) -> list[list[ProblemNode]]:
    """Nodes for each request, so many of each end, from few switches."""
    # Sources: what is exchangeable as far as leaves go; nodes in no source stay unused.
    source_of: dict[float, int] = {ENDLESS: 0}
    for share in shares:
        for end in share:
            source_of.setdefault(end, len(source_of))
    switches = _switches_of(available)
    for request in requests:
        switches |= _switches_of(request.has)
    switch_of = {switch: i for i, switch in enumerate(sorted(switches))}
    cells: defaultdict[Cell, list[ProblemNode]] = defaultdict(list)
    for node in available:
        end = _end_s(node)
        if end in roaming_ends_s:
            end = ENDLESS
        source = source_of.get(end)
        if source is not None:
            cells[source, switch_of[node.switch]].append(node)
    for members in cells.values():  # the last is taken first
        members.sort(key=lambda node: (not node.has_pilot, node.name), reverse=True)
    if len(cells) == 1:
        (members,) = cells.values()
        return [_pop(members, sum(share.values())) for share in shares]
    supply = np.zeros((len(source_of), len(switch_of)), dtype=np.int64)
    pilots_on = [0] * len(switch_of)  # by switch
    for (source, switch), members in cells.items():
        supply[source, switch] = len(members)
        pilots_on[switch] += _n_pilots(members)
    choices: list[list[list[ProblemNode]]] = []
    # Which way suits shows at the end only; small pools try all.
    n_ways = len(WAYS) if len(available) <= MANY else 1
    for prefers_tight, largest_first in WAYS[:n_ways]:
        takers = [
            _taker(request, share, source_of, switch_of)
            for request, share in zip(requests, shares, strict=True)
        ]
        take_from_switches(
            takers, supply, pilots_on, prefers_tight=prefers_tight, largest_first=largest_first
        )
        choices.append(_nodes_of(takers, cells))
    if len(choices) == 1:
        return choices[0]
    return min(choices, key=partial(_switches_and_claims, requests))


def _taker(
    request: _Request, share: Share, source_of: Mapping[float, int], switch_of: Mapping[str, int]
) -> Taker:
    counts = {source_of[end]: n for end, n in share.items() if n}
    kept_on = frozenset(map(switch_of.__getitem__, _switches_of(request.has)))
    return Taker(counts=counts, kept_on=kept_on)


def _switches_of(nodes: Iterable[ProblemNode]) -> set[str]:
    return {node.switch for node in nodes}


def _n_pilots(nodes: Iterable[ProblemNode]) -> int:
    return sum([node.has_pilot for node in nodes])


def _pop(nodes: list[ProblemNode], count: int) -> list[ProblemNode]:
    """Take so many off the end, the last first."""
    return [nodes.pop() for _ in range(count)]


def _switches_and_claims(
    requests: Sequence[_Request], choice: Sequence[Sequence[ProblemNode]]
) -> tuple[int, int]:
    """Return the last two parts of the rule."""
    n_switches = n_claims = 0
    for request, nodes in zip(requests, choice, strict=True):
        n_switches += len(_switches_of(request.has) | _switches_of(nodes))
        n_claims += len(nodes) - _n_pilots(nodes)
    return n_switches, n_claims


def _nodes_of(
    takers: Sequence[Taker], cells: Mapping[Cell, Sequence[ProblemNode]]
) -> list[list[ProblemNode]]:
    """Nodes for the numbers that each takes: those with pilots first, then by name."""
    nodes_left = {cell: list(members) for cell, members in cells.items()}
    node_lists: list[list[ProblemNode]] = []
    for taker in takers:
        nodes: list[ProblemNode] = []
        for switch, counts in taker.takes.items():
            for source, n in counts.items():
                nodes += _pop(nodes_left[source, switch], n)
        node_lists.append(nodes)
    return node_lists


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
    groups: defaultdict[str, list[ProblemNode]] = defaultdict(list)  # by trainer
    for node in problem.nodes:
        trainer_id = assignment.get(node.name)
        if trainer_id is not None:
            groups[trainer_id].append(node)
    pool = set(names_of(problem.nodes))
    settled_given_up, n_switches, claims = 0, 0, 0
    disturbances: list[float] = []
    leaving: list[float] = []
    for trainer in problem.trainers:
        lost_names = pool.intersection(trainer.settled)
        ends: set[float | None] = set()
        switches: set[str] = set()
        for node in groups[trainer.trainer_id]:
            lost_names.discard(node.name)
            ends.add(node.expected_remaining_s)
            switches.add(node.switch)
            leaving.append(leave_weight(node.expected_remaining_s, problem.t_fwd_s))
            claims += not node.has_pilot
        settled_given_up += len(lost_names)
        disturbances += [leave_weight(end, problem.t_fwd_s) for end in ends]
        n_switches += len(switches)
    return PlacementCost(
        settled_given_up=settled_given_up,
        disturbances=math.fsum(disturbances),
        leaving=math.fsum(leaving),
        switches=n_switches,
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
    index = pool.index()
    nobody = len(index)
    holder_of = {name: index[trainer_id] for name, trainer_id in assignment.items()}
    fixed_names, limits = _fixed_and_limits(pool, holder_of)
    names = sorted(pool.class_of.keys() - fixed_names)
    # Numbers for ends and switches, in the order of the nodes.
    end_of: dict[float | None, int] = {}
    switch_of: dict[str, int] = {}
    for node in problem.nodes:
        end_of.setdefault(node.expected_remaining_s, len(end_of))
        switch_of.setdefault(node.switch, len(switch_of))
    on_end = np.zeros((nobody + 1, len(end_of)), dtype=np.int64)
    on_switch = np.zeros((nobody + 1, len(switch_of)), dtype=np.int64)
    for node in problem.nodes:
        holder = holder_of.get(node.name, nobody)
        on_end[holder, end_of[node.expected_remaining_s]] += 1
        on_switch[holder, switch_of[node.switch]] += 1
    may_have = np.ones((nobody + 1, len(names)), dtype=np.bool_)
    for j, limit in limits.items():
        may_have[j] = [name in limit for name in names]
    by_name = nodes_by_name(problem.nodes)
    holders: list[int] = []
    ends: list[int] = []
    switches: list[int] = []
    groups: list[int] = []
    claims: list[int] = []
    for name in names:
        node = by_name[name]
        holders.append(holder_of.get(name, nobody))
        ends.append(end_of[node.expected_remaining_s])
        switches.append(switch_of[node.switch])
        groups.append(pool.class_of[name])
        claims.append(int(not node.has_pilot))
    return names, Movable(
        holder=np.array(holders, dtype=np.int64),
        end=np.array(ends, dtype=np.int64),
        switch=np.array(switches, dtype=np.int64),
        group=np.array(groups, dtype=np.int64),
        may_have=may_have,
        claims=np.array(claims, dtype=np.int64),
        on_end=on_end,
        on_switch=on_switch,
        weights=np.array([leave_weight(end, problem.t_fwd_s) for end in end_of]),
    )


def _fixed_and_limits(
    pool: PoolView, holder_of: Mapping[str, int]
) -> tuple[set[str], dict[int, set[str]]]:
    """Return the nodes that stay where they are, and by trainer what those that shrink may have."""
    fixed_names: set[str] = set()
    limits: dict[int, set[str]] = {}
    for j, (trainer, present) in enumerate(zip(pool.trainers, pool.present, strict=True)):
        kept_names = {name for name in present if holder_of.get(name) == j}
        if len(kept_names) == len(present):
            fixed_names |= kept_names
            continue
        # Settled nodes are given up last: either all stay or no other does.
        settled_names = set(trainer.settled).intersection(present)
        if kept_names <= settled_names:
            limits[j] = settled_names
        else:
            fixed_names |= settled_names
            limits[j] = set(present) - settled_names
    return fixed_names, limits


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
    # [n, m]: how many nodes with the end of m the holder of n has
    n_with_end = nodes.on_end[holder[:, None], end]
    weight = nodes.weights[end]
    is_held = (holder != nobody).astype(np.float64)
    alone = is_held * (nodes.on_end[holder, end] == 1)
    differs = end[:, None] != end
    disturbances = differs * is_held[:, None] * (n_with_end == 0) * weight
    disturbances -= differs * (alone * weight)[:, None]
    leaving = is_held[:, None] * (weight[None, :] - weight[:, None])
    n_on_switch = nodes.on_switch[holder[:, None], switch]  # likewise
    count = nodes.on_switch[holder, switch]
    differs = switch[:, None] != switch
    switches = differs * is_held[:, None] * (1.0 * (n_on_switch == 0) - (count == 1)[:, None])
    crowd = differs * is_held[:, None] * (count[:, None] - 1 - n_on_switch)
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
    is_allowed = may & may.T & (holder[:, None] != holder) & (nodes.group[:, None] == nodes.group)
    change[~is_allowed] = np.inf
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
            in_order = sorted(present, key=lambda name: (name not in settled, name in claims, name))
            for k, count in enumerate(counts):
                of_class = [name for name in in_order if pool.class_of.get(name) == k]
                assignment.update(dict.fromkeys(of_class[:count], trainer_id))
            continue
        assignment.update(dict.fromkeys(present, trainer_id))
        if size > len(present):
            for k, count in enumerate(counts):
                if count > pool.held[j][k]:
                    wants[k].append((trainer_id, count - pool.held[j][k]))
    for names, takers in zip(pool.names, wants, strict=True):
        if takers:
            free = sorted(
                names_outside(names, assignment),
                key=lambda name: (name in claims, name),
            )
            start = 0
            for trainer_id, count in takers:
                assignment.update(dict.fromkeys(free[start : start + count], trainer_id))
                start += count
    return assignment
