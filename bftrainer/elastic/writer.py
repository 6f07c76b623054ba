"""Writes the checkpoints of a run while it trains, and tells when it cannot.

Ordinarily a snapshot is taken at a step boundary and written by a thread; when the run parks or
ends, the state itself is written before the call returns. Each file is reported as ``Saved``;
``resume`` reads them.

When a write fails, training goes on and the next checkpoint is tried in its turn; until one is
complete the daemon repeats the failure reported last. All runtimes report failures by ``telling``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from bftrainer.elastic import checkpoint, checkpoint_gap, fence
from bftrainer.elastic.checkpoint_gap import Ages, Cost, Slowdown
from bftrainer.elastic.control import Control
from bftrainer.elastic.fence import Fence
from bftrainer.elastic.protocol import Saved, Unsaved
from bftrainer.elastic.state import Counters, Snapshots, State, StateSnapshot

log = logging.getLogger("bftrainer.elastic")

SLOW_S = 30.0  # for one checkpoint, ...
TIMES = 3.0  # ... or so many times as long as the last one took


@contextmanager
def telling(control: Control, directory: Path, usual_s: float = 0.0) -> Iterator[None]:
    """Tell an ``OSError`` of the block instead of raising it, and a block that does not end."""
    limit_s = max(SLOW_S, TIMES * usual_s)
    cause = f"a write to {directory} has not ended after {limit_s:.0f} s"
    timer = threading.Timer(limit_s, _tell, (control, cause))
    timer.daemon = True
    timer.start()
    try:
        yield
    except OSError as problem:
        _tell(control, f"{problem.strerror or problem} in {directory}")
    finally:
        timer.cancel()


def _tell(control: Control, cause: str) -> None:
    text = (
        f"BFT-1342: No checkpoint is being completed: {cause}. Training goes on; what it does since"
        " the last checkpoint is lost if all its nodes go."
    )
    log.warning("%s", text)
    control.send(Unsaved(cause=text))


LEAST_SHARE = 0.5  # of the interval lies between two slow writes at least
MARGIN = 1.25  # factor by which the next write may take longer than the last


class CheckpointWriter:
    """Writes the checkpoints of one run while this worker is rank 0."""

    def __init__(self, control: Control, state: State) -> None:
        config = control.config
        self.directory = Path(config.checkpoint_dir) if config.checkpoint_dir else None
        self.interval_s = config.checkpoint_interval_s
        self._lives_s = checkpoint_gap.lives_in(
            dict(config.environment).get(checkpoint_gap.LIVES, "")
        )
        self.last_s = self._came_s = self._noted_s = time.monotonic()
        self._slowdown = Slowdown()
        self._step = self._begun = -1  # last committed step, step of the newest snapshot
        self._control = control
        self._snapshots = Snapshots(state)
        self._ages = Ages(self.interval_s)
        self.cost = Cost()  # of the last checkpoint
        self._hold_s = 0.0  # for which the training stood still for the last snapshot
        self._thread: threading.Thread | None = None

    def is_due(self) -> bool:
        """Return whether a periodic checkpoint should be taken at this boundary."""
        if self.directory is None or self._step <= self._begun:
            return False
        if time.monotonic() - self.last_s < self.gap_s():
            return False
        return not self._is_writing()

    def gap_s(self) -> float:
        """Return the time from one snapshot to the next.

        If all nodes are lost at once, the loss is the age of the last *complete* checkpoint.
        So the next one is on disk when the interval ends, and earlier where a loss would cost
        more (docs/adr/0032-expected-life.md).
        """
        age_s = time.monotonic() - self._came_s
        life_s = checkpoint_gap.expected_life_s(self._lives_s, age_s)
        latest_s = self.interval_s - MARGIN * self.cost.wall_s
        return min(
            checkpoint_gap.optimum_s(self.cost, life_s),
            max(LEAST_SHARE * self.interval_s, latest_s),
        )

    def note(self, step: int) -> None:
        """Record the time of a commit, also while another worker writes the checkpoints."""
        before_s, self._noted_s = self._noted_s, time.monotonic()
        self._slowdown.note(self._noted_s - before_s, is_writing=self._is_writing())
        self._step = step
        self._ages.note(step, self._noted_s)

    def _is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def come(self) -> None:
        """Begin to train: the state is as old as it is on disk, and its life begins."""
        self.last_s = self._came_s = self._noted_s = time.monotonic()

    def begin(self) -> None:
        """Start a new run: write its first step."""
        self.last_s = float("-inf")

    def succeed(self) -> None:
        """Take over from another worker that wrote so far and is gone.

        A thread derives the time of its last write from its newest file, because the training
        must not wait for a file system. Nothing is due until that is known.
        """
        self.last_s = float("inf")
        threading.Thread(target=self._look, name="bft-checkpoint-age", daemon=True).start()

    def _look(self) -> None:
        committed_s = None
        try:
            newest = checkpoint.newest_first(self.directory)[:1] if self.directory else []
            for path in newest:
                with suppress(checkpoint.UnreadableError):
                    self.cost = Cost.of(checkpoint.peek(path))
                committed_s = self._ages.committed_s(checkpoint.step_of(path))
                if committed_s is None:  # older than this worker, at least
                    age_s = time.time() - path.stat().st_mtime
                    committed_s = min(self._came_s, time.monotonic() - age_s)
        except OSError as problem:
            log.warning("cannot list checkpoints in %s: %s", self.directory, problem)
        self.last_s = float("-inf") if committed_s is None else committed_s  # unknown: at once

    def save_aside(self, counters: Counters, writer: Fence) -> None:
        """Copy the state now, write it in a thread.

        The first call only allocates memory, in a thread; the copy is taken at a later
        boundary.
        """
        prepare = self._snapshots.preparation(counters)
        if prepare is not None:
            self._begin(prepare)
            return
        self.last_s, self._begun = time.monotonic(), counters.step
        snapshot = self._snapshots.take(counters)
        self._noted_s = time.monotonic()
        self._hold_s = self._noted_s - self.last_s
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
        """Return the newest checkpoint's counters, unverified; initial ones without a file."""
        if self.directory is None:
            return Counters.known(None)
        for path in checkpoint.newest_first(self.directory)[:1]:
            try:
                return Counters.known(checkpoint.peek(path).get("counters"))
            except (OSError, checkpoint.UnreadableError) as problem:
                log.warning("BFT-1413: cannot read %s: %s", path, problem)
        return Counters.known(None)

    def _write_logged(self, *what: Any) -> None:
        if self.directory is not None:
            with telling(self._control, self.directory, self.cost.wall_s):
                self._write(*what)

    def _write(self, snapshot: StateSnapshot, step: int, samples: int, writer: Fence) -> None:
        if self.directory is None:
            return
        started, worked = time.monotonic(), time.thread_time()
        path = fence.path_for(self.directory, step, writer.generation)
        if not fence.claim(self.directory, writer):
            return
        header = {**snapshot.header, **self.cost.mark()}
        checkpoint.write(path, header, snapshot.tensors)
        checkpoint.prune(self.directory, path, snapshot.header["layout"])
        wall_s, work_s = time.monotonic() - started, time.thread_time() - worked
        slow_s = self._slowdown.lost_s(wall_s, work_s)
        self.cost = Cost(hold_s=self._hold_s, slow_s=slow_s, wall_s=wall_s)
        self._control.send(
            Saved(
                generation=writer.generation,
                step=step,
                samples=samples,
                path=str(path),
                wall_s=wall_s,
            )
        )
