"""A policy around the site's policy: it knows how little is known of the curves.

Trainers nobody has measured are put on the scale of the others where rates are compared as
they are, and sizes that teach are preferred within the budget the administrator sets
(``bftrainer.profile.explore``). Made for each decision by ``decide``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import geometric_mean

from bftrainer.decide.curves import fitted
from bftrainer.decide.policies.base import Policy
from bftrainer.decide.types import DecisionInput
from bftrainer.profile.explore import explore
from bftrainer.trainer import TrainerRecord
from milp.problem import Allocation, Curve, Objective, Problem
from milp.worth import curve_at


@dataclass(frozen=True, slots=True)
class Exploring:
    """Allocates by ``policy``, in view of what ``given`` says is known."""

    policy: Policy
    given: DecisionInput

    @property
    def name(self) -> str:
        """The policy's own."""
        return self.policy.name

    def allocate(self, problem: Problem) -> Allocation:
        """Decide who gets which node.

        Raises:
            milp.errors.ProblemError: the problem is malformed.
        """
        settings, trainers = self.given.settings, self.given.trainers
        if problem.objective is Objective.THROUGHPUT:
            problem = put_to_scale(problem, trainers, is_bold=settings.explore_budget > 0.0)
        best = self.policy.allocate(problem)
        if settings.explore_budget <= 0.0:
            return best
        errors = {r.trainer_id: fitted(r, settings).error_at for r in trainers}
        return explore(problem, best, self.policy.allocate, errors, settings.explore_budget)


def put_to_scale(
    problem: Problem, trainers: tuple[TrainerRecord, ...], *, is_bold: bool
) -> Problem:
    """Give those whose rate nobody knows a rate that can be compared with the others'.

    On one node as fast as the others on average; as the fastest of them if ``is_bold``:
    then they get nodes, and are measured, soon.
    """
    unknown = {r.trainer_id for r in trainers if not is_known(r)}
    known = [curve_at(t.curve, 1) for t in problem.trainers if t.trainer_id not in unknown]
    known = [rate for rate in known if rate > 0.0]
    if not unknown or not known:
        return problem
    scale = max(known) if is_bold else geometric_mean(known)
    return replace(
        problem,
        trainers=tuple(
            replace(t, curve=_times(t.curve, scale / curve_at(t.curve, 1)))
            if t.trainer_id in unknown
            else t
            for t in problem.trainers
        ),
    )


def is_known(record: TrainerRecord) -> bool:
    """Whether the curve is in samples per second: measured, or the user's."""
    return record.spec.curve is not None or bool(record.costs.samples_per_s_by_size)


def _times(curve: Curve, factor: float) -> Curve:
    return replace(curve, samples_per_s=tuple(factor * rate for rate in curve.samples_per_s))
