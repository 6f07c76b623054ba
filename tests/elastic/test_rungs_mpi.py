"""An MPI program whose budget grows, and what it reports meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bftrainer.ground.protocol import Reported
from tests.elastic.controller import Controller
from tests.elastic.mpi_workers import MpiWorkers

BATCH = 4
PROGRAM = f"""\
import sys
import numpy as np
from bftrainer.elastic import mpi

total = np.zeros(1)

def step(run):
    if run.step % 10 == 0:
        run.report(-total[0])
    part, whole = np.array([run.params["rate"] * run.step / run.size]), np.empty(1)
    run.comm.Allreduce(part, whole)
    total[:] = 0.9 * total + whole  # halves add up exactly, so this is the same at any size

run = mpi.Run(replicated={{"total": total}}, batch={BATCH})
if run.loop(step, steps=1):
    run.report(total[0])
    print("total", total[0].hex())
"""


def train(directory: Path, rungs: Sequence[tuple[int, int]]) -> tuple[Reported, str]:
    """Train to each number of steps, at its size; return all reports and what came out."""
    directory.mkdir()
    script = directory / "program.py"
    script.write_text(PROGRAM)
    with MpiWorkers(directory) as workers, Controller(directory, workers) as c:
        for size, steps in rungs:
            ids = c.begin(
                script,
                count=size,
                samples=steps * BATCH,
                environment=(("BFT_PARAMETERS", '{"rate": 0.1}'),),
            )
            c.finished()
            assert not any(c.workers[i].all(Reported) for i in ids[1:])
        first = c.workers[ids[0]]
        (line,) = (ln for ln in first.log.read_text().splitlines() if ln.startswith("total"))
        return first.all(Reported)[-1], line


@pytest.mark.long
def test_rungs_give_the_bits_and_reports_of_one_go(tmp_path: Path) -> None:
    whole, at_once = train(tmp_path / "at-once", [(1, 90)])
    grown, in_rungs = train(tmp_path / "rungs", [(2, 10), (1, 30), (2, 90)])
    assert in_rungs == at_once
    assert grown.reports == whole.reports
    assert [r.step for r in grown.reports] == [*range(0, 90, 10), 90]
    assert [r.samples for r in grown.reports] == [BATCH * r.step for r in grown.reports]
    assert grown.reports[1].value < 0.0 < grown.reports[-1].value
