"""One plan of a study: its setting and the plan that a planner finds. Both are plain data."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from bftrainer.lab.papers.rubberband.setting import Rented
from bftrainer.study.plan.exact import exact
from bftrainer.study.plan.problem import Cloud, Experiment, ScalingProfile
from bftrainer.study.plan.published import Algorithm2Reading, greedy, naive, static
from bftrainer.study.plan.stage_cost import Costs, Planned


class Planner(enum.StrEnum):
    """The planner."""

    STATIC = "static"
    NAIVE = "naive"
    LITERAL = "Alg. 2 literal"
    REPAIRED = "Alg. 2 repaired"
    EXACT = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """A study that is to be planned."""

    experiment: Experiment
    scaling: ScalingProfile
    cloud: Cloud
    deadline_s: float
    planner: Planner
    most: int = 512  # GPUs

    def costs(self) -> Costs:
        """Return what plans of the study take."""
        return Costs(experiment=self.experiment, scaling=self.scaling, cloud=self.cloud)


def play(_: Rented, run: Planning) -> Planned | None:
    """Plan one study; None: no plan is in time."""
    costs, deadline_s, most = run.costs(), run.deadline_s, run.most
    match run.planner:
        case Planner.STATIC:
            return static(costs, deadline_s, most)
        case Planner.NAIVE:
            return naive(costs, deadline_s, most)
        case Planner.LITERAL:
            return greedy(costs, deadline_s, most, Algorithm2Reading.LITERAL)
        case Planner.REPAIRED:
            return greedy(costs, deadline_s, most, Algorithm2Reading.REPAIRED)
        case Planner.EXACT:
            return exact(costs, deadline_s, most)


def longest_first(run: Planning) -> tuple[int, bool]:
    """Order runs: the exact plans of many trials take longest."""
    return -run.experiment[0].trials, run.planner is not Planner.EXACT
