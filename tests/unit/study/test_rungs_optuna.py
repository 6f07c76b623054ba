"""The rules beside Optuna's pruners, report by report, on drawn curves."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, SuccessiveHalvingPruner

from bftrainer.study.rungs import Full, Hyperband, Median, Stopping
from bftrainer.study.trials import StudyRule, StudyTrial, Verdicts
from tests.support.pruners import Beside
from tests.support.rule_replay import Curve, play

MOST = 27


def _curve(seed: int, number: int) -> Curve:
    """A curve with noise; some have equal values, some diverge, some report every second time."""
    draw = random.Random(f"{seed} {number}")  # noqa: S311 - a test case
    end, speed, noise = draw.random(), draw.uniform(0.3, 2.0), draw.choice((0.0, 0.02))
    digits, every = draw.choice((1, 6)), draw.choice((1, 1, 1, 2))
    diverges = draw.choice((*(MOST + 1,) * 12, 2, 9))
    points = []
    for units in (*range(every, MOST, every), MOST):
        value = end + (1 - end) / (1 + units) ** speed + draw.gauss(0, noise)
        points.append((units, math.nan if units >= diverges else round(value, digits)))
    return Curve(points=tuple(points), unit_s=draw.choice((1.0, draw.uniform(0.5, 2.0))))


def _beside(rule: StudyRule, pruner: BasePruner, seed: int, workers: int) -> Beside:
    beside = Beside(rule=rule, pruner=pruner)
    played = play(beside, lambda number, _: _curve(seed, number), workers)
    assert played.is_over
    return beside


@pytest.mark.parametrize("eta", [2, 3, 4])
@pytest.mark.parametrize("least", [1, 2])
def test_stopping_is_successive_halving_of_optuna(eta: int, least: int) -> None:
    rule = Stopping(trials=60, least=least, most=MOST, eta=eta)
    pruner = SuccessiveHalvingPruner(min_resource=least, reduction_factor=eta)
    beside = _beside(rule, pruner, seed=eta * 10 + least, workers=5)
    stopped = sum(one.ours for one in beside.judged)
    assert beside.differences == []
    assert stopped > 20
    assert len(beside.judged) > 2 * stopped


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")  # numpy, in Optuna
@pytest.mark.parametrize(("startup", "warmup", "interval"), [(5, 0, 1), (0, 4, 3), (1, 9, 1)])
def test_median_is_that_of_optuna(startup: int, warmup: int, interval: int) -> None:
    rule = Median(trials=60, most=MOST, startup_trials=startup, warmup=warmup, interval=interval)
    pruner = MedianPruner(n_startup_trials=startup, n_warmup_steps=warmup, interval_steps=interval)
    beside = _beside(rule, pruner, seed=startup, workers=5)
    assert beside.differences == []
    assert sum(one.ours for one in beside.judged) > 10
    assert len(beside.judged) > 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _InBrackets:
    """Trials in the brackets that Optuna puts them into, each with the rule ``stopping``."""

    trials: int
    most: int
    eta: int
    brackets: Mapping[int, int]  # by number

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        stop: dict[int, str] = {}
        for bracket in set(self.brackets.values()):
            own = [trial for trial in trials if self.brackets[trial.number] == bracket]
            rule = Stopping(
                trials=len(own) or 1, least=self.eta**bracket, most=self.most, eta=self.eta
            )
            stop |= rule.verdicts(own, 0).stop
        started = Full(trials=self.trials, most=self.most).verdicts(trials, room)
        is_over = started.is_over or (len(trials) == self.trials and not started.grow)
        return Verdicts(start=started.start, stop=stop, is_over=is_over)

    def describe(self) -> Mapping[str, Any]:
        return {}


def test_brackets_are_those_of_optuna_without_their_barriers() -> None:
    """Optuna hashes trials into brackets and stops them; ours fill brackets and compare at the end.

    What can be compared: how many brackets there are, their shares and first rungs, and the
    verdicts within one.
    """
    pruner = HyperbandPruner(min_resource=1, max_resource=MOST, reduction_factor=3)
    beside = Beside(rule=Full(trials=1, most=MOST), pruner=pruner)
    play(beside, lambda number, _: _curve(0, number), 1)  # the pruner makes its brackets
    ours = Hyperband(most=MOST, eta=3).brackets()
    assert [rungs[0].trials for rungs in ours] == pruner._trial_allocation_budgets
    assert [rungs[0].budget for rungs in ours] == [3**bracket for bracket in range(4)]
    assert [rungs[-1].budget for rungs in ours] == [MOST] * 4

    brackets = {
        number: pruner._get_bracket_id(beside._study, _Numbered(number))  # type: ignore[arg-type]
        for number in range(80)
    }
    rule = _InBrackets(trials=80, most=MOST, eta=3, brackets=brackets)
    fresh = HyperbandPruner(min_resource=1, max_resource=MOST, reduction_factor=3)
    judged = _beside(rule, fresh, seed=7, workers=6)
    assert judged.differences == []
    assert sum(one.ours for one in judged.judged) > 20
    assert set(brackets.values()) == {0, 1, 2, 3}


@dataclass(frozen=True, slots=True)
class _Numbered:
    number: int
