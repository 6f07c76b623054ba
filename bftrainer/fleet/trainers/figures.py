"""Figures of each trainer that people look at and nothing is decided by: training loss, GPU use.

Members of a generation report at different moments and have unlike shares and GPUs: the last report
of each counts, a loss by the weight that it names, so that every share of the batch is always in
the mean. Fed by ``trainers``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TypeVar

from bftrainer.elastic.gradients.training_loss import mean_loss
from bftrainer.ground.protocol import Gpu, GpusInUse, TrainingLoss
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
        report: TrainingLoss | GpusInUse,
        members: Collection[str],
    ) -> TrainerRecord:
        """Return a trainer's record after a report of one of its workers, or of its agent.

        Args:
            record: the trainer's; of one that has ended, or another generation, it stays as it is.
            worker_id: who reports.
            report: what it says.
            members: workers whose figures count: those of the present generation, and of losses
                those that have come to the end of the training.
        """
        if record.state.is_final or worker_id not in members:
            return record
        if isinstance(report, GpusInUse):
            in_use = _of_members(self._gpus, record.trainer_id, worker_id, report, members)
            gpus: list[Gpu] = []
            for latest in in_use.values():
                gpus += latest.gpus
            return _with(record, replace(record.progress, gpu_use=gpu_use_of(gpus)))
        if report.generation < record.progress.generation:
            return record
        losses = _of_members(self._losses, record.trainer_id, worker_id, report, members)
        loss, weight = mean_loss((latest.loss, latest.weight) for latest in losses.values())
        if not weight:
            return record
        is_finite = loss is not None
        return _with(record, replace(record.progress, loss=loss, has_finite_loss=is_finite))

    def gpu_use_on(self, trainer_id: str, worker_id: str) -> GpuLoad | None:
        """Return what a worker's node told of its GPUs last; None: nothing."""
        report = self._gpus.get(trainer_id, {}).get(worker_id)
        if report is None:
            return None
        return gpu_use_of(report.gpus)

    def forget(self, trainer_id: str) -> None:
        """Drop a trainer that is parked or final."""
        self._losses.pop(trainer_id, None)
        self._gpus.pop(trainer_id, None)


def _of_members(
    book: dict[str, dict[str, T]],
    trainer_id: str,
    worker_id: str,
    report: T,
    members: Collection[str],
) -> dict[str, T]:
    """Add a report; return those of the present members."""
    before = book.get(trainer_id, {})
    latest = book[trainer_id] = {name: r for name, r in before.items() if name in members}
    latest[worker_id] = report
    return latest


def _with(record: TrainerRecord, progress: TrainerProgress) -> TrainerRecord:
    if progress == record.progress:
        return record
    return replace(record, progress=progress)


def gpu_use_of(gpus: Iterable[Gpu]) -> GpuLoad | None:
    """Return the figures of GPUs together: the mean of their use, the sums of their memory.

    A GPU that tells one of the two only counts there; None if none tells any.
    """
    n_use = n_memory = 0
    use_percent = used_mib = total_mib = 0.0
    for gpu in gpus:
        if gpu.use_percent is not None:
            n_use += 1
            use_percent += gpu.use_percent
        if gpu.memory_used_mib is not None and gpu.memory_total_mib is not None:
            n_memory += 1
            used_mib += gpu.memory_used_mib
            total_mib += gpu.memory_total_mib
    if not n_use and not n_memory:
        return None
    return GpuLoad(
        gpus=max(n_use, n_memory),
        use_percent=use_percent / n_use if n_use else None,
        memory_used_mib=used_mib if n_memory else None,
        memory_total_mib=total_mib if n_memory else None,
    )
