"""The sizes of the greatest sum of utility less cost, instead of Or et al.'s climbing.

Climbing (``utility``) stops where the next step does not pay, so it misses what two steps would
earn: where utility is flat at first, or falls in steps. Here U(T(n)) - C(n) is laid out for every
size of each trainer by its curve, the pause of a rescale included, and the best sizes of all
trainers are found by dynamic programming over the nodes: exactly, class by class (a trainer is
given its class before). A trainer that is worth nothing at any size is parked.

Trainers without a payoff (``utility``) share what is left by the condition of the throughput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.competition import Climb, by_curve
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.scaling_rule import Payoff
from bftrainer.decide.policies.utility import UtilityOptions
from bftrainer.model.decision import Term
from milp.problem import Problem

Values = NDArray[np.float64]


def _allocate(problem: Problem, context: Context, /) -> Decided:
    """The greatest sum of U - C."""
    options: UtilityOptions = context.options
    handing = Handing(problem, is_spread=True)
    payoffs = options.payoffs(handing.trainers, context)
    sizes, tables = dict[int, int](), dict[int, Values]()
    for k, count in enumerate(handing.counts):
        of_class: dict[int, Values] = {}
        for j, payoff in enumerate(payoffs):
            if payoff is not None and handing.home[j] == k:
                of_class[j] = values_of(handing, j, payoff)
        sizes |= zip(of_class, best_sizes(list(of_class.values()), count), strict=True)
        tables |= of_class
    climbers = [options.fallback() if payoff is None else None for payoff in payoffs]
    climb = Climb(handing, context, climbers, step=options.step, sizes=sizes)
    climb.run()

    def terms(j: int) -> tuple[Term, ...]:
        if j not in tables:
            return climb.terms(j)
        size = handing.size(j)
        near = [n for n in (size - 1, size, size + 1) if 0 <= n < len(tables[j])]
        return tuple([Term(f"U - C at {n}", float(tables[j][n]), "$") for n in near])

    return climb.answer(POLICY.name, options.measure_s, terms)


def values_of(handing: Handing, j: int, payoff: Payoff) -> Values:
    """Return U - C of trainer j by size, dollars; -inf where it is not allowed."""
    trainer, present = handing.trainers[j], len(handing.pool.present[j])
    largest = handing.largest(j)
    values = np.full(largest + 1, -math.inf)
    values[0] = min(0.0, payoff.utility[-1][1])  # it does not complete
    for n, point in by_curve(trainer, range(trainer.n_min, largest + 1)).items():
        pause_s = 0.0
        if present and n != present:
            pause_s = trainer.rescale_down_s
            if n > present:
                pause_s = trainer.rescale_up_s
        values[n] = payoff.of(point, pause_s=pause_s)
    return values


def best_sizes(tables: Sequence[Values], count: int) -> list[int]:
    """Return the sizes of the greatest sum, at most ``count`` together; ties: the fewest nodes.

    Args:
        tables: by trainer the value of each size from 0.
        count: of nodes.
    """
    best = np.zeros(count + 1)  # [n]: value of the trainers so far on at most n nodes
    choices: list[NDArray[np.int64]] = []
    for table in tables:
        best_with, size_of = best + table[0], np.zeros(count + 1, dtype=np.int64)
        for size in range(1, min(len(table), count + 1)):
            if table[size] == -math.inf:
                continue
            with_it = best[: count + 1 - size] + table[size]
            is_better = with_it > best_with[size:]
            best_with[size:][is_better] = with_it[is_better]
            size_of[size:][is_better] = size
        best = best_with
        choices.append(size_of)
    sizes: list[int] = []
    nodes_left = count
    for size_of in reversed(choices):
        sizes.append(int(size_of[nodes_left]))
        nodes_left -= sizes[-1]
    return sizes[::-1]


POLICY = Policy(
    "utility-exact",
    Traits(
        about=About(
            does="the greatest utility less cost",
            optimises="the sum of the utility less cost of all trainers",
            source="Or et al., Resource elasticity, 2020",
        ),
        options=UtilityOptions,
    ),
    _allocate,
)
