"""The length of a run, its speed, and the last step that was logged.

A step takes as long as its slowest worker, so step durations do not identify that worker. A
worker's own part of a step does: from the end of one reduction until it only waits in the next.
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bftrainer.elastic.process.generations import GenerationInfo
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import BY_AGENT, RUN_ID, TELLS_TOTAL, Progress, WorkerConfig
from bftrainer.ground.regular_file import open_file, read_file

if TYPE_CHECKING:  # they import torch, which MPI programs do without
    from bftrainer.elastic.state.state import Counters

PROGRESS_INTERVAL_S = 0.5
LOGGED = "logged-step"  # of the newest generation's rank 0
MOST_LOGGED = 4096  # bytes
MOST_TOTAL = 10**15  # samples of a run; more: a script that ends its run by itself


class StepDurations:
    """Durations of the last steps at the present size."""

    def __init__(self, total: int = 0) -> None:
        self._total = total  # samples of the whole run
        self._step_s: deque[float] = deque(maxlen=20)
        self._own_s: deque[float] = deque(maxlen=20)
        self._last_s: float | None = None
        self._batch = 0
        self._reported_s = 0.0

    def note(self, batch: int, waited_s: float | None = None) -> None:
        """Record a committed step over ``batch`` samples.

        Args:
            batch: of all workers together.
            waited_s: time this worker only waited for others; None: not measured (one worker,
                or not a full batch).
        """
        now = time.monotonic()
        if self._last_s is not None:
            self._step_s.append(now - self._last_s)
            if waited_s is not None:
                self._own_s.append(max(0.0, now - self._last_s - waited_s))
        self._last_s = now
        self._batch = batch

    def forget(self) -> None:
        """Clear the durations because the size changes."""
        self._last_s = None
        self._step_s.clear()
        self._own_s.clear()

    def is_due(self) -> bool:
        """Return whether there is something to report and the last report is old enough."""
        return bool(self._step_s) and time.monotonic() - self._reported_s >= PROGRESS_INTERVAL_S

    def progress(self, info: GenerationInfo, noise_scale: float = 0.0) -> Progress:
        """Return the report."""
        self._reported_s = time.monotonic()
        step_s = median(self._step_s)
        return Progress(
            generation=info.generation,
            step=info.step,
            epoch=info.epoch,
            samples=info.samples,
            step_s=step_s,
            samples_per_s=self._batch / step_s if step_s > 0 else 0.0,
            own_s=median(self._own_s) if self._own_s else 0.0,
            share=info.share,
            total=self._total,
            noise_scale=noise_scale,
        )


class LoggedStep:
    """The last step that went to the trackers, for the next rank 0, in the checkpoint directory.

    It is written before the step is logged: where rank 0 is killed in between, one step is missing
    and none stands there twice.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._path: Path | None = None
        if config.checkpoint_dir:
            self._path = Path(config.checkpoint_dir, LOGGED)
        self._run_id = dict(config.environment).get(RUN_ID, "")
        self._is_ours = False  # this worker was rank 0 in the last generation
        self._reached = self._written = -1  # by others; by us

    def entered(self, info: GenerationInfo) -> None:
        """Read how far others came if this worker is rank 0 now and was not."""
        if info.rank == 0 and not self._is_ours and self._path is not None:
            with suppress(OSError, ValueError):  # none yet, or of a writer that was killed
                step, run_id = read_file(self._path, MOST_LOGGED).decode().split()[:2]
                self._reached = int(step) if run_id == self._run_id else -1
        self._is_ours = info.rank == 0

    def admits(self, step: int) -> bool:
        """Return whether no other worker logged ``step``, and note that it is logged now."""
        if step <= self._reached:
            return False
        if step != self._written and self._path is not None:
            self._written = step
            with suppress(OSError):  # a full disk: others may log these steps again
                fd = open_file(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
                with os.fdopen(fd, "wb") as file:
                    file.write(f"{step:20d} {self._run_id}\n".encode())
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Epochs, samples or steps (updates); exactly one of them is given."""

    epochs: int | None
    samples: int | None
    steps: int | None = None

    def __post_init__(self) -> None:
        """Require exactly one positive length."""
        lengths = [self.epochs, self.samples, self.steps]
        if lengths.count(None) != len(lengths) - 1:
            raise ElasticError(
                "BFT-1403",
                "The length of the run is not given, or given twice.",
                "Give Run one of epochs, samples and steps (those of submit override them).",
            )
        if (self.epochs or self.samples or self.steps or 0) < 1:
            raise ElasticError(
                "BFT-1403", "The length of the run is not positive.", "Give at least one epoch."
            )

    @classmethod
    def asked(
        cls, config: WorkerConfig, epochs: int | None, samples: int | None, steps: int | None
    ) -> Length:
        """Return what the submission asks for, else what the script does."""
        submitted = (config.epochs, config.samples, config.steps)
        if submitted != (None, None, None):
            epochs, samples, steps = submitted
        return cls(epochs=epochs, samples=samples, steps=steps)

    def __str__(self) -> str:
        """Return it as text."""
        if self.steps is not None:
            return f"{self.steps} steps"
        if self.samples is not None:
            return f"{self.samples} samples"
        return f"{self.epochs} epochs"

    def total(self, epoch_samples: int, config: WorkerConfig, batch: int = 0) -> int:
        """Return the samples of the whole run; 0: not known, or not asked for.

        Steps are counted as over ``batch`` samples, the last of an epoch over what is left of it;
        where the global batch follows the size it is an estimate.
        """
        total = self.samples or (self.epochs or 0) * epoch_samples
        if self.steps is not None and batch and epoch_samples:
            epochs, steps = divmod(self.steps, -(-epoch_samples // batch))
            total = epochs * epoch_samples + steps * batch
        is_asked = dict(config.environment).get(TELLS_TOTAL) == BY_AGENT
        if not is_asked or total > MOST_TOTAL:
            return 0
        return total

    def left(self, counters: Counters) -> int | None:
        """Return how many samples are left; None: limited by epochs or steps."""
        if self.samples is None:
            return None
        return self.samples - counters.samples

    def is_done(self, counters: Counters) -> bool:
        """Return whether nothing is left to train."""
        if self.steps is not None:
            is_reached = counters.step >= self.steps
        elif self.samples is not None:
            is_reached = counters.samples >= self.samples
        else:
            is_reached = self.epochs is not None and counters.epoch >= self.epochs
        return is_reached or (counters.is_complete and not self._is_more(counters))

    def _is_more(self, counters: Counters) -> bool:
        """Return whether this length exceeds the one requested when the run was completed.

        A script may end its run early; the run stays complete unless more is requested.
        """
        before = counters.asked_epochs
        if self.steps is not None:
            before = counters.asked_steps
        elif self.samples is not None:
            before = counters.asked_samples
        return before is None or (self.epochs or self.samples or self.steps or 0) > before

    def open(self, counters: Counters) -> bool:
        """Reopen a completed run if this length exceeds it; return whether it did."""
        if not counters.is_complete or self.is_done(counters):
            return False
        counters.is_complete = False
        counters.asked_epochs = counters.asked_samples = counters.asked_steps = None
        return True

    def complete(self, counters: Counters) -> None:
        """Record that a run of this length is complete."""
        counters.is_complete = True
        counters.asked_epochs, counters.asked_samples = self.epochs, self.samples
        counters.asked_steps = self.steps
