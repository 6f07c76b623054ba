"""A policy that places another policy's sizes on nodes drawn at random.

The paper's node-level program has no reason to prefer one of several equal nodes; our policies
choose by name. Neighbours by name often leave together, so fewer trainers lose nodes. This policy
measures the difference.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from milp.problem import Problem


class AnyNode:
    """Wraps a policy; the same seed draws the same nodes."""

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
        """Decide on renamed nodes, and restore the names in the answer."""
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
