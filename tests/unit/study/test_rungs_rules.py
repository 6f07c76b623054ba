"""Settings of rules, population based training, and playing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bftrainer.study.rungs import RULES, Full, Pbt, Stopping, keys_of, rule_of
from bftrainer.study.trials import Start, StudyTrial, TrialStage, TrialValue, Verdicts
from tests.support.rule_replay import Curve, Parent, play

WHOLE: Mapping[str, Mapping[str, int]] = {
    "asha": {"trials": 9, "least": 1, "most": 9, "eta": 3},
    "sha": {"trials": 9, "least": 2, "most": 9, "eta": 2},
    "hyperband": {"trials": 0, "least": 1, "most": 9, "eta": 3},
    "stopping": {"trials": 9, "least": 1, "most": 9, "eta": 3},
    "median": {"trials": 9, "most": 9, "startup_trials": 5, "warmup": 0, "interval": 1},
    "none": {"trials": 9, "most": 9},
    "pbt": {"population": 9, "interval": 3, "most": 9, "minimum": 4, "seed": 1},
}


# ---- settings ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_a_rule_says_what_it_was_made_from(name: str) -> None:
    settings = {"name": name, **WHOLE[name]}
    assert rule_of(settings).describe() == settings
    assert rule_of(settings).most == 9
    assert set(keys_of(name)) == set(WHOLE[name])


def test_what_has_a_default_may_be_left_out() -> None:
    whole = {"name": "asha", "trials": 9, "least": 1, "most": 9, "eta": 3}
    assert rule_of({"name": "asha", "trials": 9, "most": 9}).describe() == whole


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trials": 9}, "name is missing; one of asha, hyperband, "),
        ({"name": "ashaa"}, "name is 'ashaa'; did you mean asha?"),
        ({"name": 7}, "name is 7; one of asha, "),
        ({"name": "asha", "most": 9}, "trials is missing; asha needs it"),
        ({"name": "none", "trials": 9, "moist": 9}, "moist is not a setting of none; did you mean"),
        ({"name": "asha", "trials": 0, "most": 9}, "trials is 0; at least 1 is required"),
        ({"name": "asha", "trials": 9, "most": 1, "least": 3}, "most is 1; at least 3 is"),
        ({"name": "sha", "trials": 9, "most": 9, "eta": 1}, "eta is 1; at least 2 is required"),
        ({"name": "sha", "trials": True, "most": 9}, "trials is True; a whole number is"),
        ({"name": "sha", "trials": 2.5, "most": 9}, "trials is 2.5; a whole number is"),
        ({"name": "pbt", "population": 4, "interval": 5, "most": 4}, "most is 4; at least 5 is"),
    ],
)
def test_a_wrong_setting_is_named(settings: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("?", r"\?")) as refused:
        rule_of(settings)
    assert str(refused.value).startswith(words)


# ---- stopping ----------------------------------------------------------------------------


def test_who_falls_behind_is_told_his_place() -> None:
    trials = [
        StudyTrial(
            number=number,
            stage=TrialStage.ACTIVE,
            budget=9,
            values=(TrialValue(units=1, value=value, order=number),),
        )
        for number, value in enumerate((0.5, 0.3, 0.4))
    ]
    found = Stopping(trials=3, most=9).verdicts(trials, 0)
    assert found.stop == {2: "Its value was number 2 of 3 at 1."}


def test_a_report_beyond_two_rungs_counts_at_both() -> None:
    early = StudyTrial(
        number=0,
        stage=TrialStage.ACTIVE,
        budget=9,
        values=(TrialValue(units=4, value=0.3, order=0),),
    )
    late = replace(early, number=1, values=(TrialValue(units=3, value=0.4, order=1),))
    lone = replace(early, number=2, values=(TrialValue(units=1, value=0.2, order=2),))
    assert set(Stopping(trials=3, most=9).verdicts([early, late, lone], 0).stop) == {1}


def test_who_waits_is_given_the_full_budget_before_the_study_is_over() -> None:
    """As when the rule was another one before."""
    trials = [StudyTrial(number=0, stage=TrialStage.WAITING, budget=3)]
    assert not Full(trials=1, most=9).verdicts(trials, 0).is_over
    assert Full(trials=1, most=9).verdicts(trials, 1).grow == {0: 9}


# ---- pbt ---------------------------------------------------------------------------------

PBT = Pbt(population=8, interval=2, most=6)


def _population(stage: TrialStage = TrialStage.WAITING, budget: int = 2) -> list[StudyTrial]:
    return [
        StudyTrial(
            number=number,
            stage=stage,
            budget=budget,
            values=(TrialValue(units=2, value=float(number), order=0),),
        )
        for number in range(8)
    ]


def test_the_worst_quarter_takes_over_from_the_best() -> None:
    found = PBT.verdicts(_population(), 20)
    assert set(found.stop) == {6, 7}
    assert found.grow == dict.fromkeys(range(6), 4)
    assert len(found.start) == 2
    assert {start.parent for start in found.start} <= {0, 1}
    assert {start.budget for start in found.start} == {4}


def test_who_was_stopped_is_replaced_later_if_there_was_no_room() -> None:
    at_first = PBT.verdicts(_population(), 0)
    assert len(at_first.stop) == 2
    assert not at_first.start
    trials = [
        replace(trial, stage=TrialStage.STOPPED) if trial.number in at_first.stop else trial
        for trial in _population()
    ]
    assert len(PBT.verdicts(trials, 1).start) == 1
    assert len(PBT.verdicts(trials, 8).start) == 2


def test_an_heir_that_exists_already_is_not_made_twice() -> None:
    """As after a kill between its start and the end of the one it replaces."""
    heirs = [
        StudyTrial(number=number, stage=TrialStage.ACTIVE, budget=4, parent=0) for number in (8, 9)
    ]
    found = PBT.verdicts([*_population(), *heirs], 20)
    assert set(found.stop) == {6, 7}
    assert not found.start


def test_nobody_is_replaced_before_enough_have_a_value() -> None:
    rule = replace(PBT, minimum=7)
    some = [
        replace(trial, stage=TrialStage.ACTIVE, values=()) if trial.number in (0, 1) else trial
        for trial in _population()
    ]
    assert not rule.verdicts(some, 20).stop
    assert PBT.verdicts(some, 20).stop


def test_who_failed_is_not_replaced() -> None:
    trials = [
        replace(trial, stage=TrialStage.FAILED, values=()) if trial.number < 3 else trial
        for trial in _population()
    ]
    found = PBT.verdicts(trials, 20)
    assert len(found.stop) == len(found.start) == 1


def test_nobody_inherits_from_who_diverged() -> None:
    trials = [
        replace(trial, values=(TrialValue(units=2, value=math.nan, order=0),))
        for trial in _population()
    ]
    found = PBT.verdicts(trials, 20)
    assert not found.stop
    assert not found.start


def test_an_heir_of_somebody_who_trains_ends_with_him() -> None:
    ahead = [
        replace(trial, stage=TrialStage.ACTIVE, budget=4) if trial.number < 6 else trial
        for trial in _population()
    ]
    assert {start.budget for start in PBT.verdicts(ahead, 20).start} == {4}


def test_a_population_reaches_the_full_budget() -> None:
    seen: list[Parent] = []

    def draw(number: int, parent: Parent | None) -> Curve:
        seen.extend([parent] if parent else [])
        return Curve(points=tuple((units, float(number)) for units in range(1, 7)))

    played = play(PBT, draw, 3)
    assert played.is_over
    assert len(played.complete) == 8
    assert len(seen) == len(played.trials) - 8 > 0
    assert all(parent.units >= 2 for parent in seen)


# ---- playing -----------------------------------------------------------------------------


def test_workers_are_shared_and_time_passes() -> None:
    played = play(
        Full(trials=3, most=4),
        lambda number, _: Curve(points=((4, float(number)),), unit_s=2.0),
        workers=2,
    )
    assert (played.took_s, played.units, played.best) == (16.0, 12.0, (0.0, 0))
    assert [trial.values[0].order for trial in played.trials] == [8.0, 8.0, 16.0]


def test_who_fails_trains_up_to_there() -> None:
    curve = Curve(points=((2, 0.5), (4, 0.4)), fails_at=3)
    played = play(Full(trials=1, most=4), lambda *_: curve, workers=1)
    assert played.trials[0].stage is TrialStage.FAILED
    assert [value.units for value in played.trials[0].values] == [2]
    assert (played.units, played.best, played.is_over) == (3.0, None, True)


class _Fixed:
    """Gives one answer after another, whatever it is asked."""

    most = 4

    def __init__(self, answers: Sequence[Verdicts]) -> None:
        self._answers = list(answers)

    def verdicts(self, _trials: Sequence[StudyTrial], _room: int) -> Verdicts:
        return self._answers.pop(0)

    def describe(self) -> Mapping[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Verdicts(start=(Start(budget=1),) * 2), "more than 1"),
        (Verdicts(grow={0: 4}), "trial 0 is active and cannot grow"),
    ],
)
def test_a_rule_that_grants_too_much_is_refused(wrong: Verdicts, words: str) -> None:
    rule = _Fixed([Verdicts(start=(Start(budget=1),)), wrong])
    with pytest.raises(ValueError, match=words):
        play(rule, lambda *_: Curve(points=((1, 0.5),)), workers=2)


def test_who_is_over_is_not_stopped() -> None:
    rule = _Fixed([Verdicts(start=(Start(budget=4),)), Verdicts(), Verdicts(stop={0: "Why."})])
    with pytest.raises(ValueError, match="trial 0 is complete and cannot be stopped"):
        play(rule, lambda *_: Curve(points=((4, 0.5),)), workers=2)
