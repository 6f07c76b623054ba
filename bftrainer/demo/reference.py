"""The fixed-size runs: the same scripts without bftrainer, in one process each.

They run during the demonstration at the lowest priority, one after the other, and give the
accuracy with which the elastic trainers are compared. Called by ``run``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bftrainer import process
from bftrainer.demo.models import DemoTrainer
from bftrainer.errors import BftError


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedRun:
    """The result of a fixed-size run."""

    accuracy: float
    wall_s: float


class References:
    """A queue of fixed-size runs, one at a time; closed, none is left."""

    def __init__(self, trainers: Sequence[DemoTrainer], directory: Path) -> None:
        self._waiting = list(trainers)
        self._directory = directory
        self._current: tuple[DemoTrainer, subprocess.Popen[bytes], float] | None = None
        self.done: dict[str, FixedRun] = {}

    def advance(self, *, is_alone: bool = False) -> bool:
        """Start the next run when the last one has ended; return whether all are done.

        Args:
            is_alone: the trainers have ended.

        Raises:
            BftError: BFT-1025, a run failed.
        """
        if self._current is not None:
            trainer, child, started_s = self._current
            if child.poll() is None:
                return False
            self._current = None
            self.done[trainer.name] = self._result(trainer, child, time.monotonic() - started_s)
        if not self._waiting:
            return True
        trainer = self._waiting.pop(0)
        out = self._out(trainer)
        out.mkdir(parents=True)
        with (out / "log.txt").open("wb") as log:
            # What is left of the processors: they must not slow the trainers down.
            nice = () if is_alone else ("nice", "-n", "19")
            child = process.spawn(
                (*nice, sys.executable, *trainer.plain_arguments()),
                env={**os.environ, "OMP_NUM_THREADS": "1", "BFT_CHECKPOINT_DIR": str(out)},
                cwd=out,
                stdout=log,
                stderr=log,
            )
        self._current = (trainer, child, time.monotonic())
        return False

    def _out(self, trainer: DemoTrainer) -> Path:
        return self._directory / trainer.name

    def _result(
        self, trainer: DemoTrainer, child: subprocess.Popen[bytes], wall_s: float
    ) -> FixedRun:
        accuracy = accuracy_in(self._out(trainer))
        if child.returncode != 0 or accuracy is None:
            raise BftError(
                "BFT-1025",
                f"The fixed-size run of {trainer.name} ended with status {child.returncode} "
                f"and {'no' if accuracy is None else 'a'} result.",
                f"Read {self._out(trainer) / 'log.txt'}.",
            )
        return FixedRun(accuracy=accuracy, wall_s=wall_s)

    def close(self) -> None:
        """End the run in progress."""
        self._waiting.clear()
        if self._current is not None:
            child = self._current[1]
            process.kill_group(child.pid, signal.SIGKILL)
            child.wait()
            self._current = None


def accuracy_in(directory: Path) -> float | None:
    """Return what a script wrote into its result.json, None while there is none."""
    try:
        return float(json.loads((directory / "result.json").read_text())["accuracy"])
    except (FileNotFoundError, ValueError):
        return None  # not written yet, or just being written
