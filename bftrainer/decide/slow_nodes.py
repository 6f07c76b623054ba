"""The measured slow nodes that are still used, and the replacement of stragglers.

A straggler is replaced when another node is available that is not worth more elsewhere and the
pause pays back within T_fwd; it is dropped without replacement when the others are faster without
it; otherwise it stays (``milp.worth``). A replaced straggler remains a member until its replacement
trains (``Replacing``) and leaves in the same change of generation (MLSys 2020, section 5). A slow
node is remembered, because it may be slow for any trainer; the memory fades.

``observe`` is an estimator (``observation``), ``allocation`` calls the rest; without slow nodes it
costs nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import ClassVar

from bftrainer.decide.constraints.chain import Ask, Constraint
from bftrainer.decide.policies.base import Decided
from bftrainer.decide.throughput.stragglers import CLEAR_ABOVE
from bftrainer.model.decision import DecisionInput, Memory, Replacing, Settings, SlowNode
from milp.portable import exp2
from milp.problem import Problem
from milp.worth import without_some, worth


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Record new measurements; forget those that have faded."""
    before, settings = memory.slow_nodes, given.settings
    if not (before or given.speeds):
        return memory
    observed = dict(before)
    for node, fraction in given.speeds.items():
        trainer_id = given.training.get(node, "")
        observed[node] = SlowNode(fraction=fraction, seen_s=given.now_s, trainer_id=trainer_id)
    slow_nodes: dict[str, SlowNode] = {}
    for node, slow_node in observed.items():
        fraction = fraction_now(slow_node, settings, given.now_s)
        if fraction <= forgotten_above(settings):
            slow_nodes[node] = slow_node
    return replace(memory, slow_nodes=slow_nodes)


def forgotten_above(settings: Settings) -> float:
    """Return the fraction above which a slow node is forgotten: where its verdict would end, too.

    A node may be replaced as soon as its smoothed fraction has reached the threshold.
    """
    threshold = settings.straggler_threshold
    if threshold:
        return threshold + CLEAR_ABOVE
    return 0.0


def fraction_now(slow_node: SlowNode, settings: Settings, now_s: float) -> float:
    """Assumed speed of a slow node: the deficit halves every ``straggler_memory_s``."""
    halvings = max(0.0, now_s - slow_node.seen_s) / settings.straggler_memory_s
    return 1.0 - (1.0 - slow_node.fraction) * exp2(-halvings)


def settle(memory: Memory, in_pool: AbstractSet[str], given: DecisionInput) -> Memory:
    """Update the pairs of straggler and replacement with what is observed.

    A pair ends when the replacement trains without the straggler. When the replacement is lost,
    or the node is no longer slow, the straggler is assigned to its trainer again.
    """
    if not memory.replacing:
        return memory
    trainers = {record.trainer_id for record in given.trainers}
    assignment, replacing = dict(memory.assignment), dict[str, Replacing]()
    for node, pair in memory.replacing.items():
        trains = given.training.get(node) == pair.trainer_id
        if node not in in_pool or pair.trainer_id not in trainers or not trains:
            continue
        is_coming = pair.node in in_pool and assignment.get(pair.node) == pair.trainer_id
        if not is_coming or node not in memory.slow_nodes:
            assignment[node] = pair.trainer_id
        else:
            replacing[node] = pair
    return replace(memory, assignment=assignment, replacing=replacing)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithSlowNodes(Constraint[Problem, Decided]):
    """What slow nodes are worth, for a policy that rescales."""

    memory: Memory
    given: DecisionInput
    name: ClassVar[str] = "slow-nodes"
    in_words: ClassVar[str] = "what was measured of slow nodes (bftrainer nodes)"

    def answer(self, problem: Problem, ask: Ask) -> Decided:
        """Return the answer that is worth most given the slow nodes; ties: the earlier."""
        slow_nodes = self.memory.slow_nodes
        if not slow_nodes:
            return ask(problem)
        settings, now_s = self.given.settings, self.given.now_s
        fractions = {
            node: fraction_now(slow_node, settings, now_s) for node, slow_node in slow_nodes.items()
        }
        answers = list(map(ask, without_some(problem, fractions)))
        return max(
            answers,
            key=lambda decided: worth(problem, fractions, decided.allocation.assignment),
        )


def replaced(
    memory: Memory, assignment: Mapping[str, str], given: DecisionInput
) -> Mapping[str, Replacing]:
    """Return which stragglers stay until another node trains, by straggler.

    Each is paired with a node that its trainer is about to get. If fewer come than go, several
    are paired with the same node, so that the trainer pauses once.
    """
    pairs = {
        node: pair
        for node, pair in memory.replacing.items()
        if assignment.get(pair.node) == pair.trainer_id and node not in assignment
    }
    coming: dict[str, list[str]] = {}
    for node, trainer_id in sorted(assignment.items()):
        if given.training.get(node) != trainer_id:
            coming.setdefault(trainer_id, []).append(node)
    for node in sorted(given.speeds.keys() & memory.slow_nodes.keys() - pairs.keys()):
        trainer_id = given.training.get(node, "")
        is_going = memory.assignment.get(node) == trainer_id and node not in assignment
        if is_going and (replacements := coming.get(trainer_id)):
            pairs[node] = Replacing(node=replacements[0], trainer_id=trainer_id)
            coming[trainer_id] = replacements[1:] or replacements
    return pairs
