"""First in, first out: trainers get what they request in order of submission."""

from __future__ import annotations

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.queue_order import serve
from milp.problem import Problem


def _allocate(problem: Problem, context: Context, /) -> Decided:  # noqa: ARG001
    """Rigid (``queue_order``): n_max or nothing; a trainer that does not fit is passed over.

    fcfs-greedy is the same for elastic trainers.
    """
    handing = Handing(problem, admits=True)
    return serve(handing, range(len(handing.trainers)), POLICY.name)


POLICY = Policy(
    "fifo",
    Traits(
        about=About(
            does="first in, first out",
            optimises="nothing: in the order of submission, each trainer gets all nodes that it "
            "requests, or none",
        ),
        is_rigid=True,
        follows_curves=False,
        admits=True,
    ),
    _allocate,
)
