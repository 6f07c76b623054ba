"""What samplers find: studies of a parabola of four parameters, with curves and noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from _bench.rule_replay import Curve, Parent, play
from bftrainer.study.rungs import rule_of
from bftrainer.study.storage import Drawer
from bftrainer.study.trials import Scalar, StudyRule, StudyTrial, TrialStage, Verdicts

SEEDS: Final = range(12)
WORKERS: Final = 8
MOST: Final = 27
RULES: Final[Mapping[str, Mapping[str, int]]] = {
    "asha": {"trials": 100, "least": 1, "most": MOST, "eta": 3},
    "sha": {"trials": 100, "least": 1, "most": MOST, "eta": 3},
    "none": {"trials": 60, "most": MOST},
}
SPACE: Final[dict[str, BaseDistribution]] = {f"x{i}": FloatDistribution(0, 1) for i in range(4)}
_WEIGHTS: Final = np.array([1.0, 0.6, 0.4, 0.2])
_STATES: Final = {TrialStage.COMPLETE: TrialState.COMPLETE, TrialStage.STOPPED: TrialState.PRUNED}


@dataclass(slots=True, kw_only=True)
class _Watched:
    """A rule that keeps the trials it was last shown: samplers may know those."""

    rule: StudyRule
    seen: tuple[StudyTrial, ...] = field(default=())

    @property
    def most(self) -> int:
        return self.rule.most

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        self.seen = tuple(trials)
        return self.rule.verdicts(trials, room)

    def describe(self) -> Mapping[str, Any]:
        return self.rule.describe()


def found(rule: str, sampler: str, *, knows_waiting: bool = True) -> tuple[float, float, float]:
    """Return means over the seeds: the best complete trial's loss, its standard error, and units.

    Args:
        rule: of ``RULES``.
        sampler: ``tpe`` or ``random``.
        knows_waiting: whether it is told what trials at rungs have reported.
    """
    studies = [_studied(rule, sampler, seed, knows_waiting=knows_waiting) for seed in SEEDS]
    best = [one for one, _ in studies]
    error = float(np.std(best, ddof=1)) / math.sqrt(len(best))
    return fmean(best), error, fmean(units for _, units in studies)


def _studied(rule: str, sampler: str, seed: int, *, knows_waiting: bool) -> tuple[float, float]:
    random = np.random.default_rng(seed)
    centre = random.uniform(0.2, 0.8, len(SPACE))
    drawer = Drawer(sampler, seed, SPACE, StudyDirection.MINIMIZE)
    watched = _Watched(rule=rule_of({"name": rule, **RULES[rule]}))
    drawn: list[dict[str, Scalar]] = []
    losses: list[float] = []

    def draw(number: int, _parent: Parent | None) -> Curve:
        past = [
            _frozen(trial, drawn[trial.number], knows_waiting=knows_waiting)
            for trial in watched.seen
        ]
        # Those that were started in the same answer are not among the trials that the rule saw.
        past += [
            create_trial(state=TrialState.RUNNING, params=one, distributions=SPACE)
            for one in drawn[len(past) :]
        ]
        parameters = drawer.draw(number, past)
        drawn.append(parameters)
        at = np.array([float(parameters[name]) for name in SPACE])
        losses.append(float((_WEIGHTS * (at - centre) ** 2).sum()))
        slow, noise = random.uniform(0.04, 0.2), random.normal(0.0, 0.01, MOST + 1)
        points = ((u, losses[-1] + slow / math.sqrt(u) + noise[u]) for u in range(1, MOST + 1))
        return Curve(points=tuple(points), unit_s=float(random.uniform(0.8, 1.25)))

    played = play(watched, draw, WORKERS)
    return min(losses[trial.number] for trial in played.complete), played.units


def _frozen(
    trial: StudyTrial, parameters: dict[str, Scalar], *, knows_waiting: bool
) -> FrozenTrial:
    """Return a trial as the storage has it."""
    state = _STATES.get(trial.stage, TrialState.RUNNING)
    is_known = knows_waiting or state is not TrialState.RUNNING
    return create_trial(
        state=state,
        params=parameters,
        distributions=SPACE,
        intermediate_values={one.units: one.value for one in trial.values} if is_known else {},
        value=trial.values[-1].value if state is TrialState.COMPLETE else None,
    )


ROWS: Final[Mapping[str, Callable[[str], tuple[float, float, float]]]] = {
    "random": lambda rule: found(rule, "random"),
    "tpe, not told of trials at rungs": lambda rule: found(rule, "tpe", knows_waiting=False),
    "tpe": lambda rule: found(rule, "tpe"),
}
