"""Node-seconds that a trainer has attained, from what its workers report."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.fleet.generations.members import Parked, Rescaled
from bftrainer.fleet.trainers import record_updates
from bftrainer.ground.protocol import Progress
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord
from tests.support.snapshots import record


def _entered(one: TrainerRecord, size: int, at_s: float) -> TrainerRecord:
    done = Rescaled(
        generation=1, attempt=1, size_before=one.progress.size, size=size, reason="", pause_s=0.0,
        formation_s=0.0, step=0, epoch=0, samples=0, nodes=(), resumed_from="",
    )  # fmt: skip
    return record_updates.rescaled(one, done, MeasuredCosts(), at_s)


def test_each_report_counts_what_it_had_since_the_last() -> None:
    one = _entered(record(), 2, 100.0)
    assert one.progress.node_s == 0.0
    said = Progress(generation=1, step=3, epoch=0, samples=9, step_s=0.1, samples_per_s=1.0)
    one = record_updates.progressed(one, said, MeasuredCosts(), 130.0)
    assert one.progress.node_s == 60.0
    one = _entered(one, 3, 140.0)
    assert one.progress.node_s == 80.0
    gone = Parked(generation=1, size_before=3, is_saved=False, reason="")
    one = record_updates.parked(one, gone, 140.0)
    one = _entered(one, 1, 500.0)
    assert one.progress.node_s == 80.0
    one = replace(one, progress=replace(one.progress, reported_s=600.0))
    assert record_updates.progressed(one, said, MeasuredCosts(), 590.0).progress.node_s == 80.0
