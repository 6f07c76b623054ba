"""First come, first served: each trainer takes as many nodes as it can use."""

from __future__ import annotations

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.distribution import share_out
from bftrainer.model.decision import Term
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
        offered: list[int] = []
        for j, k in enumerate(shares.classes):
            size = min(shares.largest(j), left[k])
            if size < shares.pool.trainers[j].n_min:
                size = 0
            sizes.append(size)
            offered.append(left[k])
            left[k] -= size

        def terms(j: int) -> tuple[Term, ...]:
            return (
                Term("place in the queue", 1 + j),
                Term("left at its turn", offered[j], "nodes"),
                Term("can use", shares.largest(j), "nodes"),
            )

        return shares.answer(sizes, self.name, terms)


POLICY: AllocationPolicy = FcfsGreedyPolicy()
