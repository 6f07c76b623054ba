"""Successive halving: synchronous, in brackets, and by promotion."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from bftrainer.study.rungs import Asha, Hyperband, Sha, best_first
from bftrainer.study.trials import Start, StudyTrial, TrialStage, TrialValue
from tests.support.rule_replay import Curve, play

W, A, F, S = TrialStage.WAITING, TrialStage.ACTIVE, TrialStage.FAILED, TrialStage.STOPPED


Given = tuple[TrialStage, int, Sequence[float | None]]


def _trials(*given: Given, eta: int = 3) -> list[StudyTrial]:
    """Trials by stage, budget and the values at 1, eta, eta^2, ..."""
    return [
        StudyTrial(
            number=number,
            stage=stage,
            budget=budget,
            values=tuple(
                TrialValue(units=eta**rung, value=value, order=number)
                for rung, value in enumerate(values)
                if value is not None
            ),
        )
        for number, (stage, budget, values) in enumerate(given)
    ]


# ---- sha ---------------------------------------------------------------------------------


def test_sha_starts_everybody_before_it_compares_anybody() -> None:
    rule = Sha(trials=6, most=9)
    waiting = _trials((W, 1, [0.1]), (W, 1, [0.2]))
    assert rule.verdicts(waiting, 3).start == (Start(budget=1),) * 3
    assert rule.verdicts(waiting, 30).start == (Start(budget=1),) * 4
    assert not rule.verdicts(waiting, 0).start


def test_sha_waits_for_the_last_of_a_rung() -> None:
    some: list[Given] = [(W, 1, [0.1]), (W, 1, [0.2]), (F, 1, [None]), (W, 1, [0.3]), (W, 1, [0.4])]
    found = Sha(trials=6, most=9).verdicts(_trials(*some, (A, 1, [None])), 5)
    assert not found.grow
    assert not found.stop
    assert not found.is_over


def test_sha_counts_failed_trials_among_those_that_began() -> None:
    """Of six two go on, although two failed; ties go by number."""
    trials = _trials(
        (F, 1, [None]), (W, 1, [0.3]), (W, 1, [0.2]), (W, 1, [0.2]), (W, 1, [0.2]), (F, 1, [None])
    )
    found = Sha(trials=6, most=9).verdicts(trials, 5)
    assert found.grow == {2: 9, 3: 9}
    assert set(found.stop) == {1, 4}
    assert found.stop[4] == "It is not among the best 2 of 6 at 1."


def test_sha_promotes_no_more_than_have_values() -> None:
    trials = _trials((F, 1, [None]), (W, 1, [math.nan]), (W, 1, [0.2]), *[(F, 1, [None])] * 6)
    found = Sha(trials=9, most=9).verdicts(trials, 5)
    assert found.grow == {2: 3}
    assert set(found.stop) == {1}


def test_sha_takes_one_to_the_end_however_many_failed() -> None:
    """A third of the two that are left is none, but a study is to end with a trained model."""
    failed = [(F, 1, [None])] * 7
    trials = _trials((W, 3, [0.1, 0.5]), (W, 3, [0.2, 0.4]), *failed)
    assert Sha(trials=9, most=9).verdicts(trials, 5).grow == {1: 9}


def test_sha_holds_the_best_until_there_is_room_and_then_goes_on() -> None:
    rule = Sha(trials=6, most=9)
    trials = _trials(*[(W, 1, [value]) for value in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)])
    first = rule.verdicts(trials, 1)
    assert first.grow == {0: 9}
    assert set(first.stop) == {2, 3, 4, 5}
    stopped = [(S, 1, [value]) for value in (0.3, 0.4, 0.5, 0.6)]
    second = rule.verdicts(_trials((A, 9, [0.1]), (W, 1, [0.2]), *stopped), 1)
    assert second.grow == {1: 9}
    assert not second.stop


def test_sha_ends_when_nobody_is_left() -> None:
    found = Sha(trials=3, most=3).verdicts(_trials(*[(F, 1, [None])] * 3), 5)
    assert found.is_over


def test_more_trials_join_the_lowest_rung_without_crowding_it() -> None:
    """Four of eight had gone on; with four more six may, and the two best of the new do."""
    old = [(A, 2, [0.5])] * 4 + [(S, 1, [0.9])] * 4
    new = [(W, 1, [value]) for value in (0.4, 0.3, 0.2, 0.1)]
    found = Sha(trials=12, most=4, eta=2).verdicts(_trials(*old, *new), 5)
    assert found.grow == {11: 2, 10: 2}
    assert set(found.stop) == {8, 9}


# ---- hyperband ---------------------------------------------------------------------------


def test_brackets_are_those_of_the_paper() -> None:
    """Li et al. 2017, table 1: R = 81, eta = 3."""
    brackets = Hyperband(most=81).brackets()
    assert [[(rung.trials, rung.budget) for rung in rungs] for rungs in brackets] == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


def test_more_trials_repeat_the_brackets() -> None:
    began = [rungs[0].trials for rungs in Hyperband(trials=60, most=9).brackets()]
    assert began == [9, 5, 3, 9, 5, 3, 9, 5, 3, 9]


def test_a_bracket_starts_while_another_waits_for_its_last() -> None:
    slow = {3: 20.0}
    played = play(
        Hyperband(most=9),
        lambda number, _: Curve(
            points=tuple((units, float(number)) for units in range(1, 10)),
            unit_s=slow.get(number, 1.0),
        ),
        workers=4,
    )
    assert played.is_over
    assert [sum(t.bracket == one for t in played.trials) for one in range(3)] == [9, 5, 3]
    second = next(trial for trial in played.trials if trial.bracket == 1)
    assert second.values[0].order < 20.0


# ---- asha --------------------------------------------------------------------------------


def test_asha_promotes_from_the_top_whenever_there_is_room() -> None:
    rule = Asha(trials=9, most=9)
    two = _trials((W, 1, [0.2]), (W, 1, [0.3]))
    assert not rule.verdicts(two, 1).grow
    assert rule.verdicts(two, 1).start == (Start(budget=1),)
    three = _trials((W, 1, [0.2]), (W, 1, [0.3]), (W, 1, [0.1]))
    assert rule.verdicts(three, 1).grow == {2: 3}
    assert not rule.verdicts(three, 1).start
    again = _trials((W, 1, [0.2]), (W, 1, [0.3]), (A, 3, [0.1]))
    assert not rule.verdicts(again, 1).grow


def test_asha_serves_the_highest_rung_first() -> None:
    up = [(W, 3, [0.1, 0.3]), (W, 3, [0.1, 0.2]), (W, 3, [0.1, 0.4])]
    low = [(W, 1, [value]) for value in (0.05, 0.2, 0.3, 0.4, 0.5, 0.6)]
    rule = Asha(trials=12, most=9)
    trials = _trials(*up, *low)
    assert rule.verdicts(trials, 1).grow == {1: 9}
    assert list(rule.verdicts(trials, 2).grow) == [1, 3]
    assert len(rule.verdicts(trials, 5).start) == 3


def test_asha_never_promotes_what_diverged() -> None:
    trials = _trials(*[(W, 1, [math.nan])] * 2, (W, 1, [math.inf]), *[(F, 1, [None])] * 3)
    found = Asha(trials=6, most=9).verdicts(trials, 5)
    assert not found.grow
    assert set(found.stop) == {0, 1, 2}
    assert found.is_over


def test_asha_stops_who_waits_once_nobody_below_the_top_can_change_that() -> None:
    done = [(A, 9, [0.1, 0.1]), (W, 3, [0.2, 0.2]), (W, 3, [0.2, 0.3])]
    low = [(W, 1, [value]) for value in (0.5, 0.6, 0.7, 0.8, 0.9)]
    rule = Asha(trials=9, most=9)
    busy = rule.verdicts(_trials(*done, *low, (A, 1, [None])), 5)
    assert not busy.stop
    assert not busy.is_over
    over = rule.verdicts(_trials(*done, *low, (W, 1, [0.9])), 5)
    assert set(over.stop) == set(range(1, 9))
    assert over.is_over


def test_asha_counts_failed_trials_among_those_at_their_rung() -> None:
    trials = _trials((W, 1, [0.2]), (F, 1, [None]), (F, 1, [None]))
    assert Asha(trials=9, most=9).verdicts(trials, 1).grow == {0: 3}


def test_whoever_fails_on_the_way_to_a_rung_is_the_last_there() -> None:
    trials = [
        StudyTrial(number=0, stage=F, budget=3, values=(TrialValue(units=2, value=0.1, order=0),)),
        StudyTrial(number=1, stage=F, budget=3, values=(TrialValue(units=3, value=0.2, order=0),)),
        StudyTrial(number=2, stage=A, budget=3, values=(TrialValue(units=2, value=0.3, order=0),)),
        StudyTrial(number=3, stage=W, budget=3, values=(TrialValue(units=2, value=0.4, order=0),)),
        StudyTrial(number=4, stage=W, budget=3),
    ]
    assert best_first(trials, 3) == [(0.2, 1), (0.4, 3), (math.inf, 0)]
    assert best_first(trials, 2) == [(0.1, 0), (0.3, 2), (0.4, 3)]


@pytest.mark.parametrize("rule", [Asha(trials=27, most=27), Sha(trials=27, most=27)])
def test_without_noise_the_best_wins_and_little_is_trained(rule: Asha | Sha) -> None:
    order = [(7 * number) % 27 for number in range(27)]
    played = play(
        rule,
        lambda number, _: Curve(
            points=tuple((units, order[number] + 1 / units) for units in range(1, 28))
        ),
        workers=4,
    )
    assert played.best == (0 + 1 / 27, order.index(0))
    assert played.units < 0.3 * 27 * 27
