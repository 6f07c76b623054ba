"""Makes a placement cheaper by exchanging single nodes between trainers.

Takes movable nodes as columns of numbers and who has each now, changes that in place;
called by placement for small pools, after the greedy steps. Each round makes the
exchange that saves most of the whole rule, until none saves anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from milp.placement.cost import leave_weight
from milp.pool import PoolView
from milp.problem import Problem
from milp.tables import BoolArray, FloatArray, IntArray

# One unit of an earlier part of the rule outweighs what one exchange can do to later ones.
DISTURBANCE, LEAVING, SWITCH, CLAIM, CROWD = 1e9, 1e5, 16.0, 1.0, 1e-4
NOISE = 1e-6
MAX_NODES = 128  # beyond, exchanges would take longer than the rest of the decision
MAX_WORK = 100_000  # pairs of nodes looked at: deterministic, unlike a clock


@dataclass(slots=True, kw_only=True)
class Movable:
    """Nodes that may change hands, and the hands; the last holder is nobody."""

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
    for _ in range(1 + MAX_WORK // len(names) ** 2):
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
    """Which nodes may change hands, as numbers."""
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
