"""Gavel's max-min fairness: the smallest normalised throughput is made as large as it can be.

Source: Narayanan et al., "Heterogeneity-aware cluster scheduling policies" (OSDI'20), section 4.1.
A trainer's throughput is divided by that of an equal share. The paper gives trainers of fixed size
shares of time on each type of node (``time_shares``). Here the shares choose the class of trainers
that have none, and the sizes inside a class are raised, always the lowest throughput first. A
trainer is equally fast on all classes that it accepts, as everywhere in this project.
"""

from __future__ import annotations

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.greedy_steps import (
    Step,
    admit,
    fair_sizes,
    fill,
    next_rise,
    terms_of,
)
from bftrainer.decide.policies.time_shares import max_min_time_shares
from bftrainer.model.terms import Term
from milp.problem import Problem


class GavelMaxMinPolicy:
    """Classes by a linear program, sizes by filling."""

    name = "gavel-max-min"
    traits = Traits()

    def allocate(self, problem: Problem, context: Context, /) -> Decided:  # noqa: ARG002
        """Choose classes, give n_min to all, then raise the lowest."""
        handing = Handing(problem)
        everybody = range(len(handing.trainers))
        sizes = fair_sizes(handing, everybody)
        admitted = admit(handing, everybody, _classes(handing, sizes))
        levels: dict[int, list[float]] = {}
        for j in admitted:
            fair = handing.rate(j, sizes[j])
            levels[j] = [rate / fair if fair > 0.0 else rate for rate in handing.rates(j)]

        def next_step(j: int, size: int) -> Step | None:
            higher = next_rise(levels[j], size)
            return None if higher is None else Step(-levels[j][size], higher)

        def why(j: int) -> tuple[Term, ...]:
            return (
                Term("normalised throughput", levels[j][handing.size(j)]),
                Term("equal share", sizes[j], "nodes"),
            )

        fill(admitted, next_step, handing.take)
        return handing.answer(self.name, terms_of(handing, admitted, why))


def _classes(handing: Handing, sizes: list[float]) -> dict[int, int]:
    """The class in which each trainer has its largest share of time."""
    chooses = [j for j, home in enumerate(handing.home) if home is None and handing.accepted(j)]
    if len(handing.counts) == 1 or not chooses:
        return {}
    takes_part = [j for j in range(len(sizes)) if handing.accepted(j)]
    rates = [[float(accepts) for accepts in handing.pool.accepts[j]] for j in takes_part]
    found = max_min_time_shares(rates, [sizes[j] for j in takes_part], handing.counts)
    shares = dict(zip(takes_part, found, strict=True))
    return {j: max(handing.accepted(j), key=shares[j].__getitem__) for j in chooses}


POLICY: AllocationPolicy = GavelMaxMinPolicy()
