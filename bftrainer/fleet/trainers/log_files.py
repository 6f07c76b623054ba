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
from typing import Final, NamedTuple

from bftrainer.elastic.worker import SPENT_LOGS
from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.ground.protocol import WorkerConfig
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
        environment = (*config.environment, (SPENT_LOGS, ":".join(spent)))
        return replace(config, environment=environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What a machine knows of a worker that has a log."""

    node: str
    generation: int  # its first; 0: none
    rank: int | None  # among the nodes of the current generation


class _Log(NamedTuple):
    """A file; those of a trainer are in the order in which their workers were started."""

    numbers: tuple[int, ...]  # incarnation, worker, and the process on its node if not the first
    worker_id: str
    path: Path

    @property
    def local_rank(self) -> int:
        """The number of the process on its node."""
        if len(self.numbers) <= 2:
            return 0
        return self.numbers[-1]


def worker_facts(machine: GenerationMachine, most: int = 0) -> dict[str, WorkerFacts]:
    """Return what a machine knows of its workers, by id; of the last ``most``, 0: of all."""
    facts: dict[str, WorkerFacts] = {}
    ranks = {worker_id: rank for rank, worker_id in enumerate(machine.crew.members)}
    for worker in list(machine.crew.workers.values())[-most:]:  # [-0:] is the whole list
        facts[worker.worker_id] = WorkerFacts(
            node=worker.node,
            generation=worker.first_generation,
            rank=ranks.get(worker.worker_id),
        )
    return facts


def log_directory(spec: TrainerSpec) -> Path:
    """Return where the workers of a trainer write their output."""
    return Path(spec.checkpoint_dir) / "logs"


def log_files(
    trainer_id: str, spec: TrainerSpec, facts: Mapping[str, WorkerFacts]
) -> tuple[LogFile, ...]:
    """Return the log of every worker, oldest first.

    Workers of one node share an id; all but the first append a number. The directory belongs to
    the user: it may contain anything, and access may hang.
    """
    directory, logs = log_directory(spec), list[_Log]()
    pattern = re.compile(
        rf"(?P<id>{re.escape(trainer_id)}(?P<numbers>(-[0-9]{{1,9}}){{1,3}}))\.log"
    )
    for name in _names_in(directory, facts):
        if match := pattern.fullmatch(name):
            numbers = tuple(map(int, match["numbers"].split("-")[1:]))
            logs.append(_Log(numbers, match["id"], directory / name))
    # The latest are the interesting ones.
    return tuple(_log_file(log, spec, facts) for log in sorted(logs)[-MOST_NAMED:])


def _names_in(directory: Path, facts: Mapping[str, WorkerFacts]) -> list[str]:
    """Return the names of its files; where it is closed to us, those that there must be."""
    with contextlib.suppress(OSError):
        try:
            with os.scandir(directory) as entries:
                return [entry.name for entry in itertools.islice(entries, MOST_LOOKED_AT)]
        except PermissionError:
            return [f"{worker_id}.log" for worker_id in facts]
    return []


def _log_file(log: _Log, spec: TrainerSpec, facts: Mapping[str, WorkerFacts]) -> LogFile:
    member, rank = log.worker_id, None
    if log.local_rank:
        member = member.removesuffix(f"-{log.local_rank}")
    worker = facts.get(member, WorkerFacts(node="", generation=0, rank=None))
    if worker.rank is not None:
        rank = worker.rank * spec.workers_per_node + log.local_rank
    return LogFile(
        worker_id=log.worker_id,
        node=worker.node,
        path=str(log.path),
        generation=worker.generation,
        rank=rank,
    )
