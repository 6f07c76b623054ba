"""``status --array``: the trainers of one array side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.cli.array_table import HEADERS, cells_of, rows_of
from bftrainer.model.columns import columns
from bftrainer.model.errors import UsageError
from bftrainer.model.study import Report
from bftrainer.model.trainer import TrainerProgress, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import TrainerView


def view(number: int, index: int, *, array_id: str = "a", user: str = "u") -> TrainerView:
    spec = TrainerSpec(
        name=f"n_{index}",
        user=user,
        script="/s",
        args=("--lr", f"0.{index}", "a b"),
        environment=(("BFT_ARRAY_INDEX", str(index)),),
        array_id=array_id,
    )
    record = TrainerRecord(
        trainer_id=f"t{number}", spec=spec, state=TrainerState.RUNNING, submitted_s=0.0
    )
    return TrainerView(record=record, planned_nodes=(), requested_nodes=(), observed_nodes=())


def changed(one: TrainerView, **changes: object) -> TrainerView:
    return replace(one, record=replace(one.record, **changes))  # type: ignore[arg-type]


def test_of_each_index_the_newest_is_shown_in_order() -> None:
    parked = changed(
        view(2, 7),
        state=TrainerState.PARKED,
        progress=TrainerProgress(step=19, epoch=2),
        saved_step=14,
        reports=(Report(value=2.0), Report(value=0.25)),
    )
    others = [view(1, 3, array_id="b"), view(4, 3, user="v"), view(6, 0, array_id="")]
    failed = changed(view(3, 1), state=TrainerState.FAILED)
    again = view(5, 1)  # requeued
    rows = rows_of("t5", [parked, *others, failed, again])
    assert [(row.index, row.trainer_id) for row in rows] == [(1, "t5"), (7, "t2")]
    assert columns(HEADERS, [cells_of(row) for row in rows]).splitlines() == [
        "INDEX  ID  ARGUMENTS       STATE    EPOCH  STEP  METRIC  CHECKPOINT",
        "    1  t5  --lr 0.1 'a b'  running      0     0       -           -",
        "    7  t2  --lr 0.7 'a b'  parked       2    14    0.25          14",
    ]


@pytest.mark.parametrize(("trainer_id", "code"), [("t9", "BFT-1004"), ("t6", "BFT-1079")])
def test_what_is_of_no_array_is_refused(trainer_id: str, code: str) -> None:
    with pytest.raises(UsageError) as refused:
        rows_of(trainer_id, [view(1, 3), view(6, 0, array_id="")])
    assert refused.value.code == code
