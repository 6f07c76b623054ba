"""Optimus: nodes go where they shorten a trainer's remaining time most.

Source: Peng et al., "Optimus" (EuroSys'18). Each trainer gets n_min, in order of submission; then
each further node goes to the one whose time left falls most by it, while any falls. The paper fits
speed and loss online; here the curve is what is learnt (``throughput``), and the samples left are
those of the goal.
"""

from __future__ import annotations

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.distribution import Handing, seconds
from bftrainer.decide.policies.greedy_steps import Step, admit, fill, samples_ahead, saved, terms_of
from bftrainer.model.decision import Term
from milp.problem import Problem


def _allocate(problem: Problem, context: Context, /) -> Decided:
    """Greedy, by the seconds that one node more saves."""
    handing = Handing(problem)
    admitted = admit(handing, range(len(handing.trainers)))
    rates: dict[int, list[float]] = {}
    ahead: dict[int, float] = {}
    for j in admitted:
        rates[j] = handing.rates(j)
        ahead[j] = samples_ahead(handing, context, j)

    def next_step(j: int, size: int) -> Step | None:
        if size + 1 >= len(rates[j]):
            return None
        slow, quick = seconds(ahead[j], rates[j][size]), seconds(ahead[j], rates[j][size + 1])
        gain_s = saved(slow, quick)
        if gain_s > 0.0:
            return Step(gain_s, size + 1)
        return None

    def why(j: int) -> tuple[Term, ...]:
        size = handing.size(j)
        last, step = next_step(j, size - 1), next_step(j, size)
        return (
            Term("time left", seconds(ahead[j], rates[j][size]), "s"),
            Term("saved by its last node", last.urgency if last else 0.0, "s"),
            Term("saved by one more", step.urgency if step else 0.0, "s"),
        )

    fill(admitted, next_step, handing.take)
    return handing.answer(POLICY.name, terms_of(handing, admitted, why))


POLICY = Policy(
    "optimus",
    Traits(
        about=About(
            does="a node goes where it saves most time",
            optimises="the sum of the times left",
            source="Peng et al., Optimus, 2018",
        ),
        reads_rates=True,
    ),
    _allocate,
)
