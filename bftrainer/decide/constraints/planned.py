"""Nodes stay with the trainer they were planned for where the allocation is as good. Pure.

So no warm-up is wasted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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
        why_dropped = dict(decided.dropped)
        for trainer_id in self.given.training.values():
            why_dropped.pop(trainer_id, None)
        allocation = _as_planned(decided.allocation, problem, self.given, self.memory)
        return replace(decided, allocation=allocation, dropped=why_dropped)


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
    nodes: dict[str, ProblemNode] = {}
    for node in problem.nodes:
        if node.name not in go_on:
            nodes[node.name] = node
    elsewhere = training.keys() | memory.slow_nodes.keys()
    stays: dict[str, str] = {}
    for name in sorted(plan.keys() & nodes.keys() - elsewhere):
        stays[name] = plan[name]
    if stays.items() <= allocation.assignment.items():
        return allocation
    since_s = _since_s(given, memory)
    offered_s: dict[str, float] = {}  # the new node of a trainer that lasts longest
    for name, trainer_id in allocation.assignment.items():
        if name in nodes and plan.get(name) != trainer_id:
            remaining_s = _remaining_s(nodes[name], problem)
            offered_s[trainer_id] = max(remaining_s, offered_s.get(trainer_id, 0.0))
    for name, trainer_id in list(stays.items()):
        # Counted from when its trainer began to start there.
        lasts_s = _remaining_s(nodes[name], problem) + given.now_s
        lasts_s -= since_s.get(name, given.now_s)
        if lasts_s < offered_s.get(trainer_id, 0.0):
            del stays[name]
    of_any_type = dict.fromkeys(nodes, "")
    of_its_type = {name: node.eligibility for name, node in nodes.items()}
    for kinds in (of_any_type, of_its_type):
        assignment = _exchanged(allocation.assignment, stays, kinds)
        exchanged = replace(allocation, assignment=assignment)
        if find_violations(problem, exchanged) == find_violations(problem, allocation):
            return exchanged  # as good, and valid
    return allocation


def _exchanged(
    assignment: Mapping[str, str], stays: Mapping[str, str], kinds: Mapping[str, str]
) -> dict[str, str]:
    """Give each trainer as many nodes of a kind as it has, planned ones first."""
    free: dict[str, str] = {}
    exchanged: dict[str, str] = {}
    wants = Counter[tuple[str, str]]()
    for name, trainer_id in assignment.items():
        if name in kinds:
            free[name] = trainer_id
            wants[trainer_id, kinds[name]] += 1
        else:
            exchanged[name] = trainer_id
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


def _since_s(given: DecisionInput, memory: Memory) -> dict[str, float]:
    """Return since when a trainer starts on a node."""
    since_s = {pilot.node: pilot.requested_s for pilot in given.pilots}
    since_s.update(memory.joining.since_s)
    return since_s


def _remaining_s(node: ProblemNode, problem: Problem) -> float:
    """Return how long a node lasts; beyond the forward-looking time it makes no difference."""
    remaining_s = node.expected_remaining_s
    if remaining_s is None:
        return problem.t_fwd_s
    return min(remaining_s, problem.t_fwd_s)
