"""From sizes to nodes: who keeps, gives up and receives which nodes.

Takes a Problem and each trainer's size and class, returns the map node -> trainer;
called by the solver and by simple policies. No migration: a trainer that grows keeps
all its nodes, one that shrinks takes none. Then, in this order: nodes that leave soon
touch as few trainers as possible, the trainer's owner, its switches, the name.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from milp.pool import PoolView
from milp.problem import Problem, ProblemNode, ProblemTrainer


def place(
    problem: Problem, pool: PoolView, sizes: Sequence[int], classes: Sequence[int]
) -> dict[str, str]:
    """Choose the nodes; ``sizes[j]`` and ``classes[j]`` are of ``pool.trainers[j]``.

    The sizes must fit: the trainers of a class ask for no more nodes than it has.
    """
    nodes = {node.name: node for node in problem.nodes}
    kept = [
        _keep(trainer, [nodes[name] for name in present], size, k, pool)
        for trainer, present, size, k in zip(
            pool.trainers, pool.present, sizes, classes, strict=True
        )
    ]
    assignment = {
        node.name: trainer.trainer_id
        for trainer, names in zip(pool.trainers, kept, strict=True)
        for node in names
    }
    for k, names in enumerate(pool.names):
        growers = [
            _Grower(
                trainer=trainer,
                order=j,
                need=sizes[j] - len(kept[j]),
                soonest_s=min((_remaining_s(node) for node in kept[j]), default=math.inf),
                on_switch=Counter(node.switch for node in kept[j]),
            )
            for j, trainer in enumerate(pool.trainers)
            if classes[j] == k and sizes[j] > len(kept[j])
        ]
        free = [nodes[name] for name in names if name not in assignment]
        assignment |= {name: trainer_id for trainer_id, name in _hand_out(growers, free)}
    return assignment


@dataclass(slots=True, kw_only=True)
class _Grower:
    """A trainer that still needs nodes."""

    trainer: ProblemTrainer
    order: int
    need: int
    soonest_s: float  # when the first of the nodes it keeps is expected to leave
    on_switch: Counter[str] = field(default_factory=Counter)


def _remaining_s(node: ProblemNode) -> float:
    return math.inf if node.expected_remaining_s is None else node.expected_remaining_s


def _keep(
    trainer: ProblemTrainer, present: list[ProblemNode], size: int, k: int, pool: PoolView
) -> list[ProblemNode]:
    """The present nodes a trainer keeps; those starting, then those that leave soonest go first."""
    if size >= len(present):
        return present
    candidates = [node for node in present if pool.class_of.get(node.name) == k]
    on_switch = Counter(node.switch for node in candidates)
    candidates.sort(
        key=lambda node: (
            # A node still starting is given up first: the others train, and a trainer
            # left with starting nodes only would have to park.
            node.name not in trainer.settled,
            -_remaining_s(node),
            node.owner != trainer.owner,
            -on_switch[node.switch],
            node.switch,
            node.name,
        )
    )
    return candidates[:size]


def _hand_out(growers: list[_Grower], free: list[ProblemNode]) -> Iterable[tuple[str, str]]:
    """Pairs (trainer_id, node name) that fill every need.

    The nodes that stay longest are used. From the longest on they go first to the
    trainers with no end in sight, smallest need first, and last to those that lose a
    node anyhow: so the nodes that leave soonest meet in the fewest trainers.
    """
    queue = sorted(growers, key=lambda g: (-g.soonest_s, g.need, -g.order))
    by_remaining: defaultdict[float, list[ProblemNode]] = defaultdict(list)
    for node in free:
        by_remaining[_remaining_s(node)].append(node)
    for remaining_s in sorted(by_remaining, reverse=True):
        group = by_remaining[remaining_s]
        shares: list[tuple[_Grower, int]] = []
        left = len(group)
        while left and queue:
            grower = queue[0]
            take = min(left, grower.need)
            shares.append((grower, take))
            left -= take
            grower.need -= take
            if grower.need == 0:
                queue.pop(0)
        yield from _share_group(group, shares)
        if not queue:
            return


def _share_group(
    group: list[ProblemNode], shares: list[tuple[_Grower, int]]
) -> Iterable[tuple[str, str]]:
    """Split nodes that stay equally long: own owner's, then nobody's, then others'."""
    buckets: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for node in sorted(group, key=lambda node: node.name, reverse=True):
        buckets[node.owner][node.switch].append(node.name)
    rest = sorted(shares, key=lambda share: share[0].order)
    for others in (False, True):
        after: list[tuple[_Grower, int]] = []
        for grower, take in rest:
            own = grower.trainer.owner
            owners = [o for o in ("", *sorted(buckets)) if o != own] if others else [own]
            left = take
            for owner in dict.fromkeys(owners):
                taken = _take(grower, buckets.get(owner), left)
                left -= len(taken)
                yield from ((grower.trainer.trainer_id, name) for name in taken)
            after.append((grower, left))
        rest = after


def _take(grower: _Grower, by_switch: dict[str, list[str]] | None, n_nodes: int) -> list[str]:
    """Up to so many nodes, from the switches where the trainer has most, then the fullest."""
    taken: list[str] = []
    if not by_switch:
        return taken
    order = sorted(by_switch, key=lambda s: (-grower.on_switch[s], -len(by_switch[s]), s))
    for switch in order:
        while by_switch[switch] and len(taken) < n_nodes:
            taken.append(by_switch[switch].pop())
            grower.on_switch[switch] += 1
    return taken
