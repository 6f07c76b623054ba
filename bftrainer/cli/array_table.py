"""The trainers of one array, side by side: ``bftrainer status --array ID``. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.quantities import quantity
from bftrainer.model.views import TrainerView

INDEX = "BFT_ARRAY_INDEX"  # in the environment of the workers
HEADERS = (">INDEX", "ID", "ARGUMENTS", "STATE", ">EPOCH", ">STEP", ">METRIC", ">CHECKPOINT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRow:
    """One trainer of an array."""

    index: int
    trainer_id: str
    name: str
    arguments: tuple[str, ...]
    state: str
    epoch: int
    step: int  # of a parked one that of its checkpoint
    metric: float | None  # the last that its script reported
    checkpoint_step: int | None  # None: it has written none
    reason: str


def rows_of(trainer_id: str, views: Sequence[TrainerView]) -> list[ArrayRow]:
    """Return the trainers of the array that a trainer is of, of each index the newest.

    Raises:
        UsageError: BFT-1004, there is no such trainer; BFT-1079, it is of no array.
    """
    specs = {view.record.trainer_id: view.record.spec for view in views}
    if trainer_id not in specs:
        raise UsageError(
            "BFT-1004",
            f"There is no trainer {trainer_id[:40]!r}.",
            "'bftrainer status --all' lists all.",
            exit_code=ExitCode.NOT_FOUND,
        )
    spec = specs[trainer_id]
    if not spec.array_id:
        raise UsageError(
            "BFT-1079",
            f"Trainer {trainer_id} is of no array.",
            "Name one that was submitted with --array; 'bftrainer status --all' lists all.",
        )
    newest_rows: dict[int, ArrayRow] = {}
    for view in views:
        member = view.record.spec
        if (member.user, member.array_id) == (spec.user, spec.array_id):
            row = _row(view)
            newest_rows[row.index] = row  # one submitted again comes later
    return [newest_rows[index] for index in sorted(newest_rows)]


def _row(view: TrainerView) -> ArrayRow:
    record = view.record
    reports = record.reports
    index = dict(record.spec.environment).get(INDEX, "")
    return ArrayRow(
        index=int(index) if index.isdecimal() else -1,
        trainer_id=record.trainer_id,
        name=record.spec.name,
        arguments=record.spec.args,
        state=view.state,
        epoch=record.progress.epoch,
        step=view.step,
        metric=reports[-1].value if reports else None,
        checkpoint_step=record.saved_step,
        reason=view.why,
    )


def cells_of(row: ArrayRow) -> tuple[str, ...]:
    """Return its cells of the table."""
    return (
        str(row.index),
        row.trainer_id,
        shlex.join(row.arguments),
        row.state,
        str(row.epoch),
        str(row.step),
        "-" if row.metric is None else quantity(row.metric, 4),
        "-" if row.checkpoint_step is None else str(row.checkpoint_step),
    )
