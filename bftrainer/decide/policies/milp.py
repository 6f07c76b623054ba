"""The exact optimum of the paper's objective."""

from __future__ import annotations

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from milp.problem import Problem
from milp.solve import solve


def _allocate(problem: Problem, context: Context, /) -> Decided:  # noqa: ARG001
    """Solves the problem exactly."""
    return Decided(allocation=solve(problem))


POLICY = Policy(
    "milp",
    Traits(
        about=About(
            does="the most throughput, counting what rescales cost",
            optimises="the samples made within t_fwd_s, less what rescales cost",
            source="Liu et al., BFTrainer, 2021",
        ),
        keeps_caps=True,
        keeps_sizes=True,
        expects_losses=True,
    ),
    _allocate,
)
