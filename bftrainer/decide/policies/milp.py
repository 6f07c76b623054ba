"""The exact optimum of the paper's objective."""

from __future__ import annotations

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from milp.problem import Problem
from milp.solve import solve


class MilpPolicy:
    """Solves the problem exactly."""

    name = "milp"
    traits = Traits(keeps_caps=True)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:  # noqa: ARG002
        """Return the optimum.

        Raises:
            milp.problem.ProblemError: the problem is malformed.
        """
        return Decided(allocation=solve(problem))


POLICY: AllocationPolicy = MilpPolicy()
