"""The experiments of section 6, their instances, planners and published tables.

The means of Tables 1, 2 and 4 stand in ``expected.json`` as the paper prints them,
``19:24 ± 00:26``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bftrainer.lab.papers.paper import Extent, read_expected
from bftrainer.lab.papers.tolerances import Printed
from bftrainer.study.plan.exact import exact
from bftrainer.study.plan.problem import Cloud, Experiment, ScalingProfile, sha_stages
from bftrainer.study.plan.published import Algorithm2Reading, greedy, naive, static
from bftrainer.study.plan.stage_cost import Costs, Planned

TABLES = read_expected(__package__)["tables"]

GPUS_PER_INSTANCE = 4  # p3.8xlarge
PRICE_H = 12.24  # the static plan of 40 min gives it to 0.3%
LATENCY_S = 15.0  # of initialisation and of scaling, section 6.3.1
MINUTE_S = 60.0

RESNET101: Experiment = sha_stages(32, 1, 50, 3)  # Tables 2 and 3
TABLE_3 = (32, 20, 12, 8)  # GPUs of the stages
DEADLINES_MIN = (20, 30, 40)
cloud = partial(Cloud, gpus_per_instance=GPUS_PER_INSTANCE, price_h=PRICE_H)  # p3.8xlarge
WARM_POOL = cloud(init_s=LATENCY_S, scale_s=LATENCY_S)
# By ``Planner``.
_PLANS: dict[str, Callable[[Costs, float, int], Planned | None]] = {
    "static": static,
    "naive": naive,
    "Alg. 2 literal": partial(greedy, reading=Algorithm2Reading.LITERAL),
    "Alg. 2 repaired": partial(greedy, reading=Algorithm2Reading.REPAIRED),
    "exact": exact,
}


def study(trials: int, most: int = 508) -> Experiment:
    """Return the simulated study of so many trials: SHA(n, 4, R, 2), section 6.1."""
    return sha_stages(trials, 4, most, 2)


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


def play(_: None, run: Planning) -> Planned | None:
    """Plan one study; None: no plan is in time."""
    return _PLANS[run.planner](run.costs(), run.deadline_s, run.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Points(Extent):
    """The points of the figures, and the sizes of samples."""

    samples: int = 400  # of stragglers
    data_deadlines_min: tuple[int, ...] = (10, 12, 15, 20, 25, 30)  # Fig. 10
    trials: tuple[int, ...] = (16, 32, 64, 128, 256, 512)  # Fig. 11
    init_deadlines_min: tuple[int, ...] = (90, 100, 110, 120, 130, 140, 150, 160)  # Fig. 12
    flat_from: tuple[int, ...] = (11, 12, 13, 14, 16, 20, 24, 32)  # Fig. 12: no gain beyond
    placements: int = 400  # Algorithm 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A published mean of several runs, and what is printed after it; times are in minutes."""

    value: float
    spread: float = 0.0


def means(table: str, row: str) -> list[Mean]:
    """Return the means of a row by column."""
    column_means = []
    for text in TABLES[table]["rows"][row]:
        value, _, spread = text.partition(" ± ")
        column_means.append(Mean(value=_number(value), spread=_number(spread or "0")))
    return column_means


def _number(printed: str) -> Printed:
    if ":" in printed:
        return Printed.clock(printed)
    return Printed(printed)
