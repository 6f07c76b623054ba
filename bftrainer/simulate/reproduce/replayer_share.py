"""Equal share as the paper's published replayer divides: the remainder goes to one trainer.

A policy for the reproduction only. Source: the heuristic baseline of the log replayer
published with the paper (github.com/dummy4binary/BFTrainer-Log-Replayer, prog.py): every
trainer gets N // J nodes, none if that is not more than its n_min; what is left over goes
to the first trainer up to its n_max, then to the next. The paper's text says only that the
baseline "distributes nodes equally"; the policy ``equal-share`` does that.
"""

from __future__ import annotations

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.sharing import share_out
from milp.problem import Problem


class ReplayerShare:
    """That division, on one class of nodes."""

    name = "replayer-share"
    traits = Traits(follows_curves=False)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:  # noqa: ARG002
        """Divide the nodes, then hand out what is left over in FCFS order."""
        shares = share_out(problem)
        trainers = shares.pool.trainers
        left = sum(shares.pool.counts())
        quota = left // max(1, len(trainers))
        sizes = []
        for j, trainer in enumerate(trainers):
            sizes.append(min(quota, shares.largest(j)) if quota > trainer.n_min else 0)
            left -= sizes[-1]
        for j, trainer in enumerate(trainers):
            more = min(shares.largest(j) - sizes[j], left)
            if more > 0 and sizes[j] + more >= trainer.n_min:
                sizes[j] += more
                left -= more
        return Decided(allocation=shares.allocation(sizes, self.name))


POLICY: AllocationPolicy = ReplayerShare()
