"""A trial that is to take another one's state waits until that has one to give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bftrainer.model.study import Report
from bftrainer.study.acting import Actor
from bftrainer.study.known import KnownTrial
from bftrainer.study.stored import NewTrial
from bftrainer.study.trials import Start
from tests.unit.test_study_parts import DOCUMENT, PARAMETERS, known, stored, study, view
from trainers.command.directory import LINK, take

HEIR = Start(budget=6, parent=0)
AT_RUNG = (Report(value=0.5, epoch=3, reported_s=1.0),)


class Population:
    """A study of runtime ``command`` with one trial, which has trained its 3 epochs."""

    def __init__(self, path: Path) -> None:
        pytest.importorskip("optuna")
        from bftrainer.study.storage import StudyStorage

        made = study(path / "own.study")
        self.study = replace(made, base=replace(made.base, runtime="command"))
        (self.study.path / "trials").mkdir(parents=True)
        self.storage = StudyStorage(self.study.storage, "own", DOCUMENT)
        self.actor = Actor(self.study, mock.Mock(), self.storage, mock.Mock())
        self.storage.create(NewTrial(parameters=PARAMETERS, budget=3))
        self.parent = self.study.of_trial(0)
        self.parent.mkdir()
        take(self.parent, run="t1", generation=1)

    def saves(self) -> None:
        """Let the trial write its checkpoint."""
        (self.parent / LINK / "weights").write_text("w")

    def create(self, **seen: Any) -> bool:
        """Ask for an heir; ``seen`` is what the daemon says of the trial."""
        one: KnownTrial = known(stored(), view(reports=AT_RUNG, **seen))
        return self.actor.create([HEIR], [one])


def test_an_heir_waits_for_the_checkpoint_of_a_parent_that_has_just_reported(
    tmp_path: Path,
) -> None:
    one = Population(tmp_path)
    assert not one.create()
    assert len(one.storage.trials()) == 1, "the checkpoint comes after the report"
    one.saves()
    assert one.create(state="parked", waits_at_rung=True)
    assert one.storage.trials()[1].parent == 0
    assert (one.study.of_trial(1) / "generation-1" / "weights").read_text() == "w"


def test_an_heir_waits_while_its_parent_writes_without_a_pause(tmp_path: Path) -> None:
    one = Population(tmp_path)
    one.saves()
    with mock.patch("bftrainer.program_files._identities", side_effect=[{}, {Path(): ()}] * 3):
        assert not one.create(budget=6)
    assert len(one.storage.trials()) == 1
    assert one.create(budget=6), "later it has a moment's rest, though it trains on"


def test_what_was_prepared_is_the_trial_s_whatever_number_it_gets(tmp_path: Path) -> None:
    one = Population(tmp_path)
    one.saves()
    with mock.patch.object(one.storage, "next_number", return_value=5):  # others were faster
        assert one.create(state="parked", waits_at_rung=True)
    assert (one.study.of_trial(1) / "generation-1" / "weights").exists()
    assert not one.study.of_trial(5).exists(), "that is somebody else's trial"
