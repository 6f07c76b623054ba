"""Least attained service first; the length of a trainer need not be known.

Source: Gu et al., "Tiresias" (NSDI'19), section 3.2: service is nodes times time. ``las`` orders
by it. ``tiresias`` has two queues instead, so that trainers of about the same age do not displace
each other all the time: a trainer that has had more than a threshold goes to the second queue;
inside both the order is that of entry. Rigid (``queue_order``), as published.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.queue_order import Lease, by_key, serve
from bftrainer.model.decision import Term
from milp.problem import Problem

SHORTEST_SLEEP_S = 1.0  # until a threshold is reached, so that rounding cannot ask at once again


@dataclass(frozen=True, slots=True, kw_only=True)
class LasOptions:
    """The period at which the order is made."""

    period_s: float = 600.0  # so long who runs is not displaced

    def __post_init__(self) -> None:
        if self.period_s <= 0.0:
            raise ValueError(f"period_s is {self.period_s:g}, but must be more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TiresiasOptions:
    """The threshold between the queues."""

    threshold_node_s: float = 57_600.0  # 16 GPU-hours, as in AdaptDL's comparison (OSDI'21)

    def __post_init__(self) -> None:
        if self.threshold_node_s <= 0.0:
            raise ValueError(
                f"threshold_node_s is {self.threshold_node_s:g}, but must be more than 0"
            )


def attained(node_s: float) -> Term:
    """Return the service that a trainer has had."""
    return Term("attained", node_s / 3600.0, "node-h")


def _las(problem: Problem, context: Context, /) -> Decided:
    """One queue, least attained first, made anew every period."""
    handing = Handing(problem, admits=True)
    lease = Lease(context, context.options.period_s)
    attained_node_s = [
        context.trainers[trainer.trainer_id].attained_node_s for trainer in handing.trainers
    ]
    order = lease.order(handing, attained_node_s.__getitem__)
    return lease.keep(serve(handing, order, LAS.name, lambda j: (attained(attained_node_s[j]),)))


def _tiresias(problem: Problem, context: Context, /) -> Decided:
    """Two queues; the state lists the second one in order of entry."""
    handing = Handing(problem, admits=True)
    threshold_node_s = context.options.threshold_node_s
    attained_node_s: dict[str, float] = {}
    for trainer in problem.trainers:
        standing = context.trainers[trainer.trainer_id]
        attained_node_s[trainer.trainer_id] = standing.attained_node_s
    second = [trainer_id for trainer_id in context.state or () if trainer_id in attained_node_s]
    for trainer_id, node_s in attained_node_s.items():
        if node_s >= threshold_node_s and trainer_id not in second:
            second.append(trainer_id)
    rank = {trainer_id: 1 + i for i, trainer_id in enumerate(second)}
    order = by_key(handing, lambda j: rank.get(handing.trainers[j].trainer_id, 0))

    def why(j: int) -> tuple[Term, ...]:
        trainer_id = handing.trainers[j].trainer_id
        return Term("queue", 1 + (trainer_id in rank)), attained(attained_node_s[trainer_id])

    decided = serve(handing, order, TIRESIAS.name, why)
    sizes = decided.allocation.unit_sizes(handing.problem)
    ends_s = [
        (threshold_node_s - attained_node_s[trainer_id]) / size
        for trainer_id, size in sizes.items()
        if trainer_id not in rank
    ]
    wake_at_s = None
    if ends_s and len(sizes) < len(attained_node_s):
        wake_at_s = context.now_s + max(SHORTEST_SLEEP_S, min(ends_s))
    return replace(decided, state=second, wake_at_s=wake_at_s)


LAS = Policy(
    "las",
    Traits(
        about=About(
            does="least attained service first",
            optimises="equality of service",
            source="Gu et al., Tiresias, 2019",
        ),
        options=LasOptions,
        is_rigid=True,
        follows_curves=False,
        admits=True,
    ),
    _las,
)
TIRESIAS = Policy(
    "tiresias",
    Traits(
        about=About(
            does="two queues by attained service",
            optimises="equality of service, in two queues",
            source="Gu et al., Tiresias, 2019",
        ),
        options=TiresiasOptions,
        is_rigid=True,
        follows_curves=False,
        admits=True,
    ),
    _tiresias,
)
