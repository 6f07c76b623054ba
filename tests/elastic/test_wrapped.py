"""Scripts that wrap their model in DistributedDataParallel: unwrapped, or told why not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from bftrainer import process
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

WRAPPED = SCRIPTS / "wrapped.py"
NOTE = "wrapped in DistributedDataParallel"


def plainly(directory: Path, case: str) -> tuple[journal.Entry, str]:
    directory.mkdir()
    done = process.run(
        [sys.executable, str(WRAPPED), case],
        timeout_s=300,
        env={**os.environ, "BFT_TEST_DIR": str(directory), "OMP_NUM_THREADS": "1"},
    )
    assert done.is_ok, done.stderr
    return journal.result(directory), done.stderr


def test_run_plainly_it_trains_as_without_its_wrapper(tmp_path: Path) -> None:
    wrapped, said = plainly(tmp_path / "wrapped", "wrapped")
    plain, nothing = plainly(tmp_path / "plain", "plain")
    assert wrapped == plain
    assert wrapped["steps"] == 24
    assert said.count(NOTE) == 1
    assert NOTE not in nothing


def test_two_workers_average_once(tmp_path: Path, template: TemplateProcess) -> None:
    results = []
    for case in ("plain", "wrapped"):
        directory = tmp_path / case
        directory.mkdir()
        with Controller(directory, template) as c:
            ids = c.start(WRAPPED, [case], count=2)
            c.warm(ids)
            c.form(ids)
            c.finished()
            assert (NOTE in c.workers[ids[0]].log.read_text()) == (case == "wrapped")
        results.append(journal.result(directory)["state"])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-6, atol=1e-7)


def test_a_group_of_several_members_is_refused(tmp_path: Path, template: TemplateProcess) -> None:
    with Controller(tmp_path, template) as c:
        ids = [c.start(WRAPPED, ["two", str(rank)])[0] for rank in range(2)]
        for worker_id in ids:
            failed = c.failed(worker_id)
            assert failed.code == "BFT-1401"
            assert "over 2 processes" in failed.cause
            assert "world_size=1" in failed.next_step
