"""The log files of a trainer's workers, and the logs that may be removed.

Returns a ``LogFile`` for every worker a trainer ever had. Of failed tries without progress the
first log and the last few are kept; the next worker is told to remove the others, because it runs
as the user, on a node. Called by ``trainers``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bftrainer.elastic.protocol import WorkerConfig
from bftrainer.elastic.worker import SPENT_LOGS
from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.model.trainer import TrainerSpec
from bftrainer.model.views import LogFile

MOST_LOOKED_AT: Final = 100_000  # directory entries
MOST_NAMED: Final = 1_000
KEPT_TRIES = 10  # logs of failed tries besides the first


@dataclass(slots=True)
class FailedTries:
    """Logs of failed tries of one trainer without progress between them."""

    _first: str = ""
    _last: deque[str] = field(default_factory=deque)

    def add(self, log_path: str) -> None:
        """Record one more."""
        if self._first:
            self._last.append(Path(log_path).name)
        self._first = self._first or log_path

    def removed_by(self, config: WorkerConfig) -> WorkerConfig:
        """Return the configuration of a worker that also removes surplus logs."""
        spent = [self._last.popleft() for _ in range(len(self._last) - KEPT_TRIES)]
        if not spent:
            return config
        # In the environment, because older agents refuse unknown fields.
        told = (*config.environment, (SPENT_LOGS, ":".join(spent)))
        return replace(config, environment=told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The facts known of a worker's log."""

    node: str
    generation: int  # its first; 0: none
    rank: int | None  # among the nodes of the current generation


def known_of(machine: GenerationMachine, most: int | None = None) -> dict[str, Known]:
    """Return what a machine knows of its workers, by id; of the last ``most``."""
    ranks = {worker_id: rank for rank, worker_id in enumerate(machine.crew.members)}
    last = list(machine.crew.workers.items())[-most if most else None :]
    return {
        i: Known(node=w.node, generation=w.first_generation, rank=ranks.get(i)) for i, w in last
    }


def log_directory(spec: TrainerSpec) -> Path:
    """Return where the workers of a trainer write their output."""
    return Path(spec.checkpoint_dir) / "logs"


def log_files(
    trainer_id: str, spec: TrainerSpec, known: Mapping[str, Known]
) -> tuple[LogFile, ...]:
    """Return the log of every worker, oldest first.

    Workers of one node share an id; all but the first append a number. The directory belongs to
    the user: it may contain anything, and access may hang.
    """
    directory = log_directory(spec)
    name = re.compile(rf"{re.escape(trainer_id)}((?:-[0-9]{{1,9}}){{1,3}})\.log")
    found = [
        (tuple(map(int, match[1].split("-")[1:])), directory / match[0])
        for match in map(name.fullmatch, _names_in(directory, known))
        if match is not None
    ]
    # The latest are the interesting ones.
    return tuple(_log_file(path, n, spec, known) for n, path in sorted(found)[-MOST_NAMED:])


def _names_in(directory: Path, known: Mapping[str, Known]) -> list[str]:
    """Return the names of its files; where it is closed to us, those that there must be."""
    with contextlib.suppress(OSError):
        try:
            with os.scandir(directory) as entries:
                return [entry.name for entry in itertools.islice(entries, MOST_LOOKED_AT)]
        except PermissionError:
            return [f"{worker_id}.log" for worker_id in known]
    return []


def _log_file(
    path: Path, numbers: tuple[int, ...], spec: TrainerSpec, known: Mapping[str, Known]
) -> LogFile:
    local_rank = numbers[2] if len(numbers) > 2 else 0
    member = path.stem.removesuffix(f"-{local_rank}") if local_rank else path.stem
    worker = known.get(member, Known(node="", generation=0, rank=None))
    first = None if worker.rank is None else worker.rank * spec.workers_per_node
    return LogFile(
        worker_id=path.stem,
        node=worker.node,
        path=str(path),
        generation=worker.generation,
        rank=None if first is None else first + local_rank,
    )
