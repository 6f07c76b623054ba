"""Checkpoints of an MPI program: one file, written by one member, readable at any size.

Writes arrays and complete row arrays in the format of ``elastic.files`` and reports ``Saved``
to the daemon. Called by ``state_transfer``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bftrainer.elastic import files, trial
from bftrainer.elastic.control import Control
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.fence import Fence, claim, path_for, write_whole
from bftrainer.elastic.files import UnreadableError, patiently
from bftrainer.elastic.mpi.state import MpiState
from bftrainer.elastic.protocol import Saved
from bftrainer.elastic.reports import NO_REPORTS
from bftrainer.elastic.writer import telling

log = logging.getLogger("bftrainer.elastic")


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


class Disk:
    """The checkpoint directory of one trainer."""

    def __init__(self, control: Control, state: MpiState, directory: str) -> None:
        self._control = control
        self._state = state
        self.directory = Path(directory) if directory else None
        self._thread: threading.Thread | None = None

    def is_busy(self) -> bool:
        """Return whether a file is being written."""
        return self._thread is not None and self._thread.is_alive()

    def write_aside(self, checkpoint: Checkpoint, fence: Fence) -> None:
        """Write in a thread; ``checkpoint`` must not change any more."""
        self._thread = threading.Thread(
            target=self._write_logged, args=(checkpoint, fence), daemon=True
        )
        self._thread.start()

    def write(self, checkpoint: Checkpoint, fence: Fence) -> None:
        """Write before returning.

        Raises:
            OSError: the file system refuses.
        """
        if self._thread is not None:
            self._thread.join()
        self._write(checkpoint, fence)

    def _write(self, checkpoint: Checkpoint, fence: Fence) -> None:
        directory = self.directory
        if directory is None or not claim(directory, fence):
            return
        began_s = time.monotonic()
        path = path_for(directory, checkpoint.step, fence.generation)
        header = {
            "layout": self._state.layout(),
            "step": checkpoint.step,
            "counters": {"samples": checkpoint.samples, "is_complete": checkpoint.is_complete},
            "reports": checkpoint.reports,
            "bytes": [len(part) for part in (*checkpoint.arrays, *checkpoint.rows)],
            **trial.mark(),
        }
        parts = [memoryview(part) for part in (*checkpoint.arrays, *checkpoint.rows)]
        write_whole(path, files.parts_of(header, parts))
        files.prune(directory, path, self._state.layout())
        self._control.send(
            Saved(
                generation=fence.generation,
                step=checkpoint.step,
                samples=checkpoint.samples,
                path=str(path),
                wall_s=time.monotonic() - began_s,
            )
        )

    def _write_logged(self, checkpoint: Checkpoint, fence: Fence) -> None:
        if self.directory is not None:
            with telling(self._control, self.directory):
                self._write(checkpoint, fence)

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint that can be trusted.

        Raises:
            ElasticError: BFT-1408 when it is of another program, BFT-1343 when the file system
                does not let it be read now.
        """
        directory = self.directory
        if directory is None:
            return None
        for path in patiently(partial(files.newest_first, directory), directory):
            try:
                return patiently(partial(self._read, path), path)
            except (OSError, UnreadableError) as problem:
                log.warning("BFT-1413: skipped checkpoint %s: %s", path, problem)
        return None

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
            except (KeyError, ValueError, TypeError, OverflowError) as problem:
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
        except (KeyError, ValueError, TypeError, OverflowError) as problem:
            raise UnreadableError(f"bad counters: {problem}") from problem
