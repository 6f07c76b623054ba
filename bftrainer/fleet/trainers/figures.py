"""Figures of each trainer that people look at and nothing is decided by: training loss, GPU use.

Members of a generation report at different moments and have unlike shares and GPUs: the last report
of each counts, a loss by the weight that it names, so that every share of the batch is always in
the mean. Fed by ``trainers``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TypeVar

from bftrainer.elastic.protocol import Gpu, GpusInUse, TrainingLoss
from bftrainer.elastic.training_loss import mean_loss
from bftrainer.model.trainer import GpuLoad, TrainerProgress, TrainerRecord

T = TypeVar("T", TrainingLoss, GpusInUse)


class FigureBook:
    """The last reports of the members of all trainers."""

    def __init__(self) -> None:
        self._losses: dict[str, dict[str, TrainingLoss]] = {}  # by trainer and worker
        self._gpus: dict[str, dict[str, GpusInUse]] = {}  # likewise

    def heard(
        self,
        record: TrainerRecord,
        worker_id: str,
        told: TrainingLoss | GpusInUse,
        members: Collection[str],
    ) -> TrainerRecord:
        """Return a trainer's record after a report of one of its workers, or of its agent.

        Args:
            record: the trainer's; of one that has ended, or another generation, it stays as it is.
            worker_id: who reports.
            told: the report.
            members: workers whose figures count: those of the present generation, and of losses
                those that have come to the end of the training.
        """
        if record.state.is_final or worker_id not in members:
            return record
        if isinstance(told, GpusInUse):
            gpus = _of_members(self._gpus, record.trainer_id, worker_id, told, members)
            use = gpu_use_of(gpu for report in gpus.values() for gpu in report.gpus)
            return _with(record, replace(record.progress, gpu_use=use))
        if told.generation < record.progress.generation:
            return record
        losses = _of_members(self._losses, record.trainer_id, worker_id, told, members)
        loss, weight = mean_loss((report.loss, report.weight) for report in losses.values())
        if not weight:
            return record
        is_finite = loss is not None
        return _with(record, replace(record.progress, loss=loss, has_finite_loss=is_finite))

    def gpu_use_on(self, trainer_id: str, worker_id: str) -> GpuLoad | None:
        """Return what a worker's node told of its GPUs last; None: nothing."""
        report = self._gpus.get(trainer_id, {}).get(worker_id)
        return None if report is None else gpu_use_of(report.gpus)

    def forget(self, trainer_id: str) -> None:
        """Drop a trainer that is parked or final."""
        self._losses.pop(trainer_id, None)
        self._gpus.pop(trainer_id, None)


def _of_members(
    book: dict[str, dict[str, T]],
    trainer_id: str,
    worker_id: str,
    told: T,
    members: Collection[str],
) -> dict[str, T]:
    """Add a report; return those of the present members."""
    before = book.get(trainer_id, {})
    now = {name: report for name, report in before.items() if name in members}
    now[worker_id] = told
    book[trainer_id] = now
    return now


def _with(record: TrainerRecord, progress: TrainerProgress) -> TrainerRecord:
    return record if progress == record.progress else replace(record, progress=progress)


def gpu_use_of(gpus: Iterable[Gpu]) -> GpuLoad | None:
    """Return the figures of GPUs together: the mean of their use, the sums of their memory.

    A GPU that tells one of the two only counts there; None if none tells any.
    """
    listed = list(gpus)
    uses = [gpu.use_percent for gpu in listed if gpu.use_percent is not None]
    memory = [
        (gpu.memory_used_mib, gpu.memory_total_mib)
        for gpu in listed
        if gpu.memory_used_mib is not None and gpu.memory_total_mib is not None
    ]
    if not uses and not memory:
        return None
    return GpuLoad(
        gpus=max(len(uses), len(memory)),
        use_percent=sum(uses) / len(uses) if uses else None,
        memory_used_mib=sum(used for used, _ in memory) if memory else None,
        memory_total_mib=sum(total for _, total in memory) if memory else None,
    )
