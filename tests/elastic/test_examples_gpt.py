"""The example in nanoGPT's shape: what it evaluates, keeps and saves is that of a plain run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bftrainer.batch import process
from tests.elastic.controller import ROOT, Controller, TemplateProcess
from tests.elastic.test_examples import HELD

GPT = ROOT / "trainers" / "examples" / "text_gpt.py"
OPTIONS = ["--characters", "12000", "--epochs", "30", "--eval-interval", "10", "--patience", "2",
           "--learning-rate", "0.02"]  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("plain")
    done = process.run(
        [sys.executable, str(GPT), *OPTIONS],
        timeout_s=100,
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1", "BFT_CHECKPOINT_DIR": str(directory)},
    )
    assert done.is_ok, done.stderr
    result: dict[str, Any] = json.loads((directory / "result.json").read_text())
    assert 40 < result["steps"] < 180, "it stops early, and after some evaluations"
    assert result["best"] < result["losses"][-1], "the best is not the last"
    return result


@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [[], pytest.param(["--micro-batch", "20"], marks=pytest.mark.long)],
    ids=["whole", "micro-batches"],
)
def test_losses_best_and_end_are_those_of_a_plain_run_with_a_kill(
    tmp_path: Path, template: TemplateProcess, plain: dict[str, Any], more: list[str]
) -> None:
    with Controller(tmp_path, template) as c:
        (tmp_path / "checkpoints").mkdir()
        ids = c.start(HELD, ["8", "2", str(GPT), *OPTIONS, *more], count=2, seed=1337)
        c.form(ids[:1], new=ids)
        assert [(one.step, one.size) for one in c.form(ids)] == [(8, 2)] * 2
        c.kill(ids[0])
        c.until(lambda: c.workers[ids[0]].returncode is not None, "death noticed")
        c.form(ids[1:], abandon=True)
        c.finished(ids[1:])
    result = json.loads((tmp_path / "checkpoints" / "result.json").read_text())
    assert result["steps"] == plain["steps"]
    # Sums in another order: rounding grows with the updates.
    assert result["losses"][:3] == pytest.approx(plain["losses"][:3], rel=1e-3)
    assert result["losses"] == pytest.approx(plain["losses"], rel=1e-2)
    assert result["best"] == pytest.approx(min(result["losses"]), rel=1e-6), "it is put back"
    best = torch.load(tmp_path / "checkpoints" / "best.pt")
    assert best["token.weight"].isfinite().all()
