"""Small problems, and what a policy makes of them; a policy that answers as it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bftrainer.decide.policies.base import (
    AllocationPolicy,
    Context,
    Decided,
    Standing,
    Traits,
    options_of,
)
from milp.problem import Allocation, Curve, Problem, ProblemNode, ProblemTrainer
from milp.solve import solve

CURVE = Curve(sizes=(1, 16), samples_per_s=(1.0, 16.0))


def trainer(name: str, *current: str, n_min: int = 1, n_max: int = 16) -> ProblemTrainer:
    return ProblemTrainer(
        trainer_id=name,
        n_min=n_min,
        n_max=n_max,
        curve=CURVE,
        rescale_up_s=1.0,
        rescale_down_s=1.0,
        current=current,
    )


def problem_of(n_nodes: int, *trainers: ProblemTrainer) -> Problem:
    return Problem(
        nodes=tuple(ProblemNode(name=f"n{i:02}") for i in range(n_nodes)),
        trainers=trainers,
        t_fwd_s=100.0,
        p_jmax=len(trainers),
    )


def allocated(policy: AllocationPolicy, problem: Problem) -> Allocation:
    """Return what it allocates to trainers that are all new."""
    new = Standing(submitted_s=0.0, attained_node_s=0.0, done_samples=0, left_samples=None)
    context = Context(
        now_s=0.0,
        options=options_of(policy, {}),
        trainers={one.trainer_id: new for one in problem.trainers},
    )
    return policy.allocate(problem, context).allocation


@dataclass(slots=True, kw_only=True)
class Scripted:
    """The exact policy, whose further answers are scripted; keeps what it was asked."""

    answer: Callable[[Problem, Context], dict[str, Any]] = lambda _problem, _context: {}
    name: str = "scripted"
    traits: Traits = field(default_factory=Traits)
    asked: list[tuple[Problem, Context]] = field(default_factory=list)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        self.asked.append((problem, context))
        return Decided(**{"allocation": solve(problem), **self.answer(problem, context)})
