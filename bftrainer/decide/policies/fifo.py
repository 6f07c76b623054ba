"""First in, first out: trainers get what they request in order of submission."""

from __future__ import annotations

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.queue_order import serve
from milp.problem import Problem


class FifoPolicy:
    """Rigid (``queue_order``): n_max or nothing; a trainer that does not fit is passed over.

    fcfs-greedy is the same for elastic trainers.
    """

    name = "fifo"
    traits = Traits(is_rigid=True, follows_curves=False, admits=True)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:  # noqa: ARG002
        """Serve the trainers in order of submission."""
        handing = Handing(problem, admits=True)
        return serve(handing, range(len(handing.trainers)), self.name)


POLICY: AllocationPolicy = FifoPolicy()
