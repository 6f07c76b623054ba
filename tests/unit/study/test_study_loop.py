"""Turns of a study's loop beside a daemon that a test plays: limits, ends, pauses, clean disks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.study import Report, StudyView, TrialView
from bftrainer.model.trainer import TrainerChange
from bftrainer.study.directory import (
    Wishes,
    change_wishes,
    is_running,
    only_loop,
    write_directory,
)
from bftrainer.study.rungs import best_first, rule_of
from bftrainer.study.trial_table import know
from bftrainer.study.trials import Start, StudyTrial, TrialStage, TrialValue
from bftrainer.study.verbs import control, lookup
from tests.unit.study.test_study_parts import DOCUMENT, PARAMETERS, stored, study, view

CHECKPOINTS = ("step-000000000001-generation-00000001.bft", "step-000000000002-g.bft")
ALL = {"name": "none", "most": 9}


def at(epoch: int, value: float) -> tuple[Report, ...]:
    """Return what a trial has reported."""
    return (Report(value=value, epoch=epoch, reported_s=1.0),)


class Scene:
    """A study whose trials the daemon has; each has two checkpoints."""

    def __init__(self, path: Path, views: Sequence[TrialView], **document: Any) -> None:
        pytest.importorskip("optuna")
        self.study = study(path / "own.study", DOCUMENT.model_copy(update=document))
        write_directory(self.study)
        self.said: list[str] = []
        self.views = {one.trainer_id: one for one in views}
        self.lingers = 0  # looks for which members of a cancelled trial are still there
        self.client = mock.Mock()
        self.client.study.side_effect = self._looked
        self.client.change.side_effect = self._changed
        self.client.cancel.side_effect = self._cancelled
        self.start()
        for one in views:
            self.storage.create(Start(budget=1), PARAMETERS)
            directory = self.study.of_trial(one.tag.number)
            directory.mkdir(parents=True)
            for name in CHECKPOINTS:
                (directory / name).touch()

    def start(self) -> None:
        """Begin a process."""
        from bftrainer.study.loop import StudyLoop
        from bftrainer.study.storage import StudyStorage

        self.storage = StudyStorage(self.study.storage, "own", self.study.document)
        self.loop = StudyLoop(self.study, self.client, self.storage, self.said.append)

    def _looked(self, study_id: str, *, seen: object, **_: Any) -> StudyView:
        """Answer with all trials to who has seen nothing, else with no news."""
        trials = tuple(self.views.values()) if seen is None else ()
        if self.lingers:
            self.lingers -= 1
        else:
            for name, one in self.views.items():
                if one.state in ("cancelled", "finished"):
                    self.views[name] = replace(one, nodes=0)
        return StudyView(
            study=study_id, change=0, incarnation=1, pool_nodes=9, trials=trials, is_whole=not seen
        )

    def _changed(self, trainer_id: str, change: TrainerChange) -> None:
        one = self.views[trainer_id]
        if change.is_held is not None:
            one = replace(one, is_held=change.is_held)
        if change.budget is not None:
            one = replace(one, budget=change.budget, waits_at_rung=False, state="queued")
        self.views[trainer_id] = one

    def _cancelled(self, trainer_id: str, *, now: bool) -> None:
        assert now
        self.views[trainer_id] = replace(self.views[trainer_id], state="cancelled")

    def turns(self) -> None:
        """Take a turn for which all is news, and which is not the last."""
        self.loop._view = None
        assert not self.loop.turn()

    def wish(self, change: Any) -> None:
        """Say what the user wants."""
        change_wishes(self.study.path, change)

    def kept(self, number: int) -> int:
        """Return how many checkpoints a trial has."""
        return len(list(self.study.of_trial(number).glob("*.bft")))

    def held(self) -> list[str]:
        """Return the trainers that are held."""
        return [name for name, one in self.views.items() if one.is_held]


def waiting(number: int, value: float, **more: Any) -> TrialView:
    """Return a trial at its rung of 1."""
    given: dict[str, Any] = {"state": "parked", "waits_at_rung": True, "nodes": 0, **more}
    return view(number, budget=1, reports=at(1, value), **given)


# ---- limits ------------------------------------------------------------------------------


def test_a_budget_that_the_policy_refuses_is_granted_later(tmp_path: Path) -> None:
    one = Scene(tmp_path, [waiting(0, 0.1), waiting(1, 0.2)], rule={**ALL, "trials": 2})
    refused = UsageError(
        "BFT-1030", "u has 9 unfinished.", "Wait.", exit_code=ExitCode.REFUSED_BY_POLICY
    )
    one.client.change.side_effect = refused
    for tries in (1, 2, 3):  # nothing is new after the first
        assert not one.loop.turn()
        assert one.client.change.call_count == tries, "the others would be refused, too"
    assert [line for line in one.said if "9 unfinished" in line] == [
        "2 trials wait to go on: u has 9 unfinished."
    ]
    one.client.change.side_effect = one._changed
    assert not one.loop.turn()
    assert {each.budget for each in one.views.values()} == {9}
    assert not one.loop._actor.is_limited
    one.client.change.side_effect = BftError("BFT-1005", "It is another one's.", "Ask.")
    with pytest.raises(BftError, match="BFT-1005"):
        one.loop._actor._act_on(one.loop._trials_of(one.loop._look())[0], one.client.change)


# ---- the end -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["turn", "obey"])
def test_a_stopped_study_keeps_the_best_checkpoint_only(tmp_path: Path, way: str) -> None:
    trains = view(2, nodes=2, reports=at(1, 0.9))
    one = Scene(tmp_path, [waiting(0, 0.5), waiting(1, 0.4), trains])
    one.lingers = 3
    one.wish(partial(replace, is_stopped=True))
    assert getattr(one.loop, way)() in (True, None)
    assert [one.kept(number) > 0 for number in range(3)] == [False, True, False]
    assert not one.lingers, "nobody wrote there any more"


def test_who_ends_last_leaves_no_checkpoint(tmp_path: Path) -> None:
    ends = [view(n, state="finished", budget=9, nodes=n, reports=at(9, 0.1 + n)) for n in (0, 1)]
    one = Scene(tmp_path, ends, rule={**ALL, "trials": 2})
    one.lingers = 2
    assert one.loop.turn()
    assert [one.kept(number) for number in range(2)] == [2, 0]


def test_workers_that_never_end_do_not_hold_a_study_up(tmp_path: Path) -> None:
    one = Scene(tmp_path, [view(0, reports=at(1, 0.5)), view(1, reports=at(1, 0.9))])
    one.lingers = 10**6
    one.wish(partial(replace, is_stopped=True))
    with mock.patch("bftrainer.study.loop.LAST_S", 0.2):
        assert one.loop.turn()
    assert one.kept(1) == 2


def test_the_directory_of_who_waits_is_listed_once_for_each_rung(tmp_path: Path) -> None:
    full = {"rule": {**ALL, "trials": 3}, "parallel": 1}
    one = Scene(tmp_path, [waiting(0, 0.1), waiting(1, 0.2), view(2)], **full)

    with mock.patch("bftrainer.study.disk._checkpoints", return_value=[]) as lists:
        for _ in range(3):
            one.turns()
        assert [call.args[0].name for call in lists.call_args_list] == ["0000", "0001"]
        one.views["t1-0"] = replace(one.views["t1-0"], budget=3)
        one.turns()
        assert lists.call_count == 3


def test_when_the_best_fails_the_next_one_still_has_its_checkpoint(tmp_path: Path) -> None:
    ended = view(0, state="cancelled", nodes=0, reports=at(1, 0.5))
    one = Scene(tmp_path, [ended, view(1, reports=at(3, 0.1))], rule={**ALL, "trials": 2}, retry=0)
    one.turns()
    one.views["t1-0"] = replace(one.views["t1-0"], state="failed", nodes=0)
    one.loop._view = None
    assert one.loop.turn()
    assert [one.kept(number) for number in range(2)] == [2, 0]
    assert one.loop.summarize(is_over=True).best == 0


# ---- failures ----------------------------------------------------------------------------


def failed(number: int) -> TrialView:
    """Return a trial that fails without a report."""
    return view(number, state="failed", nodes=0, reason="It broke.")


def test_where_the_script_fails_the_study_says_how_it_ends(tmp_path: Path) -> None:
    one = Scene(tmp_path, [*(failed(n) for n in range(5)), view(5)], retry=0)
    with pytest.raises(BftError, match=r"BFT-1629: 5 trials failed, .*It broke") as caught:
        one.loop.turn()
    assert f"'bftrainer study stop {one.study.path}'" in caught.value.next_step
    assert caught.value.next_step.endswith("begin another study.")
    one.client.cancel.assert_not_called()
    assert json.loads(one.study.summary.read_text())["state"] == "failed"


def mixed(count: int) -> list[TrialView]:
    """Return trials of which every second one fails and the others report."""
    return [failed(n) if n % 2 else view(n, reports=at(1, 0.5)) for n in range(2 * count)]


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "pbt", "population": 20, "interval": 1, "most": 3},
        {"name": "hyperband", "trials": 0, "least": 1, "most": 9, "eta": 3},  # 17 in one pass
    ],
    ids=["pbt", "hyperband"],
)
def test_as_many_failures_as_trials_are_the_end(tmp_path: Path, rule: dict[str, Any]) -> None:
    one = Scene(tmp_path / "few", mixed(6), rule=rule, failed="ignore", retry=0)
    assert not one.loop.turn()
    one = Scene(tmp_path / "many", mixed(20), rule=rule, failed="ignore", retry=0)
    with pytest.raises(BftError, match="BFT-1629: 20 trials failed") as caught:
        one.loop.turn()
    assert f"bftrainer study stop {one.study.path}" in caught.value.next_step
    one.client.cancel.assert_not_called()


def test_a_rule_says_how_many_trials_it_wants() -> None:
    wanted = {
        name: rule_of({"name": name, "most": 9, **more}).wanted
        for name, more in {
            "asha": {"trials": 7}, "sha": {"trials": 7}, "stopping": {"trials": 7},
            "median": {"trials": 7}, "none": {"trials": 7}, "hyperband": {},
            "pbt": {"population": 6, "interval": 1},
        }.items()
    }  # fmt: skip
    assert wanted == {**dict.fromkeys(wanted, 7), "hyperband": 9 + 5 + 3, "pbt": 6}


# ---- pauses ------------------------------------------------------------------------------


def test_what_the_user_held_before_a_pause_stays_held(tmp_path: Path) -> None:
    one = Scene(tmp_path, [view(0), view(1, is_held=True)])
    one.wish(partial(replace, is_paused=True))
    assert not one.loop.turn()
    one.start()
    one.loop.obey()
    assert one.held() == ["t0-0", "t1-0"]
    one.wish(partial(replace, is_paused=False))
    one.loop.obey()
    assert one.held() == ["t1-0"]


def test_a_pause_of_an_earlier_release_ends_for_all(tmp_path: Path) -> None:
    one = Scene(tmp_path, [view(0, is_held=True)])
    one.storage.set_note("paused", value=True)
    one.loop.obey()
    assert not one.held()


def test_each_process_says_once_that_the_study_is_paused(tmp_path: Path) -> None:
    one = Scene(tmp_path, [view(0)])
    one.wish(partial(replace, is_paused=True))
    for _ in range(2):
        one.said.clear()
        one.start()
        for _ in range(3):
            one.turns()
        (line,) = one.said
        assert line.endswith(f"bftrainer study resume {one.study.path}")


def test_a_verb_that_holds_the_lock_for_a_moment_is_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, loop = study(tmp_path / "own.study"), mock.Mock()
    write_directory(made)
    other = contextlib.ExitStack()
    other.enter_context(only_loop(made.path))

    def seen(path: Path) -> bool:
        found = is_running(path)
        other.close()
        return found

    @contextlib.contextmanager
    def opened(one: Any, *_: Any) -> Any:
        with only_loop(one.path):
            yield loop

    monkeypatch.setattr(lookup, "is_running", seen)
    monkeypatch.setattr(control, "open_loop", opened)
    monkeypatch.setattr(control, "connect", mock.Mock())
    control.wish(made, None, partial(replace, is_paused=True), as_json=False)
    loop.obey.assert_called_once_with()
    monkeypatch.setattr(lookup, "PATIENCE_S", 0.2)
    with only_loop(made.path):
        control.wish(made, None, lambda _: Wishes(), as_json=False)
    assert capsys.readouterr().out == "its loop obeys within a second\n"


# ---- what is known -----------------------------------------------------------------------


def test_who_was_forgotten_is_as_far_as_it_reported() -> None:
    trials = [
        stored(0),
        stored(1, values={1: 0.5, 3: 0.4}, granted=3),
        stored(2, values={1: 0.5, 9: 0.1}, granted=3),
    ]  # fmt: skip
    found = know(trials, [], unit="epochs", retry=1, most=9)
    assert [one.stage for one in found] == [
        TrialStage.ACTIVE,
        TrialStage.ACTIVE,
        TrialStage.COMPLETE,
    ]
    assert [one.budget for one in found] == [1, 3, 3]


def test_a_program_s_last_step_counts_at_the_rung_though_it_is_beyond() -> None:
    for name in ("asha", "sha"):
        rule = rule_of({"name": name, "trials": 4, "least": 100, "most": 400, "eta": 2})
        first = [
            StudyTrial(
                number=number,
                stage=TrialStage.WAITING,
                budget=100,
                values=(TrialValue(units=120, value=float(number), order=0.0),),
            )
            for number in range(4)
        ]
        assert set(rule.verdicts(first, 9).grow) == {0, 1}, name
        up = [
            replace(one, stage=TrialStage.ACTIVE, budget=200, stood={100: 120})
            if one.number < 2
            else one
            for one in first
        ]
        again = rule.verdicts(up, 9)
        assert not again.grow, f"{name}: those that have gone on are counted there"


def test_the_value_at_an_earlier_rung_is_the_one_it_was_compared_by() -> None:
    def last(*units: int, stood: int | None = None) -> list[tuple[float, int]]:
        values = tuple(TrialValue(units=one, value=one / 10, order=0.0) for one in units)
        left = {} if stood is None else {200: stood}
        one = StudyTrial(number=0, stage=TrialStage.ACTIVE, budget=400, values=values, stood=left)
        return best_first([one], 200)

    assert last(120, 220, stood=220) == [(22.0, 0)]
    assert last(120, 220) == [(12.0, 0)], "it reports now and then"
    assert last(190, 210, 300, stood=190) == [(19.0, 0)]
    assert not last(220), "it has reported nothing there"


def test_a_grant_is_noted_before_the_daemon_hears_of_it(tmp_path: Path) -> None:
    rule = {"name": "sha", "trials": 2, "least": 1, "most": 2, "eta": 2}
    one = Scene(tmp_path, [waiting(0, 0.1), waiting(1, 0.5)], rule=rule)
    one.client.change.side_effect = OSError("killed here")
    with pytest.raises(OSError, match="killed here"):
        one.loop.turn()
    noted = one.storage.trials()[0]
    assert (noted.granted, dict(noted.stood)) == (2, {1: 1})
    (known, _) = know(one.storage.trials(), [], unit="epochs", retry=1)
    assert known.budget == 2, "also if the daemon forgets it"
