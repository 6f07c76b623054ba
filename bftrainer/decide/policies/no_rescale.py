"""The behaviour of a preemptable queue: a trainer keeps the nodes it started on, all or none.

Source: BFTrainer paper, section 2.2 (Summit's killable queue): a job runs on exactly the nodes it
was given, cannot use others that become idle, and is killed and requeued when any of its nodes
goes. The simulator uses it as the baseline for rescaling.

A loss shows in the problem: ``current`` names a node that is not in the pool, or fewer than n_min
are present. A trainer with n_min = n_max (a job of a batch queue) therefore never survives one.
Nodes missing from ``current`` itself cannot be detected: then a trainer with several sizes
continues on the nodes left, if they are at least n_min.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.distribution import ClassShares, share_out
from bftrainer.model.decision import Term
from milp.problem import Problem


class NoRescalePolicy:
    """Running trainers keep their size or, after a loss, are killed; others start in FCFS order.

    They start at the largest size that fits; a trainer that cannot have n_min is skipped. A killed
    trainer may start again at the next decision, when its nodes have been given back.
    """

    name = "no-rescale"
    traits = Traits(rescales=False, is_rigid=True, follows_curves=False)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:  # noqa: ARG002
        """Leave running trainers alone, then hand out the free nodes."""
        shares = share_out(problem)
        pool, classes = shares.pool, list(shares.classes)
        left = list(pool.counts())
        sizes = [0] * len(classes)
        offered: dict[int, int] = {}
        for j, k in enumerate(classes):
            if _is_whole(shares, j):
                sizes[j] = len(pool.present[j])
                left[k] -= sizes[j]
        for j, trainer in enumerate(pool.trainers):
            accepted = [k for k in range(len(left)) if pool.accepts[j][k]]
            if pool.present[j] or not accepted:
                continue  # it is running, is being killed, or accepts no class
            k = max(accepted, key=left.__getitem__)
            offered[j] = left[k]
            size = min(trainer.n_max, left[k])
            if size >= trainer.n_min:
                classes[j], sizes[j] = k, size
                left[k] -= size
        chosen = replace(shares, classes=tuple(classes))

        def terms(j: int) -> tuple[Term, ...]:
            trainer, present = pool.trainers[j], pool.present[j]
            if present:
                began = Term("nodes it runs on", len(trainer.current))
                return began, Term("of them still there", len(present))
            return (
                Term("place in the queue", 1 + j),
                Term("left at its turn", offered.get(j, 0), "nodes"),
            )

        return chosen.answer(sizes, self.name, terms)


def _is_whole(shares: ClassShares, j: int) -> bool:
    """Return whether trainer j runs on all nodes it started on, of one class that it accepts."""
    trainer, present = shares.pool.trainers[j], shares.pool.present[j]
    return len(present) == len(trainer.current) == shares.pool.held[j][
        shares.classes[j]
    ] and trainer.n_min <= len(present) <= shares.largest(j)


POLICY: AllocationPolicy = NoRescalePolicy()
