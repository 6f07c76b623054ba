"""The training loss of each trainer, from what the members of its generation report.

Members have unlike shares, and report at different moments: the last report of each counts, by the
weight that it names. So every share of the batch is always in the mean. Fed by ``trainers``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bftrainer.elastic.protocol import TrainingLoss
from bftrainer.elastic.training_loss import mean_loss
from bftrainer.model.trainer import TrainerRecord


class LossBook:
    """The last reports of the members of all trainers."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, TrainingLoss]] = {}  # by trainer and worker

    def heard(
        self, record: TrainerRecord, worker_id: str, told: TrainingLoss, members: Collection[str]
    ) -> TrainerRecord:
        """Return a trainer's record after a report of one of its workers.

        Args:
            record: the trainer's; of one that has ended, or another generation, it stays as it is.
            worker_id: who reports.
            told: the report.
            members: workers of the present generation.
        """
        is_past = told.generation < record.progress.generation
        if is_past or record.state.is_final or worker_id not in members:
            return record
        before = self._told.get(record.trainer_id, {})
        now = {name: said for name, said in before.items() if name in members}
        now[worker_id] = told
        self._told[record.trainer_id] = now
        loss, weight = mean_loss((said.loss, said.weight) for said in now.values())
        if not weight:
            return record
        progress = replace(record.progress, loss=loss, has_finite_loss=loss is not None)
        return replace(record, progress=progress)

    def forget(self, trainer_id: str) -> None:
        """Drop a trainer that is parked or final."""
        self._told.pop(trainer_id, None)
