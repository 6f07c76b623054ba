"""Another policy's sizes on nodes drawn at random: what it is worth to choose nodes by name.

A policy for the reproduction only. Nodes that differ in nothing are handed out by name;
neighbours by name are often taken back together, so this costs fewer trainers than the
paper's node-level program, which has no reason to prefer one node over another.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from milp.problem import Problem


class AnyNode:
    """Wraps a policy for one replay: the same replay draws the same nodes."""

    def __init__(self, inner: AllocationPolicy, *, seed: int) -> None:
        self._inner = inner
        self._chance = np.random.Generator(np.random.PCG64(seed))

    @property
    def name(self) -> str:
        """The wrapped policy's name, marked."""
        return f"{self._inner.name}, any node"

    @property
    def traits(self) -> Traits:
        """The wrapped policy's."""
        return self._inner.traits

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Let the policy decide on nodes of other names, and give them back their own."""
        numbers = self._chance.permutation(len(problem.nodes)).tolist()
        alias = {
            node.name: f"{number:07d}" for node, number in zip(problem.nodes, numbers, strict=True)
        }
        trainers = tuple(
            replace(
                trainer,
                current=tuple(alias[name] for name in trainer.current if name in alias),
                settled=tuple(alias[name] for name in trainer.settled if name in alias),
            )
            for trainer in problem.trainers
        )
        nodes = tuple(replace(node, name=alias[node.name]) for node in problem.nodes)
        found = self._inner.allocate(replace(problem, nodes=nodes, trainers=trainers), context)
        own = {other: name for name, other in alias.items()}
        nodes_of = found.allocation.assignment
        assignment = {own[node]: trainer for node, trainer in nodes_of.items()}
        return replace(found, allocation=replace(found.allocation, assignment=assignment))
