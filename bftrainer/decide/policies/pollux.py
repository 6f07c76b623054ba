"""Pollux: the greatest mean speed-up of the trainers, in which slow ones count most.

Source: Qiao et al., "Pollux" (OSDI'21): maximised is the power mean, with p = -1, of the speed-ups,
a trainer's goodput over that on its fair share. Goodput is throughput times statistical efficiency
(``throughput.batch_curve``). Curves are in goodput where a trainer's batch is decided by it; with
the batch fixed efficiency is a factor that cancels. The paper searches with a genetic algorithm.
With p = -1 the goal is the least sum of the inverses of the speed-ups; on concave curves it is
reached by giving each node to the trainer that it helps most. Not done: its penalty for rescales,
because trainers rescale in place, and its avoidance of shared nodes.
"""

from __future__ import annotations

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.distribution import Handing, seconds
from bftrainer.decide.policies.greedy_steps import (
    Step,
    admit,
    fair_sizes,
    fill,
    next_rise,
    saved,
    terms_of,
)
from bftrainer.model.decision import Term
from milp.problem import Problem


def _allocate(problem: Problem, context: Context, /) -> Decided:  # noqa: ARG001
    """Greedy, by how much a node lessens the sum of inverse speed-ups."""
    handing = Handing(problem)
    sizes = fair_sizes(handing, range(len(handing.trainers)))
    admitted = admit(handing, range(len(handing.trainers)))
    rates: dict[int, list[float]] = {}
    fair: dict[int, float] = {}
    for j in admitted:
        rates[j] = handing.rates(j)
        fair[j] = handing.rate(j, sizes[j])

    def next_step(j: int, size: int) -> Step | None:
        higher = next_rise(rates[j], size)
        if higher is None:
            return None
        slow, quick = seconds(fair[j], rates[j][size]), seconds(fair[j], rates[j][higher])
        return Step(saved(slow, quick) / (higher - size), higher)

    def why(j: int) -> tuple[Term, ...]:
        goodput, step = rates[j][handing.size(j)], next_step(j, handing.size(j))
        return (
            Term("goodput", goodput, "samples/s"),
            Term("on its fair share", fair[j], "samples/s"),
            Term("inverse speed-up", seconds(fair[j], goodput)),
            Term("less by a node more", step.urgency if step else 0.0),
        )

    fill(admitted, next_step, handing.take)
    return handing.answer(POLICY.name, terms_of(handing, admitted, why))


POLICY = Policy(
    "pollux",
    Traits(
        about=About(
            does="the mean speed-up, where slow ones count most",
            optimises="the mean speed-up over a fair share of the nodes",
            source="Qiao et al., Pollux, 2021",
        )
    ),
    _allocate,
)
