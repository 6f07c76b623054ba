"""The live page of ``bftrainer demo``: nothing is cut at any width of a terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from rich.cells import cell_len
from rich.console import Console

from bftrainer.lab.demo.local_site import DemoSite
from bftrainer.lab.demo.watch import Watch, page
from bftrainer.lab.verbs.tryout import drawn
from bftrainer.model.cluster import Job, JobState, Node, NodeState, Snapshot
from bftrainer.model.trainer import TrainerProgress, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import StatusView, TrainerView
from tests.support.memory_service import MemoryService

WIDTHS = (40, 60, 80, 81, 120, 160, 200)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
LONG_NODE = "node-of-a-cluster-with-long-names-0001.example"
WIDE = "網路"  # two cells a character


class Site:
    """A cluster of three nodes: one trains, one starts a worker, one has an ordinary job."""

    def __init__(self) -> None:
        self.client = self

    def status(self) -> StatusView:
        record = TrainerRecord(
            trainer_id="t1",
            spec=TrainerSpec(name=WIDE, user="ada", script="/x.py", epochs=6),
            state=TrainerState.RUNNING,
            submitted_s=0.0,
            progress=TrainerProgress(epoch=2, samples_per_s=1234.6),
            rescales=3,
        )
        view = TrainerView(
            record=record,
            planned_nodes=("n1", LONG_NODE),
            requested_nodes=(LONG_NODE,),
            observed_nodes=("n1",),
        )
        return replace(MemoryService(Path()).status(), trainers=(view,), rescales=3, give_backs=12)

    def look(self) -> Snapshot:
        jobs = tuple(
            Job(
                job_id=name, user="ada", n_nodes=1, time_limit_s=None, nodes=(name,),
                state=JobState.RUNNING, pilot_id=None if name == "n3" else f"p-{name}",
            )
            for name in ("n1", LONG_NODE, "n3")
        )  # fmt: skip
        nodes = tuple(
            Node(name=name, state=NodeState.ALLOCATED) for name in ("n1", LONG_NODE, "n3")
        )
        return Snapshot(taken_at_s=1.0, nodes=nodes, jobs=jobs)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_live_page_fits_the_terminal_and_cuts_nothing(width: int) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=True, color_system="truecolor")
    console.print(drawn(page(Watch(cast("DemoSite", Site()))), width))
    text = stream.getvalue()
    lines = ESCAPE.sub("", text).splitlines()
    for line in lines:
        assert cell_len(line.rstrip()) <= width or len(line.split()) == 1, line
    words = " ".join(" ".join(lines).split())
    assert LONG_NODE in "".join(line.strip() for line in lines)
    for part in (WIDE, f"{WIDE}(starting)", "job", "running", "2/6", "1,235"):
        assert part in words
    assert "SAMPLES/S" in words
    assert "rescales 3 given back 12" in words
    assert text != "".join(f"{line}\n" for line in lines)  # trainers have colours
