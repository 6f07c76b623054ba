"""Nodes stay with the trainer they were planned for where the allocation is as good. Pure.

So no warm-up is wasted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from bftrainer.decide.constraints.chain import Ask, Constraint
from bftrainer.decide.policies.base import Decided
from bftrainer.model.decision import DecisionInput, Memory
from milp.check import find_violations
from milp.problem import Allocation, Problem, ProblemNode


@dataclass(frozen=True, slots=True, kw_only=True)
class AsPlanned(Constraint[Problem, Decided]):
    """What is under way goes on where that costs nothing."""

    given: DecisionInput
    memory: Memory
    name: ClassVar[str] = "planned-nodes"
    in_words: ClassVar[str] = "the rule that nodes stay where a trainer is about to start"

    def answer(self, problem: Problem, ask: Ask) -> Decided:
        """Exchange nodes of the answer; drop no trainer that trains.

        One whose slow nodes were hidden from the policy may train after all.
        """
        decided = ask(problem)
        trains = set(self.given.training.values())
        without_work = {t: why for t, why in decided.dropped.items() if t not in trains}
        allocation = _as_planned(decided.allocation, problem, self.given, self.memory)
        return replace(decided, allocation=allocation, dropped=without_work)


def _as_planned(
    allocation: Allocation, problem: Problem, given: DecisionInput, memory: Memory
) -> Allocation:
    """Exchange nodes on which no trainer goes on, so that they stay with the trainer planned there.

    Sizes are unchanged. A trainer that grows gets what another gives up rather than the node on
    which a third one starts. A node that ends within the forward-looking time moves if its trainer
    gets one that lasts longer than this one will have lasted since it began to start there.
    """
    plan, training = memory.assignment, given.training
    go_on = dict(training.items() & allocation.assignment.items())
    nodes = {node.name: node for node in problem.nodes if node.name not in go_on}
    elsewhere = training.keys() | memory.slow_nodes.keys()
    theirs = sorted(plan.keys() & nodes.keys() - elsewhere)
    stays = {name: plan[name] for name in theirs}
    if stays.items() <= allocation.assignment.items():
        return allocation
    lasts_s = _lasts_s(given, memory, problem, [nodes[name] for name in theirs])
    offered_s: dict[str, float] = {}  # the new node of a trainer that lasts longest
    for name, trainer_id in allocation.assignment.items():
        if name in nodes and plan.get(name) != trainer_id:
            remaining_s = _remaining_s(nodes[name], problem)
            offered_s[trainer_id] = max(remaining_s, offered_s.get(trainer_id, 0.0))
    stays = {n: t for n, t in stays.items() if lasts_s[n] >= offered_s.get(t, 0.0)}
    for is_any_type in (True, False):
        kinds = {n: "" if is_any_type else node.eligibility for n, node in nodes.items()}
        assignment = _exchanged(allocation.assignment, stays, kinds)
        exchanged = replace(allocation, assignment=assignment)
        if find_violations(problem, exchanged) == find_violations(problem, allocation):
            return exchanged  # as good, and valid
    return allocation


def _exchanged(
    assignment: Mapping[str, str], stays: Mapping[str, str], kinds: Mapping[str, str]
) -> dict[str, str]:
    """Give each trainer as many nodes of a kind as it has, planned ones first."""
    free = {name: trainer_id for name, trainer_id in assignment.items() if name in kinds}
    wants = Counter((trainer_id, kinds[name]) for name, trainer_id in free.items())
    exchanged = {name: trainer_id for name, trainer_id in assignment.items() if name not in kinds}
    agreed = dict(stays.items() & free.items())
    for choice in (agreed, stays, free):  # in order of preference
        for name in sorted(choice.keys() - exchanged.keys()):
            want = choice[name], kinds[name]
            if wants[want]:
                wants[want] -= 1
                exchanged[name] = choice[name]
    free_nodes = sorted(free.keys() - exchanged.keys())
    for trainer_id, kind in sorted(wants.elements()):
        name = next(n for n in free_nodes if kinds[n] == kind)
        free_nodes.remove(name)
        exchanged[name] = trainer_id
    return exchanged


def _lasts_s(
    given: DecisionInput, memory: Memory, problem: Problem, nodes: Iterable[ProblemNode]
) -> dict[str, float]:
    """Return how long each node lasts, counted from when its trainer began to start there."""
    since_s = {pilot.node: pilot.requested_s for pilot in given.pilots}
    since_s.update(memory.joining.since_s)
    now_s = given.now_s
    return {n.name: _remaining_s(n, problem) + now_s - since_s.get(n.name, now_s) for n in nodes}


def _remaining_s(node: ProblemNode, problem: Problem) -> float:
    """Return how long a node lasts; beyond the forward-looking time it makes no difference."""
    remaining_s = node.expected_remaining_s
    if remaining_s is None:
        return problem.t_fwd_s
    return min(remaining_s, problem.t_fwd_s)
