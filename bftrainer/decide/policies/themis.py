"""Themis: finish-time fairness.

Source: Mahajan et al., "Themis" (NSDI'20), section 3: a trainer's ratio rho is the time it
takes from submission to its end over the time it would take alone on its fair share of the pool.
The largest ratio is made as small as it can be. The paper auctions leases on nodes to the worst-off
1 - f of the trainers; here those admitted, the worst-off first, get n_min, then each further
step goes to the worst. A trainer without a goal is judged as if it ended at the forward-looking
time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.distribution import Handing, seconds
from bftrainer.decide.policies.greedy_steps import (
    Step,
    admit,
    fair_sizes,
    fill,
    next_rise,
    terms_of,
)
from bftrainer.decide.policies.queue_order import Lease
from bftrainer.model.decision import Term
from milp.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ThemisOptions:
    """The length of a lease."""

    lease_s: float = 1200.0  # so long nodes are not taken for who is worse off

    def __post_init__(self) -> None:
        if self.lease_s <= 0.0:
            raise ValueError(f"lease_s is {self.lease_s:g}, but must be more than 0")


def _allocate(problem: Problem, context: Context, /) -> Decided:
    """The worst finish-time ratio first."""
    handing = Handing(problem, admits=True)
    everybody = range(len(handing.trainers))
    fair = _fair_rates(handing, everybody)
    lease = Lease(context, context.options.lease_s)
    # Before anything is given: what its ratio would be with its fair share from now on.
    before = {j: _ratio(handing, context, j, fair[j], fair[j]) for j in everybody}
    order = lease.order(handing, lambda j: -before[j])
    admitted = admit(handing, order)
    fair |= _fair_rates(handing, sorted(admitted))
    levels: dict[int, list[float]] = {}
    for j in admitted:
        levels[j] = [-_ratio(handing, context, j, rate, fair[j]) for rate in handing.rates(j)]

    def next_step(j: int, size: int) -> Step | None:
        higher = next_rise(levels[j], size)
        if higher is None:
            return None
        is_leased = not lease.is_new and higher <= len(handing.pool.present[j])
        return Step(math.inf if is_leased else -levels[j][size], higher)

    def why(j: int) -> tuple[Term, ...]:
        return (Term("rho at its size", -levels[j][handing.size(j)]),)

    def terms(j: int) -> tuple[Term, ...]:
        first = Term("rho, had it its fair share from now on", before[j])
        return first, *terms_of(handing, admitted, why)(j)

    fill(admitted, next_step, handing.take)
    return lease.keep(handing.answer(POLICY.name, terms, order))


def _fair_rates(handing: Handing, among: Sequence[int]) -> dict[int, float]:
    sizes = fair_sizes(handing, among)
    return {j: handing.rate(j, sizes[j]) for j in among}


def _ratio(handing: Handing, context: Context, j: int, rate: float, fair: float) -> float:
    """Return rho at a rate of samples per second."""
    standing = context.trainers[handing.trainers[j].trainer_id]
    elapsed_s = max(0.0, context.now_s - standing.submitted_s)
    if standing.left_samples is None:
        t_fwd_s = handing.problem.t_fwd_s
        shared_s = elapsed_s + t_fwd_s
        alone_s = seconds(standing.done_samples + rate * t_fwd_s, fair)
    else:
        shared_s = elapsed_s + seconds(standing.left_samples, rate)
        alone_s = seconds(standing.done_samples + standing.left_samples, fair)
    if alone_s == math.inf:  # no share would do
        return 0.0
    if alone_s > 0.0:
        return shared_s / alone_s
    return math.inf


POLICY = Policy(
    "themis",
    Traits(
        about=About(
            does="finish-time fairness",
            optimises="the largest ratio of the time to the end over that alone on a fair share",
            source="Mahajan et al., Themis, 2020",
        ),
        options=ThemisOptions,
        admits=True,
        reads_rates=True,
    ),
    _allocate,
)
