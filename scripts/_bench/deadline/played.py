"""Studies played by the simulator on windows of a trace, beside what the integral says of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from _bench.studies.curves import drawn
from _bench.studies.session import play_study
from _bench.studies.trials import SimStudy
from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.lab.simulator.physical import MEASURED
from bftrainer.lab.simulator.session import Choices
from bftrainer.lab.workloads import Submission
from bftrainer.study.deadline import Work, finish_s, parts_of
from bftrainer.study.rungs import Asha, Full, Sha, ladder
from bftrainer.study.trials import StudyRule
from milp.problem import Curve

from . import grid

WINDOW_H: Final = 8.0
DEADLINES_H: Final = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study to play."""

    name: str
    rule: StudyRule
    trials: int
    n_max: int
    exponent: float
    unit_s: float  # on one node

    @property
    def work(self) -> Work:
        """What the integral is told of it."""
        scaling = grid.scaling(self.n_max, self.exponent)
        slower = tuple(s * self.unit_s for s in scaling.unit_s)
        return Work(parts=parts_of(self.rule)[0], scaling=replace(scaling, unit_s=slower))


def _climbing(rule: type[Sha | Asha], trials: int, most: int, eta: int, **more: Any) -> Study:
    name = f"{rule.__name__.lower()} {trials}"
    made = rule(trials=trials, least=1, most=most, eta=eta)
    return Study(name=name, rule=made, trials=trials, exponent=0.85, **more)


STUDIES: Final = (
    Study(
        name="64 trials",
        rule=Full(trials=64, most=4),
        trials=64,
        n_max=4,
        exponent=0.9,
        unit_s=1500.0,
    ),
    _climbing(Sha, 81, 27, 3, n_max=8, unit_s=1500.0),
    _climbing(Sha, 16, 8, 2, n_max=4, unit_s=2400.0),
    _climbing(Asha, 81, 27, 3, n_max=8, unit_s=1500.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """When a study is over: by the integral over the true pool, and as the simulator plays it."""

    study: str
    begin_h: float
    integral_h: float  # infinity: not in the window
    played_h: float


def compared(trace: Fragments, study: Study, begins_h: list[float]) -> Iterator[Both]:
    """Play a study on windows of a trace."""
    truth, rates = grid.usable(trace, grid.TRUE_STEP_S), study.work.rates()
    steps = round(WINDOW_H * HOUR_S / grid.TRUE_STEP_S)
    for begin_h in begins_h:
        first = round(begin_h * HOUR_S / grid.TRUE_STEP_S)
        nodes = truth.nodes[None, first : first + steps]
        end_s = grid.START_UP_S + finish_s(nodes, rates, grid.TRUE_STEP_S)[0]
        window = trace.restrict(start_s=trace.span_s[0] + begin_h * HOUR_S, hours=WINDOW_H)
        yield Both(
            study=study.name,
            begin_h=begin_h,
            integral_h=float(end_s) / HOUR_S,
            played_h=_played_h(window, study),
        )


def _played_h(window: Fragments, study: Study) -> float:
    sizes = tuple(range(1, study.n_max + 1))
    trial = Submission(
        submit_s=0.0,
        name=study.name,
        n_min=1,
        n_max=study.n_max,
        samples=1.0,
        curve=Curve(sizes=sizes, samples_per_s=tuple(n**study.exponent for n in sizes)),
        rescale_up_s=0.0,
        rescale_down_s=0.0,
    )
    rule = study.rule
    budgets = {rule.most}
    if isinstance(rule, Sha | Asha):
        budgets |= {one.budget for one in ladder(rule.trials, rule.least, rule.most, rule.eta)}
    simulated = SimStudy(
        rule=rule,
        curves=drawn(study.trials, most=rule.most, seed=1),
        trial=trial,
        unit_samples=study.unit_s,
        parallel=study.trials,
        reports=tuple(sorted(budgets)),
    )
    choices = Choices(costs=MEASURED, p_jmax=study.trials)
    found = play_study(window, simulated, choices).figures
    return found.hours if found.is_over else math.inf


def agreement(found: list[Both]) -> dict[str, float]:
    """Return how often both say the same of the deadlines, and how much longer the play takes."""
    integral = np.array([one.integral_h for one in found])
    played = np.array([one.played_h for one in found])
    limits = np.array(DEADLINES_H)[:, None]
    both = np.isfinite(integral) & np.isfinite(played)
    longer = np.log(played[both] / integral[both])
    return {
        "cases": float(len(found)),
        "agree": float(((integral <= limits) == (played <= limits)).mean()),
        "in_time_integral": float((integral <= limits).mean()),
        "in_time_played": float((played <= limits).mean()),
        "longer_median": float(np.expm1(np.median(longer))) if both.any() else math.nan,
        "longer_p90": float(np.expm1(np.quantile(longer, 0.9))) if both.any() else math.nan,
    }
