"""From sizes to nodes: the map of nodes to trainers.

Takes a Problem and each trainer's size and class, returns the map node -> trainer;
called by the solver and by simple policies. No migration: a trainer that grows keeps
all its nodes, one that shrinks takes none. Otherwise the map costs as little as we
find by ``milp.placement.refine``: settled nodes stay, nodes that leave together or soon
touch few trainers, then few switches, then nodes with pilots, then the name. The parts are
settled one after the other (``end_times``, ``topology``, pilots), small pools refined.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from milp.placement.end_times import ENDLESS, Share, Want, share_leavers
from milp.placement.refine import are_alike, leave_weight, place_alike, refine
from milp.placement.topology import Cell, Taker, take_from_switches
from milp.pool import PoolView
from milp.problem import Problem, ProblemNode, ProblemTrainer

WAYS = ((True, True), (False, True), (True, False), (False, False))
MANY = 128  # nodes; beyond, each trainer that shrinks chooses for itself, and once


def place(
    problem: Problem,
    pool: PoolView,
    sizes: Sequence[int],
    classes: Sequence[int],
    split: Sequence[Sequence[int]] | None = None,
) -> dict[str, str]:
    """Choose the nodes; ``sizes[j]`` and ``classes[j]`` are of ``pool.trainers[j]``.

    ``split[j][k]`` nodes are of class k; without it all of ``classes[j]``. The sizes
    must fit: the trainers of a class ask for no more nodes than it has.
    """
    if are_alike(problem):
        return place_alike(problem, pool, sizes, classes, split)
    nodes = {node.name: node for node in problem.nodes}
    requests: list[list[_Request]] = [[] for _ in pool.names]  # [k]
    for j, trainer in enumerate(pool.trainers):
        present = [nodes[name] for name in pool.present[j]]
        has = present if sizes[j] >= len(present) else []  # shared by its requests
        counts = split[j] if split else [sizes[j] * (k == classes[j]) for k in range(len(requests))]
        for k, count in enumerate(counts):
            own = [node for node in present if pool.class_of.get(node.name) == k]
            if sizes[j] < len(present):
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
