"""What a preemptable queue does: a trainer keeps the nodes it started on, all or none.

Takes a Problem, returns an Allocation. Source: BFTrainer paper, section 2.2 (Summit's
killable queue): a job runs on exactly the nodes it was given; what else becomes idle is of
no use to it, and when any of its nodes goes, it is killed and waits to start again. The
simulator plays this as the state of the art that rescaling is compared with.

A loss shows in the problem: ``current`` names a node that is not in the pool, or fewer than
n_min are present. A trainer whose n_min is its n_max (a job of a batch queue) therefore
never survives one. What ``current`` leaves out cannot be seen: then a trainer that may have
several sizes goes on with the nodes it has left, as long as they are n_min.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.sharing import ClassShares, share_out
from milp.problem import Problem


class NoRescalePolicy:
    """Who runs keeps its size; who lost a node is killed; the others start in FCFS order.

    They start at the largest size that fits; who cannot have n_min is passed over. A killed
    trainer can start again at the next decision: until then it has given its nodes back.
    """

    name = "no-rescale"
    traits = Traits(rescales=False, follows_curves=False)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:  # noqa: ARG002
        """Leave what runs alone, then hand out what is free."""
        shares = share_out(problem)
        pool, classes = shares.pool, list(shares.classes)
        left = list(pool.counts())
        sizes = [0] * len(classes)
        for j, k in enumerate(classes):
            if _is_whole(shares, j):
                sizes[j] = len(pool.present[j])
                left[k] -= sizes[j]
        for j, trainer in enumerate(pool.trainers):
            accepted = [k for k in range(len(left)) if pool.accepts[j][k]]
            if pool.present[j] or not accepted:
                continue  # it runs on or is killed; or it accepts nothing there is
            k = max(accepted, key=left.__getitem__)
            size = min(trainer.n_max, left[k])
            if size >= trainer.n_min:
                classes[j], sizes[j] = k, size
                left[k] -= size
        chosen = replace(shares, classes=tuple(classes))
        return Decided(allocation=chosen.allocation(sizes, self.name))


def _is_whole(shares: ClassShares, j: int) -> bool:
    """Whether trainer j runs on all the nodes it started on, of one class that it accepts."""
    trainer, present = shares.pool.trainers[j], shares.pool.present[j]
    return len(present) == len(trainer.current) == shares.pool.held[j][
        shares.classes[j]
    ] and trainer.n_min <= len(present) <= shares.largest(j)


POLICY: AllocationPolicy = NoRescalePolicy()
