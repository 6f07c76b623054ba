"""Equal share as the paper's published replayer computes it: one trainer gets the remainder.

Source: the heuristic baseline of the replayer published with the paper
(github.com/dummy4binary/BFTrainer-Log-Replayer, prog.py). Every trainer gets N // J nodes, or none
if that is not more than its n_min; the remainder goes to the first trainer up to its n_max, then
to the next. The paper says only that the baseline "distributes nodes equally", which is what the
policy ``equal-share`` does.
"""

from __future__ import annotations

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.distribution import share_out
from milp.problem import Problem


class ReplayerShare:
    """That division; all nodes are of one class."""

    name = "replayer-share"
    traits = Traits(follows_curves=False)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:  # noqa: ARG002
        """Divide the nodes, then assign the remainder in FCFS order."""
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
