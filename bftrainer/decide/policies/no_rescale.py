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

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.model.decision import Term
from milp.problem import Problem


def _allocate(problem: Problem, context: Context, /) -> Decided:  # noqa: ARG001
    """Running trainers keep their size or, after a loss, are killed; others start in FCFS order.

    They start at the largest size that fits; a trainer that cannot have n_min is skipped. A killed
    trainer may start again at the next decision, when its nodes have been given back.
    """
    handing = Handing(problem, is_spread=True)
    pool, offered = handing.pool, dict[int, int]()
    for j in range(len(handing.trainers)):
        if _is_whole(handing, j):
            handing.take(j, len(pool.present[j]))
    for j, trainer in enumerate(handing.trainers):
        if pool.present[j] or not handing.accepted(j):
            continue  # it is running, is being killed, or accepts no class
        handing.home[j] = k = max(handing.accepted(j), key=handing.free.__getitem__)
        offered[j] = handing.free[k]
        if handing.room(j) >= trainer.n_min:
            handing.take(j, handing.room(j))

    def terms(j: int) -> tuple[Term, ...]:
        trainer, present = pool.trainers[j], pool.present[j]
        if present:
            began = Term("nodes it runs on", len(trainer.current))
            return began, Term("of them still there", len(present))
        return (
            Term("place in the queue", 1 + j),
            Term("left at its turn", offered.get(j, 0), "nodes"),
        )

    return handing.answer(POLICY.name, terms)


def _is_whole(handing: Handing, j: int) -> bool:
    """Return whether trainer j runs on all nodes it started on, of one class that it accepts."""
    trainer, present = handing.trainers[j], len(handing.pool.present[j])
    is_there = present == len(trainer.current) == handing.pool.held[j][handing.home[j] or 0]
    return is_there and trainer.n_min <= present <= handing.largest(j)


POLICY = Policy(
    "no-rescale",
    Traits(
        about=About(
            does="a preemptable queue",
            optimises="nothing: in the order of submission, each trainer starts on the nodes that "
            "are left, and keeps all of them or none",
            source="Liu et al., BFTrainer, 2021",
        ),
        rescales=False,
        is_rigid=True,
        follows_curves=False,
    ),
    _allocate,
)
