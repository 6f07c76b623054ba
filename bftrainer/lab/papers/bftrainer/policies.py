"""Policies of this paper alone: its published equal share, and sizes on nodes drawn at random.

Source: the heuristic baseline of the replayer published with the paper
(github.com/dummy4binary/BFTrainer-Log-Replayer, prog.py). Every trainer gets N // J nodes, or none
if that is not more than its n_min; the remainder goes to the first trainer up to its n_max, then
to the next. The paper says only that the baseline "distributes nodes equally", which is what the
policy ``equal-share`` does.

The paper's node-level program has no reason to prefer one of several equal nodes; our policies
choose by name. Neighbours by name often leave together, so fewer trainers lose nodes. The policy
with nodes drawn at random measures the difference.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.distribution import Handing
from milp.problem import Problem


class ReplayerShare:
    """That division; all nodes are of one class."""

    name = "replayer-share"
    traits = Traits(follows_curves=False)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:  # noqa: ARG002
        """Divide the nodes, then assign the remainder in FCFS order."""
        handing = Handing(problem, is_spread=True)
        trainers, left = handing.trainers, sum(handing.counts)
        quota = left // max(1, len(trainers))
        sizes = []
        for j, trainer in enumerate(trainers):
            sizes.append(min(quota, handing.largest(j)) if quota > trainer.n_min else 0)
            left -= sizes[-1]
        for j, trainer in enumerate(trainers):
            more = min(handing.largest(j) - sizes[j], left)
            if more > 0 and sizes[j] + more >= trainer.n_min:
                sizes[j] += more
                left -= more
        for j, size in enumerate(sizes):
            handing.take(j, size)
        return handing.answer(self.name)


POLICY: AllocationPolicy = ReplayerShare()


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
