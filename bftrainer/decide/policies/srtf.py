"""Shortest remaining time first.

The time that a trainer needs for the samples left at the size it requests decides; of equal times
the one that requests fewer nodes is first. Trainers without a goal in samples come after the
others, in order of submission.
"""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.distribution import Handing, seconds
from bftrainer.decide.policies.queue_order import by_key, serve
from bftrainer.model.decision import Term
from milp.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class SrtfOptions:
    """The options of the policy."""

    elastic: bool = False  # each takes what is left of n_min to n_max; false: n_max or nothing


def _allocate(problem: Problem, context: Context, /) -> Decided:
    """Shorter trainers displace longer ones."""
    handing = Handing(problem, admits=True)

    def key(j: int) -> tuple[bool, float, int]:
        left_samples = context.trainers[handing.trainers[j].trainer_id].left_samples
        if left_samples is None:
            return True, 0.0, 0
        request = handing.largest(j)
        return False, seconds(left_samples, handing.rate(j, request)), request

    def why(j: int) -> tuple[Term, ...]:
        is_endless, left_s, _ = key(j)
        if is_endless:
            return ()
        return (Term("remaining at the size requested", left_s, "s"),)

    order = by_key(handing, key)
    return serve(handing, order, POLICY.name, why, is_elastic=context.options.elastic)


POLICY = Policy(
    "srtf",
    Traits(
        about=About(does="shortest remaining time first", optimises="the mean completion time"),
        options=SrtfOptions,
        is_rigid=True,
        follows_curves=False,
        admits=True,
        reads_rates=True,
    ),
    _allocate,
)
