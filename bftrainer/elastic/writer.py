"""Writes the state of a run as checkpoints beside the training.

``membership`` hands over at a step boundary: a snapshot written by a thread in the
ordinary case, the state itself written before the call returns when the run parks or
ends. Each file is reported as ``Saved``. Reading them is ``resuming``'s.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bftrainer.elastic import checkpoint, fence
from bftrainer.elastic.checkpoint_age import Ages
from bftrainer.elastic.control import Control
from bftrainer.elastic.fence import Fence
from bftrainer.elastic.protocol import Saved
from bftrainer.elastic.state import Counters, State
from bftrainer.elastic.state_snapshot import Snapshots, StateSnapshot

log = logging.getLogger("bftrainer.elastic")

LEAST_SHARE = 0.5  # of the interval that lies between two writes, however long they take
MARGIN = 1.25  # the next write may take so much longer than the last
UNKNOWN_SHARE = 0.1  # of the interval is left to a write, as long as none was seen


class CheckpointWriter:
    """Writes the checkpoints of one run while this worker is rank 0."""

    def __init__(self, control: Control, state: State) -> None:
        config = control.config
        self.directory = Path(config.checkpoint_dir) if config.checkpoint_dir else None
        self.interval_s = config.checkpoint_interval_s
        self.last_s = self._came_s = time.monotonic()
        self._step = self._begun = -1  # committed here, and in the newest snapshot
        self._control = control
        self._snapshots = Snapshots(state)
        self._ages = Ages(self.interval_s)
        self.wall_s = 0.0  # of the last write
        self._thread: threading.Thread | None = None

    def is_due(self) -> bool:
        """Whether a periodic checkpoint should be taken at this boundary."""
        if self.directory is None or self._step <= self._begun:
            return False
        if time.monotonic() - self.last_s < self.gap_s():
            return False
        return self._thread is None or not self._thread.is_alive()

    def gap_s(self) -> float:
        """Return how long after a snapshot the next one is taken.

        Early enough that it is on disk when the interval is over: what all nodes lost at
        once may cost is the age of the last *complete* checkpoint.
        """
        return max(LEAST_SHARE * self.interval_s, self.interval_s - MARGIN * self.wall_s)

    def note(self, step: int) -> None:
        """Remember when a step was committed here, whoever writes the checkpoints."""
        self._step = step
        self._ages.note(step, time.monotonic())

    def begin(self) -> None:
        """A run starts from nothing: its first step is written, then one per interval."""
        self.last_s = float("-inf")

    def succeed(self) -> None:
        """Write from now on: another worker did, which is gone.

        When it did is what its newest file says, read in a thread: nobody waits for a
        file system here. Nothing is due until that is known.
        """
        self.last_s = float("inf")
        threading.Thread(target=self._look, name="bft-checkpoint-age", daemon=True).start()

    def _look(self) -> None:
        committed_s = None
        try:
            newest = checkpoint.newest_first(self.directory)[:1] if self.directory else []
            for path in newest:
                committed_s = self._ages.committed_s(checkpoint.step_of(path))
                if committed_s is None:  # older than this worker, at least
                    age_s = time.time() - path.stat().st_mtime
                    committed_s = min(self._came_s, time.monotonic() - age_s)
        except OSError as problem:
            log.warning("cannot look for checkpoints in %s: %s", self.directory, problem)
        if committed_s is None:
            self.last_s = float("-inf")  # nobody knows how long ago: at once
        else:
            self.last_s = committed_s - UNKNOWN_SHARE * self.interval_s

    def save_aside(self, counters: Counters, writer: Fence) -> None:
        """Copy the state now, write it in a thread.

        The first time memory for it is made in a thread, and the copy is taken at a later
        boundary.
        """
        prepare = self._snapshots.preparation(counters)
        if prepare is not None:
            self._begin(prepare)
            return
        self.last_s, self._begun = time.monotonic(), counters.step
        snapshot = self._snapshots.take(counters)
        self._begin(partial(self._write_logged, snapshot, counters.step, counters.samples, writer))

    def _begin(self, work: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=work, name="bft-checkpoint", daemon=True)
        self._thread.start()

    def save_now(self, counters: Counters, writer: Fence) -> None:
        """Write the state before returning."""
        if self.directory is None:
            return
        if self._thread is not None:
            self._thread.join()
        snapshot = self._snapshots.collect(counters)
        self._write(snapshot, counters.step, counters.samples, writer)

    def peek(self) -> Counters:
        """Return the newest checkpoint's counters, unverified; those of a start without one."""
        if self.directory is None:
            return Counters.known(None)
        for path in checkpoint.newest_first(self.directory)[:1]:
            try:
                return Counters.known(checkpoint.peek(path).get("counters"))
            except (OSError, checkpoint.UnreadableError) as problem:
                log.warning("BFT-1413: cannot read %s: %s", path, problem)
        return Counters.known(None)

    def _write_logged(self, *what: Any) -> None:
        try:
            self._write(*what)
        except OSError as problem:  # a full disk must not end the training
            log.warning("checkpoint not written: %s", problem)

    def _write(self, snapshot: StateSnapshot, step: int, samples: int, writer: Fence) -> None:
        if self.directory is None:
            return
        started = time.monotonic()
        path = fence.path_for(self.directory, step, writer.generation)
        if not fence.claim(self.directory, writer):
            return
        checkpoint.write(path, snapshot.header, snapshot.tensors)
        checkpoint.prune(self.directory, path, snapshot.header["layout"])
        self.wall_s = time.monotonic() - started
        self._control.send(
            Saved(
                generation=writer.generation,
                step=step,
                samples=samples,
                path=str(path),
                wall_s=self.wall_s,
            )
        )
