"""The exact optimum of the paper's objective, judged before it is used."""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.decide.policies.base import Policy
from milp.check import check
from milp.problem import Allocation, Problem
from milp.solve import solve


@dataclass(frozen=True, slots=True)
class MilpPolicy:
    """Solves exactly, then has the independent checker look at the answer."""

    name: str = "milp"

    def allocate(self, problem: Problem) -> Allocation:
        """Return the optimum.

        Raises:
            milp.errors.ProblemError: the problem is malformed.
            milp.errors.CheckFailed: the solution breaks a rule (a bug; nothing of it
                may be used).
        """
        allocation = solve(problem)
        check(problem, allocation)
        return allocation


POLICY: Policy = MilpPolicy()
