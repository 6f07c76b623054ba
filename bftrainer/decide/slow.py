"""Slow nodes as measured → which of them are still used, and who takes a straggler's place.

A trainer trains in step: with a node that reaches the fraction f of the others' throughput
it is worth f O_j(n), whatever the others do. Which nodes it has is no part of the
allocation problem (``milp``), so the problem is stated several times, each time without
some of the slow nodes, and the answer that is truly worth most is taken:

    sum over j of  f_j O_j(n_j) T  -  f_j' O_j(C_j) R_j        (eq. 16 with fractions)

f_j that of its slowest node then, f_j' now, R_j = R_up where a node joins, also in place of
another one, R_down where nodes only leave. So a straggler is replaced when another node is
there that is not worth more elsewhere and the pause pays back within T; it is left out
without replacement when the others are quicker without it; it stays otherwise.

A straggler that is replaced stays a member until its replacement trains (``Replacing``);
it then goes in the same change of generation (MLSys 2020, section 5). A slow node is
remembered, for it may be slow for anyone; the memory fades. ``look`` and ``settle`` are
folds over ``Memory``. Called by ``decision``; with no slow nodes it costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from milp.problem import Allocation, Problem, ProblemNode, ProblemTrainer
from milp.worth import earning_s, rate

if TYPE_CHECKING:  # ``types`` has our SlowNode in it
    from bftrainer.decide.types import DecisionInput, Memory, Settings

MOST_LEVELS = 3  # of slowness that are told apart
MOST_TRAINERS = 3  # with slow nodes, of which every combination is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNode:
    """A node that was found slow."""

    fraction: float  # of the throughput of the nodes beside it
    seen_s: float  # measured last
    trainer_id: str  # in this trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacing:
    """Where a straggler's place goes, until that node trains."""

    node: str
    trainer_id: str
    since_s: float


def look(
    before: Mapping[str, SlowNode], given: DecisionInput, settings: Settings
) -> Mapping[str, SlowNode]:
    """Take in what was measured; forget what has faded."""
    if not (before or given.speeds) or not settings.straggler_threshold:
        return before if settings.straggler_threshold else {}
    known = dict(before)
    for node, fraction in given.speeds.items():
        if fraction <= settings.straggler_threshold:
            trainer_id = given.training.get(node, "")
            known[node] = SlowNode(fraction=fraction, seen_s=given.now_s, trainer_id=trainer_id)
        else:
            known.pop(node, None)
    return {
        node: one
        for node, one in known.items()
        if fraction_now(one, settings, given.now_s) <= settings.straggler_threshold
    }


def fraction_now(one: SlowNode, settings: Settings, now_s: float) -> float:
    """What a slow node is taken to reach: half as slow after each ``straggler_memory_s``."""
    halvings = max(0.0, now_s - one.seen_s) / settings.straggler_memory_s
    return 1.0 - (1.0 - one.fraction) * float(0.5**halvings)


def settle(memory: Memory, in_pool: Iterable[str], given: DecisionInput) -> Memory:
    """Bring pairs of straggler and replacement up to what is observed.

    A pair is over when the replacement trains without the straggler. When the replacement
    is lost the straggler, if it is still there, is the trainer's own again.
    """
    if not memory.replacing:
        return memory
    names, training = set(in_pool), given.training
    trainers = {record.trainer_id for record in given.trainers}
    assignment, replacing = dict(memory.assignment), dict[str, Replacing]()
    for node, pair in memory.replacing.items():
        trains = training.get(node) == pair.trainer_id
        if node not in names or pair.trainer_id not in trainers or not trains:
            continue
        if pair.node not in names or assignment.get(pair.node) != pair.trainer_id:
            assignment[node] = pair.trainer_id
        else:
            replacing[node] = pair
    return replace(memory, assignment=assignment, replacing=replacing)


def allocate(
    problem: Problem, fractions: Mapping[str, float], solve: Callable[[Problem], Allocation]
) -> Allocation:
    """Return the allocation that is worth most with these fractions; ties: the earlier try.

    Args:
        problem: with all nodes.
        fractions: of slow nodes; others reach 1.
        solve: the policy.

    Raises:
        milp.errors.ProblemError: the problem is malformed.
    """
    names = {node.name for node in problem.nodes}
    slow = {node: one for node, one in fractions.items() if node in names}
    answers = [solve(_hiding(problem, hidden)) for hidden in _tries(problem, slow)]
    return max(answers, key=lambda answer: true_worth(problem, slow, answer.assignment))


def replaced(
    memory: Memory, assignment: Mapping[str, str], given: DecisionInput
) -> Mapping[str, Replacing]:
    """Return which stragglers stay until another node trains, by straggler.

    Each is paired with a node that its trainer is to have in its place; where fewer come
    than go, several stay for the same one, so that the trainer pauses once.
    """
    pairs = {
        node: pair
        for node, pair in memory.replacing.items()
        if assignment.get(pair.node) == pair.trainer_id and node not in assignment
    }
    going: dict[str, list[str]] = {}
    for node in sorted(given.speeds.keys() & memory.slow_nodes.keys() - pairs.keys()):
        trainer_id = given.training.get(node, "")
        if memory.assignment.get(node) == trainer_id and node not in assignment:
            going.setdefault(trainer_id, []).append(node)
    for trainer_id, nodes in going.items():
        coming = sorted(
            n
            for n, t in assignment.items()
            if t == trainer_id and given.training.get(n) != trainer_id
        )
        for i, node in enumerate(nodes if coming else ()):
            pairs[node] = Replacing(
                node=coming[min(i, len(coming) - 1)], trainer_id=trainer_id, since_s=given.now_s
            )
    return pairs


def true_worth(
    problem: Problem, fractions: Mapping[str, float], assignment: Mapping[str, str]
) -> float:
    """What an assignment is worth when a trainer is as quick as its slowest node."""
    by_trainer: dict[str, list[str]] = {}
    for name, trainer_id in assignment.items():
        by_trainer.setdefault(trainer_id, []).append(name)
    nodes = {node.name: node for node in problem.nodes}
    holders = {name: t.trainer_id for t in problem.trainers for name in t.current}
    worths = []
    for trainer in problem.trainers:
        own = by_trainer.get(trainer.trainer_id, ())
        worths.append(_worth_of(problem, trainer, nodes, holders, own, fractions))
    return math.fsum(worths)


def _worth_of(
    problem: Problem,
    trainer: ProblemTrainer,
    nodes: Mapping[str, ProblemNode],
    holders: Mapping[str, str],
    own: Sequence[str],
    fractions: Mapping[str, float],
) -> float:
    before = [name for name in trainer.current if name in nodes]
    worth = 0.0
    if own:
        earns_s = sum(earning_s(problem, trainer, nodes[n], holders.get(n)) for n in own) / len(own)
        worth = earns_s * _lowest(own, fractions) * rate(trainer, len(own), problem.objective)
    if not before or set(own) == set(before):
        return worth
    pause_s = trainer.rescale_up_s if set(own) - set(before) else trainer.rescale_down_s
    held = rate(trainer, len(before), problem.objective, batch=trainer.current_batch)
    return worth - pause_s * _lowest(before, fractions) * held


def _lowest(names: Iterable[str], fractions: Mapping[str, float]) -> float:
    return min([fractions.get(name, 1.0) for name in names], default=1.0)


def _tries(problem: Problem, slow: Mapping[str, float]) -> list[frozenset[str]]:
    """Which slow nodes to leave out: none, the slowest of each degree, those of some trainers."""
    holders = {name: t.trainer_id for t in problem.trainers for name in t.current if name in slow}
    nobodys = frozenset(slow.keys() - holders.keys())
    found = [frozenset[str](), nobodys]
    levels = sorted(set(slow.values()))
    if len(levels) > MOST_LEVELS:
        levels = [*levels[: MOST_LEVELS - 1], levels[-1]]
    for level in levels:
        below = frozenset(node for node, fraction in slow.items() if fraction <= level)
        found += [below, below | nobodys]
    trainers = sorted(set(holders.values()))
    if len(trainers) <= MOST_TRAINERS:
        for count in range(1, len(trainers)):
            for chosen in combinations(trainers, count):
                found.append(nobodys | {n for n, t in holders.items() if t in chosen})
    return list(dict.fromkeys(found))


def _hiding(problem: Problem, hidden: frozenset[str]) -> Problem:
    if not hidden:
        return problem
    return replace(
        problem,
        nodes=tuple(node for node in problem.nodes if node.name not in hidden),
        trainers=tuple(_without(trainer, hidden) for trainer in problem.trainers),
    )


def _without(trainer: ProblemTrainer, hidden: frozenset[str]) -> ProblemTrainer:
    if hidden.isdisjoint(trainer.current):
        return trainer
    return replace(
        trainer,
        current=tuple(name for name in trainer.current if name not in hidden),
        settled=tuple(name for name in trainer.settled if name not in hidden),
    )
