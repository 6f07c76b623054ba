"""First come, first served: each trainer takes as many nodes as it can use."""

from __future__ import annotations

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.model.decision import Term
from milp.problem import Problem


def _allocate(problem: Problem, context: Context, /) -> Decided:  # noqa: ARG001
    """In FCFS order up to n_max while nodes last; a trainer that cannot have n_min is skipped."""
    handing = Handing(problem, is_spread=True)
    offered: list[int] = []
    for j, trainer in enumerate(handing.trainers):
        offered.append(handing.free[handing.home[j] or 0])
        if handing.room(j) >= trainer.n_min:
            handing.take(j, handing.room(j))

    def terms(j: int) -> tuple[Term, ...]:
        return (
            Term("place in the queue", 1 + j),
            Term("left at its turn", offered[j], "nodes"),
            Term("can use", handing.largest(j), "nodes"),
        )

    return handing.answer(POLICY.name, terms)


POLICY = Policy(
    "fcfs-greedy",
    Traits(
        about=About(
            does="each takes all it can",
            optimises="nothing: in the order of submission, each trainer takes as many nodes as it "
            "can use of those that are left",
        ),
        follows_curves=False,
    ),
    _allocate,
)
