"""Or et al.'s autoscaling by throughput: a trainer grows while new nodes add enough throughput.

Source: Or, Zhang and Freedman, "Resource Elasticity in Distributed Deep Learning" (MLSys 2020),
sections 4.1 and 4.2.1; the rule is ``scaling_rule``, several trainers compete in ``competition``.
The paper's straggler replacement (section 5) is ``decide.slow_nodes``, under every policy.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.competition import Climb, Climber
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.scaling_rule import Throughput
from milp.problem import Problem


class Order(enum.StrEnum):
    """The order in which requests are met."""

    SIZE = "size"  # the smallest trainer's
    EFFICIENCY = "efficiency"  # the one of the greatest s


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions:
    """The paper's S and K, and how sure a decision must be."""

    threshold: float = 0.1  # S
    step: int = 1  # K, nodes
    order: Order = Order.SIZE  # of the requests of several trainers
    standard_errors: float = 2.0  # of s from S; 0: decide at once
    measure_s: float = 60.0  # between looks at the measurements

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_climb(self.threshold, self.step, self.standard_errors, self.measure_s)

    def condition(self) -> Throughput:
        """Return the scaling condition."""
        return Throughput(threshold=self.threshold, standard_errors=self.standard_errors)


def check_climb(threshold: float, step: int, standard_errors: float, measure_s: float) -> None:
    """Raise ValueError for options out of range."""
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"threshold is {threshold:g}, but must be from 0 to 1")
    if step < 1:
        raise ValueError(f"step is {step}, but must be at least 1")
    if not standard_errors >= 0.0:
        raise ValueError(f"standard_errors is {standard_errors:g}, but must be at least 0")
    if not measure_s >= 1.0:
        raise ValueError(f"measure_s is {measure_s:g}, but must be at least 1")


def _allocate(problem: Problem, context: Context, /) -> Decided:
    """Every trainer grows while s > S; ``Order`` says which is first."""
    options: ThroughputOptions = context.options
    handing = Handing(problem, is_spread=True)
    climber = Climber(condition=options.condition(), by_size=options.order is Order.SIZE)
    climb = Climb(handing, context, [climber] * len(handing.trainers), step=options.step)
    climb.run()
    return climb.answer(POLICY.name, options.measure_s)


# It measures sizes by its own rule, so nobody is to explore in its place.
POLICY = Policy(
    "throughput-scaling",
    Traits(
        about=About(
            does="grow while new nodes earn their keep",
            optimises="each trainer alone: it keeps nodes that gain more than a threshold",
            source="Or et al., Resource elasticity, 2020",
        ),
        options=ThroughputOptions,
        follows_curves=False,
    ),
    _allocate,
)
