"""Writes the checkpoints of a run while it trains.

Ordinarily a snapshot is taken at a step boundary and written by a thread; when the run parks or
ends, the state itself is written before the call returns (``checkpoints.disk``). ``checkpoint``
reads the files.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from pathlib import Path

from bftrainer.elastic.checkpoints import checkpoint, resharding
from bftrainer.elastic.checkpoints.disk import SLOW_S, TIMES, CheckpointDisk
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.state.continuing import Continuing
from bftrainer.elastic.state.state import Counters, Snapshots, State, StateSnapshot
from bftrainer.ground import checkpoint_gap, fence, files
from bftrainer.ground.checkpoint_gap import Ages, Cost, Slowdown
from bftrainer.ground.fence import Fence

log = logging.getLogger("bftrainer.elastic")

LEAST_SHARE = 0.5  # of the interval lies between two slow writes at least
MARGIN = 1.25  # factor by which the next write may take longer than the last


class CheckpointWriter(CheckpointDisk):
    """Writes the checkpoints of one run while this worker is rank 0."""

    def __init__(self, control: Control, state: State) -> None:
        config = control.config
        super().__init__(control, config.checkpoint_dir)
        self.interval_s = config.checkpoint_interval_s
        lives = dict(config.environment).get(checkpoint_gap.LIVES, "")
        self._lives_s = checkpoint_gap.lives_in(lives)
        self.last_s = self._came_s = self._noted_s = time.monotonic()
        self._slowdown = Slowdown()
        self._step = self._begun = -1  # last committed step, step of the newest snapshot
        self.origin = Continuing(config, state)
        self._snapshots = Snapshots(state, self.origin.header())
        self._ages = Ages(self.interval_s)
        self.cost = Cost()  # of the last checkpoint
        self._hold_s = 0.0  # for which the training stood still for the last snapshot

    def is_due(self) -> bool:
        """Return whether a periodic checkpoint should be taken at this boundary."""
        if self.directory is None or self._step <= self._begun:
            return False
        return time.monotonic() - self.last_s >= self.gap_s() and not self.is_busy()

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
        self._slowdown.note(self._noted_s - before_s, is_writing=self.is_busy())
        self._step = step
        self._ages.note(step, self._noted_s)

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
            for path in self._newest():
                with suppress(files.UnreadableError):
                    self.cost = Cost.of(files.peek(path))
                committed_s = self._ages.committed_s(files.step_of(path))
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
            self.aside(prepare)
            return
        self.last_s, self._begun = time.monotonic(), counters.step
        snapshot, step, samples = self._snapshots.take(counters), counters.step, counters.samples
        self._noted_s = time.monotonic()
        self._hold_s = self._noted_s - self.last_s
        self.aside(lambda: self._write(snapshot, step, samples, writer))

    def save_now(self, counters: Counters, writer: Fence) -> None:
        """Write the state before returning."""
        if self.directory is not None:
            snapshot = self._snapshots.collect(counters)
            self.now(lambda: self._write(snapshot, counters.step, counters.samples, writer))

    def peek(self) -> Counters:
        """Return the newest checkpoint's counters, unverified; initial ones without a file."""
        for path in self._newest():
            try:
                return Counters.known(files.peek(path).get("counters"))
            except (OSError, files.UnreadableError) as problem:
                log.warning("BFT-1413: cannot read %s: %s", path, problem)
        return Counters.known(None)

    def _newest(self) -> list[Path]:
        """Return the newest checkpoint's file, if there is one."""
        if not self.directory:
            return []
        return files.newest_first(self.directory)[:1]

    def _write(self, snapshot: StateSnapshot, step: int, samples: int, writer: Fence) -> None:
        worked_s = time.thread_time()
        header = {**snapshot.header, **self.cost.mark()}
        parts = checkpoint.parts_of(header, snapshot.tensors)
        if (count := header.get("parts", 1)) > 1 and self.directory is not None:
            path = fence.path_for(self.directory, step, writer.generation)
            if part := header["part"]:
                if fence.claim(self.directory, writer):
                    fence.write_whole(files.part_of(path, part), parts)
                return
            resharding.await_parts(path, count, max(SLOW_S, TIMES * self._wall_s))
        if self.write(parts, writer, step=step, samples=samples, layout=header["layout"]):
            slow_s = self._slowdown.lost_s(self._wall_s, time.thread_time() - worked_s)
            self.cost = Cost(hold_s=self._hold_s, slow_s=slow_s, wall_s=self._wall_s)
