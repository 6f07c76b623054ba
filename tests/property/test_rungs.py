"""What holds for every rule, whatever the trials report, fail at or take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.study.rungs import ladder, rule_of
from bftrainer.study.trials import StudyRule, StudyTrial, TrialStage, TrialValue, Verdicts
from tests.support.examples import examples
from tests.support.rule_replay import Curve, Played, play

MOST = 12
VALUES = st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5, 0.8, math.inf, math.nan])
LADDERS = st.fixed_dictionaries(
    {
        "trials": st.integers(1, 14),
        "least": st.integers(1, 4),
        "most": st.just(MOST),
        "eta": st.integers(2, 4),
    }
)
FULL = st.fixed_dictionaries({"trials": st.integers(1, 14), "most": st.just(MOST)})
POPULATION = st.fixed_dictionaries(
    {
        "population": st.integers(1, 12),
        "interval": st.integers(1, 5),
        "most": st.just(MOST),
        "seed": st.integers(0, 3),
    }
)
CURVES = st.lists(
    st.builds(
        lambda values, every, unit_s, fails_at: Curve(
            points=tuple((units, values[units - 1]) for units in range(every, MOST + 1, every)),
            unit_s=unit_s,
            fails_at=fails_at,
        ),
        st.lists(VALUES, min_size=MOST, max_size=MOST),
        st.sampled_from([1, 1, 2, 5]),
        st.sampled_from([1.0, 1.0, 0.7, 2.5]),
        st.sampled_from([None, None, None, None, 0, 1, 3, 7]),
    ),
    min_size=1,
    max_size=8,
)


def _named(name: str, given: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[StudyRule]:
    return given.map(lambda one: rule_of({"name": name, **one}))


HALVING = ("asha", "sha", "hyperband", "stopping")
RULES = st.one_of(
    *(_named(name, LADDERS) for name in HALVING),
    *(_named(name, FULL) for name in ("none", "median")),
    _named("pbt", POPULATION),
)


@dataclass(slots=True)
class _Checked:
    """A rule whose every answer is checked; ``seen`` keeps what it was asked."""

    rule: StudyRule
    seen: list[tuple[tuple[StudyTrial, ...], int, Verdicts]]

    @property
    def most(self) -> int:
        return self.rule.most

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        found = self.rule.verdicts(trials, room)
        again = rule_of(self.rule.describe()).verdicts(trials, room)
        assert again == found  # nothing is kept between two calls
        more, none = (self.rule.verdicts(trials, one) for one in (room + 3, 0))
        assert set(more.stop) <= set(found.stop) <= set(none.stop)
        assert set(found.grow) <= set(more.grow)
        assert not none.grow
        assert not none.start
        assert not set(found.grow) & set(found.stop)
        if found.is_over:
            left = {trial.number for trial in trials if not trial.stage.is_over} - set(found.stop)
            assert not found.grow
            assert not found.start
            assert all(trials[number].budget == self.most for number in left)
        self.seen.append((tuple(trials), room, found))
        return found

    def describe(self) -> Mapping[str, Any]:
        return self.rule.describe()


def _play(rule: StudyRule, curves: Sequence[Curve], workers: int) -> tuple[Played, _Checked]:
    checked = _Checked(rule, [])
    return play(checked, lambda number, _: curves[number % len(curves)], workers), checked


@given(rule=RULES, curves=CURVES, workers=st.integers(1, 6))
@settings(deadline=None, max_examples=examples(100))
def test_every_study_ends_and_so_do_its_trials(
    rule: StudyRule, curves: list[Curve], workers: int
) -> None:
    played, _ = _play(rule, curves, workers)
    given = rule.describe()
    wanted = given.get("trials") or given.get("population") or 0
    assert played.is_over
    assert all(trial.stage.is_over for trial in played.trials)
    assert sum(trial.parent is None for trial in played.trials) >= wanted


def _standing(trials: Sequence[StudyTrial], budget: int) -> list[int]:
    """Who has trained to a budget and reported by then, best first; written anew."""
    found = []
    for trial in trials:
        reached = trial.budget > budget or (
            trial.budget == budget
            and (
                trial.stage in (TrialStage.WAITING, TrialStage.COMPLETE, TrialStage.STOPPED)
                or any(value.units >= budget for value in trial.values)
            )
        )
        value = trial.at(budget)
        if trial.stage is TrialStage.FAILED and trial.budget == budget and not reached:
            found.append((math.inf, trial.number))
        elif reached and value is not None:
            rank = math.inf if math.isnan(value.value) else value.value
            found.append((rank, trial.number))
    return [number for _, number in sorted(found)]


@given(rule=_named("asha", LADDERS), curves=CURVES, workers=st.integers(1, 6))
@settings(deadline=None, max_examples=examples(100))
def test_asha_promotes_once_each_from_the_top(
    rule: StudyRule, curves: list[Curve], workers: int
) -> None:
    _, checked = _play(rule, curves, workers)
    given = rule.describe()
    rungs = ladder(given["trials"], given["least"], given["most"], given["eta"])
    after = {low.budget: high.budget for low, high in itertools.pairwise(rungs)}
    promoted: set[tuple[int, int]] = set()
    for trials, room, found in checked.seen:
        for number, budget in found.grow.items():
            came_from = trials[number].budget
            standing = _standing(trials, came_from)
            assert number in standing[: len(standing) // given["eta"]]
            assert budget == after[came_from]
            assert (number, budget) not in promoted
            promoted.add((number, budget))
        if found.start and len(found.grow) + len(found.start) < room:
            assert len(trials) + len(found.start) == given["trials"]
        if found.is_over:  # nobody of the top was left behind
            for low, high in after.items():
                standing = _standing(trials, low)
                for number in standing[: len(standing) // given["eta"]]:
                    one = trials[number]
                    diverged = (value := one.at(low)) is not None and not value.value < math.inf
                    assert one.budget >= high or one.stage is not TrialStage.WAITING or diverged


@given(
    rule=st.one_of(_named("sha", LADDERS), _named("hyperband", LADDERS)),
    curves=CURVES,
    workers=st.integers(1, 6),
)
@settings(deadline=None, max_examples=examples(100))
def test_halving_keeps_exactly_the_top(rule: StudyRule, curves: list[Curve], workers: int) -> None:
    played, _ = _play(rule, curves, workers)
    for bracket in {trial.bracket for trial in played.trials}:
        own = [trial for trial in played.trials if trial.bracket == bracket]
        budgets = sorted({trial.budget for trial in own})
        for low in budgets:
            began = [trial for trial in own if trial.budget >= low]
            beyond = {trial.number for trial in own if trial.budget > low}
            if low == MOST:
                continue
            able = {t.number for t in began if t.budget > low or t.stage is TrialStage.STOPPED}
            numbers = [
                number
                for number in _standing(began, low)
                if number in able and played.trials[number].at(low).value < math.inf  # type: ignore[union-attr]
            ]
            places = max(len(began) // rule.describe()["eta"], 1)
            assert beyond == set(numbers[:places])


@given(
    rule=_named("stopping", LADDERS),
    curves=CURVES,
    workers=st.integers(1, 6),
    data=st.data(),
)
@settings(deadline=None, max_examples=examples(100))
def test_stopping_does_not_depend_on_when_it_is_asked(
    rule: StudyRule, curves: list[Curve], workers: int, data: st.DataObject
) -> None:
    """Trials that nobody stops: whoever looks once sees what a look after each report sees."""
    everybody = {"name": "none", "trials": rule.describe()["trials"], "most": MOST}
    played, _ = _play(rule_of(everybody), curves, workers)
    values = sorted(
        (value.order, trial.number, value.units, value)
        for trial in played.trials
        for value in trial.values
    )
    assert _stopped(rule, played, [len(values)], values) == _stopped(
        rule, played, range(1, len(values) + 1), values
    )
    cuts = data.draw(st.lists(st.integers(0, len(values)), max_size=4))
    assert _stopped(rule, played, [*sorted(cuts), len(values)], values) == _stopped(
        rule, played, [len(values)], values
    )


def _stopped(
    rule: StudyRule,
    played: Played,
    cuts: Sequence[int],
    values: Sequence[tuple[float, int, int, TrialValue]],
) -> set[int]:
    """Show the first reports up to each cut; return whoever is ever to be stopped."""
    stopped: set[int] = set()
    for cut in cuts:
        trials = []
        for trial in played.trials:
            own = tuple(value for *_, number, _, value in values[:cut] if number == trial.number)
            stage = TrialStage.STOPPED if trial.number in stopped else TrialStage.ACTIVE
            trials.append(replace(trial, values=own, stage=stage))
        stopped |= set(rule.verdicts(trials, 0).stop)
    return stopped


@given(rule=st.one_of(_named("sha", LADDERS), _named("hyperband", LADDERS)), curves=CURVES)
@settings(deadline=None, max_examples=examples(60))
def test_halving_does_not_depend_on_the_number_of_workers(
    rule: StudyRule, curves: list[Curve]
) -> None:
    """Room and order change when somebody goes on, never who."""
    one = {t.number: t.budget for t in _play(rule, curves, 1)[0].trials if t.bracket == 0}
    for workers in (2, 5, 50):
        played, _ = _play(rule, curves, workers)
        assert {t.number: t.budget for t in played.trials if t.bracket == 0} == one
