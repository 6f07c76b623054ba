"""Or et al.'s autoscaling by utility: a trainer grows while it gains more dollars than it costs.

Source: Or, Zhang and Freedman, "Resource Elasticity in Distributed Deep Learning" (MLSys 2020),
section 4.2.2: U(T(k')) - U(T(k)) > C(k') - C(k). It overrides the condition of the throughput,
which holds for trainers whose completion time cannot be told: without a goal in samples, or
without any measurement. Those grow after the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, pairwise

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Standing, Traits
from bftrainer.decide.policies.competition import Climb, Climber
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.scaling_rule import Payoff, Points, Throughput
from bftrainer.decide.policies.throughput_scaling import check_climb
from milp.problem import Problem, ProblemTrainer

LARGEST = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilityOptions:
    """The worth of completion, the price of a node, and options for trainers without a payoff."""

    # Seconds since submission, dollars: linear between, constant outside.
    utility: Points = ((0.0, 100.0), (86400.0, 0.0))
    price_per_node_h: float = 0.01  # dollars
    threshold: float = 0.1  # S
    step: int = 1  # K, nodes
    standard_errors: float = 2.0  # of s from S; 0: decide at once
    measure_s: float = 60.0  # between looks at the measurements

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_climb(self.threshold, self.step, self.standard_errors, self.measure_s)
        if not 0.0 <= self.price_per_node_h <= LARGEST:
            raise ValueError(f"price_per_node_h is {self.price_per_node_h:g}, but must not be < 0")
        if not self.utility:
            raise ValueError("utility needs at least one pair of seconds and dollars")
        if not all(abs(number) <= LARGEST for number in chain.from_iterable(self.utility)):
            raise ValueError("utility needs pairs of finite seconds and dollars")
        for (early_s, early_dollars), (late_s, late_dollars) in pairwise(self.utility):
            if late_s <= early_s or late_dollars > early_dollars:
                raise ValueError(
                    "utility needs pairs of rising seconds and of dollars that never rise"
                )

    def payoffs(self, trainers: Iterable[ProblemTrainer], context: Context) -> list[Payoff | None]:
        """Return the trainers' payoffs; None where a completion time cannot be told."""
        payoffs: list[Payoff | None] = []
        for trainer in trainers:
            standing = context.trainers[trainer.trainer_id]
            payoffs.append(self._payoff(standing, context.now_s))
        return payoffs

    def _payoff(self, standing: Standing, now_s: float) -> Payoff | None:
        if standing.left_samples is None or not standing.has_rates:
            return None
        return Payoff(
            utility=self.utility,
            price=self.price_per_node_h / 3600.0,
            past_s=max(0.0, now_s - standing.submitted_s),
            left_samples=standing.left_samples,
        )

    def fallback(self) -> Climber:
        """Return a trainer without a payoff."""
        condition = Throughput(threshold=self.threshold, standard_errors=self.standard_errors)
        return Climber(condition=condition, rank=1)


def _allocate(problem: Problem, context: Context, /) -> Decided:
    """Requests compete by dollars gained per node."""
    options: UtilityOptions = context.options
    handing = Handing(problem, is_spread=True)
    climbers: list[Climber] = []
    for payoff in options.payoffs(handing.trainers, context):
        climber = options.fallback()
        if payoff is not None:
            climber = Climber(condition=payoff)
        climbers.append(climber)
    climb = Climb(handing, context, climbers, step=options.step)
    climb.run()
    return climb.answer(POLICY.name, options.measure_s)


POLICY = Policy(
    "utility",
    Traits(
        about=About(
            does="grow while it gains more than it costs",
            optimises="each trainer's utility less the cost of its nodes",
            source="Or et al., Resource elasticity, 2020",
        ),
        options=UtilityOptions,
        follows_curves=False,
    ),
    _allocate,
)
