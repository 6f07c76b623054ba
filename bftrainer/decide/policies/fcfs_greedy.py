"""First come, first served: each trainer takes as many nodes as it can use."""

from __future__ import annotations

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.sharing import share_out
from milp.problem import Problem


class FcfsGreedyPolicy:
    """In FCFS order up to n_max while nodes last; a trainer that cannot have n_min is skipped."""

    name = "fcfs-greedy"
    traits = Traits(follows_curves=False)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:  # noqa: ARG002
        """Serve the trainers in order."""
        shares = share_out(problem)
        left = list(shares.pool.counts())
        sizes: list[int] = []
        for j, k in enumerate(shares.classes):
            size = min(shares.largest(j), left[k])
            if size < shares.pool.trainers[j].n_min:
                size = 0
            sizes.append(size)
            left[k] -= size
        return Decided(allocation=shares.allocation(sizes, self.name))


POLICY: AllocationPolicy = FcfsGreedyPolicy()
