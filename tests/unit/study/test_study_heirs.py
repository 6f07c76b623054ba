"""A trial that is to take another one's state waits until that has one to give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bftrainer.api.checkpoint_files import bring, copy_newest
from bftrainer.ground import files
from bftrainer.ground.fence import SUFFIX
from bftrainer.model.study import Report
from bftrainer.model.trainer import TrainerProgress, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import TrainerView
from bftrainer.study.actions import Actor
from bftrainer.study.trial_table import KnownTrial
from bftrainer.study.trials import Start
from tests.unit.study.test_study_parts import DOCUMENT, PARAMETERS, known, stored, study, view
from trainers.command.program import LINK, take

HEIR = Start(budget=6, parent=0)
TORCH = f"step-000000000003-00001{SUFFIX}"
TAKES = {"command": ("copy_newest", copy_newest), "torch": ("bring", bring)}
AT_RUNG = (Report(value=0.5, epoch=3, reported_s=1.0),)


class Population:
    """A study with one trial, which has trained its first 3 epochs."""

    def __init__(self, path: Path, runtime: str = "command") -> None:
        pytest.importorskip("optuna")
        from bftrainer.study.storage import StudyStorage

        made = study(path / "own.study")
        self.study = replace(made, base=replace(made.base, runtime=runtime))
        (self.study.path / "trials").mkdir(parents=True)
        self.storage = StudyStorage(self.study.storage, "own", DOCUMENT)
        self.client = mock.Mock()
        self.actor = Actor(self.study, self.client, self.storage, mock.Mock())
        self.is_now()
        self.storage.create(Start(budget=3), PARAMETERS)
        self.parent = self.study.of_trial(0)
        self.parent.mkdir()
        take(self.parent, run="t1", generation=1)

    def saves(self) -> None:
        """Let the trial write its checkpoint."""
        (self.parent / LINK / "weights").write_text("w")
        (self.parent / TORCH).write_bytes(b"".join(files.parts_of({"format": 1}, [])))

    def is_now(self, **more: Any) -> None:
        """Set what the daemon says of the trial's trainer when it is asked again."""
        given: dict[str, Any] = {"state": TrainerState.RUNNING, "reports": AT_RUNG, **more}
        spec = TrainerSpec(name="own", user="u", script="/s.py", epochs=6)
        record = TrainerRecord(trainer_id="t0-0", spec=spec, submitted_s=0.0, **given)
        view = TrainerView(record=record, planned_nodes=(), requested_nodes=(), observed_nodes=())
        self.client.trainer.return_value = view

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
    with mock.patch(
        "bftrainer.api.checkpoint_files._identities", side_effect=[{}, {Path(): ()}] * 3
    ):
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


@pytest.mark.parametrize("runtime", ["command", "torch"])
@pytest.mark.parametrize(
    "now",
    [
        {"reports": (*AT_RUNG, Report(value=0.4, epoch=6, reported_s=2.0))},
        {"progress": TrainerProgress(epoch=6)},
        {"state": TrainerState.PARKED, "rung_s": 2.0},
        {"state": TrainerState.FINISHED},
    ],
    ids=["reported", "trained", "waits", "finished"],
)
def test_nothing_is_taken_of_a_parent_whose_budget_ends_after_the_look(
    tmp_path: Path, now: dict[str, Any], runtime: str
) -> None:
    one = Population(tmp_path, runtime)
    one.saves()
    before = set(one.parent.parent.rglob("*"))
    name, take_it = TAKES[runtime]
    taken: list[Path] = []

    def late(source: Path, directory: Path) -> None:
        take_it(source, directory)
        taken.extend(directory.iterdir())
        one.is_now(**now)

    with mock.patch(f"bftrainer.study.actions.{name}", late):
        assert not one.create(budget=6)
    assert len(one.storage.trials()) == 1, "it would have nothing to train, and report nothing"
    assert taken
    left = set(one.parent.parent.rglob("*")) - before
    assert left == {one.study.of_trial(1)}, "the copy is dropped"


def test_a_parent_that_waits_at_its_rung_is_not_asked_for_again(tmp_path: Path) -> None:
    one = Population(tmp_path)
    one.saves()
    one.is_now(state=TrainerState.PARKED, rung_s=2.0)
    assert one.create(state="parked", waits_at_rung=True)
    one.client.trainer.assert_not_called()
