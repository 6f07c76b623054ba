"""A length in updates: how it is asked for, shown and judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.api.admission import check_spec
from bftrainer.cli.main import main
from bftrainer.cli.status import trainer_lines
from bftrainer.decide.policy_answer import _make_standing
from bftrainer.fleet.generations.members import Ended
from bftrainer.fleet.runtimes.base import worker_config
from bftrainer.fleet.trainers.record_updates import complete
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerProgress, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import TrainerView

SPEC = TrainerSpec(name="s", user="u", script="/s.py", checkpoint_dir="/c", steps=40)
RECORD = TrainerRecord(trainer_id="t1", spec=SPEC, state=TrainerState.RUNNING, submitted_s=0.0)


def view(progress: TrainerProgress) -> TrainerView:
    return TrainerView(
        record=replace(RECORD, progress=progress),
        planned_nodes=(),
        requested_nodes=(),
        observed_nodes=(),
    )


def test_submit_asks_for_it_and_its_workers_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch(mode=0o755)
    dry = ["submit", "--dry-run", "--json", "--runtime", "command"]
    assert main([*dry, "--steps", "40", "train.py"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["steps"] == 40
    assert main([*dry, "--steps", "4", "--epochs", "1", "train.py"]) == 2
    assert "error BFT-1016: Several of epochs, samples and steps" in capsys.readouterr().err
    more = {"worker_id": "w", "node": "n", "address": "", "incarnation": 1, "log_path": ""}
    assert worker_config(RECORD, **more).steps == 40  # type: ignore[arg-type]  # of one kind each


@pytest.mark.parametrize("changes", [{"steps": 0}, {"samples": 1}, {"epochs": 1}])
def test_what_is_no_length_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(UsageError) as refused:
        check_spec(replace(SPEC, **changes))  # type: ignore[arg-type]  # numbers all
    assert refused.value.code == "BFT-1016"


def test_its_part_is_by_samples_once_their_number_is_told() -> None:
    assert view(TrainerProgress(step=10)).done == 0.25
    assert view(TrainerProgress(step=10, samples=30, total=100)).done == 0.3
    assert dict(trainer_lines(view(TrainerProgress())))["work"] == "40 steps"


def test_policies_see_the_samples_that_are_left() -> None:
    assert _make_standing(RECORD).left_samples is None, "not told yet"
    told = replace(RECORD, progress=TrainerProgress(samples=30, total=100))
    assert _make_standing(told).left_samples == 70


def test_a_script_that_ends_early_is_told_of() -> None:
    early = complete(SPEC, Ended(step=30, epoch=2, samples=300))
    assert early.startswith("Its script ended after 30 of 40 steps (--steps)")
    assert complete(SPEC, Ended(step=40, epoch=2, samples=300)) == "Its training is complete."
