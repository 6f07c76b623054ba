"""File systems in trouble: training goes on, it is told, and the next checkpoint is complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bftrainer.ground import files
from bftrainer.ground.protocol import Progress, Unsaved
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess
from tests.support.hanging import hanging
from tests.support.small_disk import fill, small_disk

TRAIN = SCRIPTS / "train_ids.py"


def _started(c: Controller) -> str:
    settings = json.dumps({"delay_s": 0.001})
    (worker_id,) = c.start(TRAIN, [settings], epochs=1_000_000, checkpoint_interval_s=0.05)
    c.form([worker_id], new=[worker_id])
    return worker_id


def _goes_on(c: Controller, worker_id: str) -> None:
    reports = c.workers[worker_id].all(Progress)
    c.trained_to(max((report.step for report in reports), default=0) + 20)


def test_a_full_disk_costs_checkpoints_only_until_there_is_space(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with small_disk(tmp_path / "checkpoints", "1m") as disk:
        ballast = fill(disk)
        with Controller(tmp_path, template) as c:
            worker_id = _started(c)
            told = c.until(lambda: c.workers[worker_id].all(Unsaved), "it is told")
            assert "BFT-1342" in told[0].cause
            assert "No space left" in told[0].cause
            _goes_on(c, worker_id)
            assert c.saved() == []
            ballast.unlink()
            c.until(c.saved, "a checkpoint")


@pytest.mark.long
def test_a_file_system_that_hangs_is_told_while_it_does(
    tmp_path: Path, template: TemplateProcess
) -> None:
    directory = tmp_path / "checkpoints"
    with Controller(tmp_path, template) as c:
        worker_id = _started(c)
        c.until(c.saved, "a checkpoint")
        with hanging(directory):
            told = c.until(lambda: c.workers[worker_id].all(Unsaved), "it is told")
            assert "has not ended" in told[0].cause
            _goes_on(c, worker_id)
        before = c.saved()[-1].step
        c.until(lambda: c.saved()[-1].step > before, "the next checkpoint")
        assert files.newest_first(directory)
        assert "BFT-1342" in c.workers[worker_id].log.read_text()
