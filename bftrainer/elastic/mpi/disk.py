"""Checkpoints of an MPI program: one file, written by one member, readable at any size.

Writes arrays and complete row arrays in the format of ``elastic.files``. Called by
``state_transfer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftrainer.elastic import files, trial
from bftrainer.elastic.control import Control
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.fence import Fence
from bftrainer.elastic.files import UnreadableError
from bftrainer.elastic.mpi.state import MpiState
from bftrainer.elastic.reports import NO_REPORTS
from bftrainer.elastic.writer import CheckpointDisk

_DAMAGED = (KeyError, ValueError, TypeError, OverflowError)  # of a foreign file's header


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The whole state, as one member writes or reads it."""

    step: int
    samples: int
    is_complete: bool
    reports: Mapping[str, Any]
    arrays: Sequence[bytearray]
    rows: Sequence[bytearray]
    path: str = ""


class Disk(CheckpointDisk):
    """The checkpoint directory of one trainer."""

    def __init__(self, control: Control, state: MpiState, directory: str) -> None:
        super().__init__(control, directory)
        self._state = state

    def save(self, checkpoint: Checkpoint, fence: Fence) -> None:
        """Write; ``checkpoint`` must not change any more."""
        step, samples = checkpoint.step, checkpoint.samples
        buffers = (*checkpoint.arrays, *checkpoint.rows)
        header = {
            "layout": self._state.layout(),
            "step": step,
            "counters": {"samples": samples, "is_complete": checkpoint.is_complete},
            "reports": checkpoint.reports,
            "bytes": [len(part) for part in buffers],
            **trial.mark(),
        }
        parts = files.parts_of(header, map(memoryview, buffers))
        self.write(parts, fence, step=step, samples=samples, layout=self._state.layout())

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint that can be trusted.

        Raises:
            ElasticError: BFT-1408 when it is of another program, BFT-1343 when the file system
                does not let it be read now.
        """
        return files.newest(self.directory, self._read)

    def _read(self, path: Path) -> Checkpoint:
        parts: list[bytearray] = []

        def allocate(header: dict[str, Any]) -> list[memoryview]:
            if header.get("layout") != self._state.layout():
                raise ElasticError(
                    "BFT-1408",
                    f"The checkpoint {path} was written by a program with another state.",
                    "Name another --checkpoint-dir, or remove the old checkpoints.",
                )
            try:
                sizes = [int(n) for n in header["bytes"]]
                if sum(sizes) > path.stat().st_size:
                    raise UnreadableError("it is cut short")
                parts.extend(bytearray(n) for n in sizes)
            except _DAMAGED as problem:
                raise UnreadableError(f"bad table of arrays: {problem}") from problem
            return [memoryview(part) for part in parts]

        with files.opened(path) as file:
            header = files.read_from(file, allocate)
        n_arrays = len(self._state.arrays)
        # Earlier releases have none, and what another trial reported is not ours.
        is_own = "reports" in header and not trial.is_inherited(header)
        try:
            return Checkpoint(
                step=int(header["step"]),
                samples=int(header["counters"]["samples"]),
                is_complete=bool(header["counters"]["is_complete"]),
                reports=header["reports"] if is_own else NO_REPORTS,
                arrays=parts[:n_arrays],
                rows=parts[n_arrays:],
                path=str(path),
            )
        except _DAMAGED as problem:
            raise UnreadableError(f"bad counters: {problem}") from problem
