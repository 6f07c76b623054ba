"""Where the workers of a trainer write their output.

A record and the machine of its workers come in; a ``LogFile`` for every worker it ever had
goes out. Called by ``actuate.trainers``.
"""

from __future__ import annotations

from pathlib import Path

from bftrainer.actuate.staffing import Staff
from bftrainer.api.service import LogFile
from bftrainer.trainer import TrainerSpec


def log_directory(spec: TrainerSpec) -> Path:
    """Return where the workers of a trainer write their output."""
    return Path(spec.checkpoint_dir) / "logs"


def log_files(trainer_id: str, spec: TrainerSpec, machine: Staff | None) -> tuple[LogFile, ...]:
    """Name the log of every worker, oldest first.

    Those of one node have its id in common; a number behind it tells all but the first.
    """
    directory = log_directory(spec)
    paths = directory.glob(f"{trainer_id}-*.log") if directory.is_dir() else ()
    return tuple(
        _log_file(path, numbers, spec, machine)
        for numbers, path in sorted((tuple(map(int, p.stem.split("-")[1:])), p) for p in paths)
    )


def _log_file(
    path: Path, numbers: tuple[int, ...], spec: TrainerSpec, machine: Staff | None
) -> LogFile:
    local_rank = numbers[2] if len(numbers) > 2 else 0
    member = path.stem.removesuffix(f"-{local_rank}") if local_rank else path.stem
    worker = machine.workers.get(member) if machine else None
    members = machine.members if machine else ()
    rank = None
    if member in members:
        rank = members.index(member) * spec.workers_per_node + local_rank
    return LogFile(
        worker_id=path.stem,
        node=worker.node if worker else "",
        path=str(path),
        generation=worker.first_generation if worker else 0,
        rank=rank,
    )
