"""Data that ``Run`` and the script exchange: position, size, speed, length, metrics.

A step takes as long as its slowest worker, so step durations do not identify that worker. A
worker's own part of a step does: from the end of one reduction until it only waits in the next.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.generations import GenerationInfo
from bftrainer.elastic.loss_rule import LossRule
from bftrainer.elastic.membership import Membership
from bftrainer.elastic.protocol import BY_AGENT, TELLS_TOTAL, Progress, WorkerConfig
from bftrainer.elastic.reports import params
from bftrainer.elastic.state import Counters
from bftrainer.elastic.worker_keeper import own_name

Hook = Callable[[GenerationInfo], object]


class RunInfo:
    """Position, metrics and hooks of one training run."""

    def __init__(self, membership: Membership, rule: LossRule) -> None:
        self._membership = membership
        self._rule = rule
        self._is_rehearsing = False
        self._batch: int | None = None  # global size of the batch the script is working on
        self._is_last_pass = True  # over that batch
        membership.on_entered.append(lambda _info: rule.forget())
        self._on_committed: list[Hook] = []

    @property
    def rank(self) -> int:
        """This worker's rank in the present generation."""
        return self._membership.rank

    @property
    def size(self) -> int:
        """Number of workers in the present generation."""
        return self._membership.size

    @property
    def local_rank(self) -> int:
        """This worker's number among those of its node; never changes."""
        return self._membership.control.config.local_rank

    @property
    def local_size(self) -> int:
        """Number of workers on every node; never changes."""
        return self._membership.control.config.local_size

    @property
    def generation(self) -> int:
        """Number of the present generation; 0 before the first, and without an agent."""
        return self._membership.generation

    @property
    def epoch(self) -> int:
        """The run's epoch; a joiner's loop variable may lag behind it in its first pass."""
        return self._membership.counters.epoch

    @property
    def step_count(self) -> int:
        """Committed updates so far."""
        return self._membership.counters.step

    @property
    def samples(self) -> int:
        """Samples in committed updates so far, of all workers, over all epochs."""
        return self._membership.counters.samples

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0, which prints and writes; never while rehearsing."""
        return self.rank == 0 and not self._is_rehearsing

    @property
    def rehearsing(self) -> bool:
        """Return whether the present batch is a joiner's rehearsal, which changes nothing."""
        return self._is_rehearsing

    @property
    def is_last_pass(self) -> bool:
        """Return whether the next ``step()`` updates: no further pass over this batch follows."""
        return self._is_last_pass

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters of this trial; empty outside of a study."""
        return params()

    def report(self, value: Any) -> None:
        """Report a metric of the training as it is now, such as a validation loss.

        Rank 0's counts and is sent; other workers may report it, too. Nothing is reported
        before the first batch, in a rehearsal, and in passes or steps that are undone. A report
        at the same position replaces the one before.

        Raises:
            ElasticError: BFT-1611 when it is not a finite number.
        """
        if self._is_in_vain():
            return
        counters = self._membership.counters
        self._membership.report(
            value,
            step=counters.step,
            epoch=counters.epoch + self._is_epoch_over(),
            samples=counters.samples,
        )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients in here; the next backward pass outside averages them."""
        reducer = self._membership.reducer
        if reducer is None or not reducer.is_listening:
            yield
            return
        reducer.is_listening = False
        try:
            yield
        finally:
            reducer.is_listening = not reducer.is_finished

    def weight(self, weight: Any) -> None:
        """Say what this batch counts by: what its loss was divided by, instead of its samples.

        For a mean over something else than samples, such as tokens without padding: the update
        is then the mean over all workers' tokens. Call it for every batch, before the backward
        pass; with 0 the batch does not count.

        Args:
            weight: a finite number, 0 or more.

        Raises:
            ElasticError: BFT-1405 outside of a batch or after its backward pass; BFT-1432 when it
                is no such number, or the loss is a sum.
        """
        value = float(weight)
        if not (math.isfinite(value) and value >= 0.0):
            raise ElasticError(
                "BFT-1432",
                f"run.weight() was given {value}.",
                "Give the finite number by which the loss was divided, 0 or more.",
            )
        if self._batch is None:
            raise ElasticError(
                "BFT-1405",
                "run.weight() was called without a batch.",
                "Call it inside the loop over run.batches().",
            )
        reducer = self._membership.reducer
        if reducer is not None and reducer.is_in_hand:
            reducer.give(value)
        self._rule.refuse_weight()
        self._rule.given = value

    def _is_in_vain(self) -> bool:
        """Return whether the script's present work changes nothing."""
        return self._is_rehearsing

    def _is_epoch_over(self) -> bool:
        return False

    def on_loss(self, hook: Callable[[GenerationInfo, float, LossRule], object]) -> None:
        """Call ``hook`` with each loss of which the script takes the gradient and that counts."""

        def tell(loss: float) -> None:
            if not self._is_in_vain():
                hook(self._membership.info(), loss, self._rule)

        self._rule.on_loss = tell

    def on_generation_end(self, hook: Hook) -> None:
        """Call ``hook`` on every member when a generation ends, before state moves."""
        self._membership.on_generation_end.append(hook)

    def on_entered(self, hook: Hook) -> None:
        """Call ``hook`` whenever this worker has entered a generation."""
        self._membership.on_entered.append(hook)

    def on_committed(self, hook: Hook) -> None:
        """Call ``hook`` after every committed update."""
        self._on_committed.append(hook)


PROGRESS_INTERVAL_S = 0.5


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


MOST_TOTAL = 10**15  # more: a script that ends its run by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Epochs or samples; exactly one of them is given."""

    epochs: int | None
    samples: int | None

    def __post_init__(self) -> None:
        """Require exactly one positive length."""
        if (self.epochs is None) == (self.samples is None):
            raise ElasticError(
                "BFT-1403",
                "The length of the run is not given, or given twice.",
                "Give Run either epochs or samples (submit --epochs or --samples override both).",
            )
        if (self.epochs or self.samples or 0) < 1:
            raise ElasticError(
                "BFT-1403", "The length of the run is not positive.", "Give at least one epoch."
            )

    def __str__(self) -> str:
        """Return it as text."""
        return f"{self.epochs} epochs" if self.samples is None else f"{self.samples} samples"

    def total(self, epoch_samples: int, config: WorkerConfig) -> int:
        """Return the samples of the whole run; 0: not known, or not asked for."""
        total = self.samples or (self.epochs or 0) * epoch_samples
        is_asked = dict(config.environment).get(TELLS_TOTAL) == BY_AGENT
        return total if is_asked and total <= MOST_TOTAL else 0

    def left(self, counters: Counters) -> int | None:
        """Return how many samples are left; None: limited by epochs."""
        return None if self.samples is None else self.samples - counters.samples

    def is_done(self, counters: Counters) -> bool:
        """Return whether nothing is left to train."""
        is_reached = (self.epochs is not None and counters.epoch >= self.epochs) or (
            self.samples is not None and counters.samples >= self.samples
        )
        return is_reached or (counters.is_complete and not self._is_more(counters))

    def _is_more(self, counters: Counters) -> bool:
        """Return whether this length exceeds the one requested when the run was completed.

        A script may end its run early; the run stays complete unless more is requested.
        """
        asked = counters.asked_samples if self.epochs is None else counters.asked_epochs
        return asked is None or (self.epochs or self.samples or 0) > asked

    def open(self, counters: Counters) -> bool:
        """Reopen a completed run if this length exceeds it; return whether it did."""
        if not counters.is_complete or self.is_done(counters):
            return False
        counters.is_complete = False
        counters.asked_epochs = counters.asked_samples = None
        return True

    def complete(self, counters: Counters) -> None:
        """Record that a run of this length is complete."""
        counters.is_complete = True
        counters.asked_epochs, counters.asked_samples = self.epochs, self.samples


RECORD = "BFT_RECORD_SAMPLES"


class SampleRecord:
    """Notes which samples a worker was handed, their losses, and which updates it committed.

    Off unless ``$BFT_RECORD_SAMPLES`` names a directory, as ``bftrainer try`` sets it. Every
    process appends JSON lines to a file of its own, a batch's before the script gets it: a worker
    may be killed in a step that others commit. ``bftrainer.lab.tryout.records`` puts them together.
    """

    def __init__(self, directory: Path) -> None:
        self._out = (directory / f"samples-{own_name()}.jsonl").open("a", buffering=1)

    def handed(self, info: GenerationInfo, indices: Sequence[int], **where: int) -> None:
        """Note the samples of a pass.

        ``where``: ``at``, the place of the first in the epoch; ``of``, the epoch's samples;
        ``number`` of the pass; ``may_repeat``: the order is the script's own.
        """
        self._write("handed", info, epoch=info.epoch, indices=list(indices), **where)

    def lost(self, info: GenerationInfo, loss: float, rule: LossRule) -> None:
        """Note the loss of a pass, or of a part of one, and how passes are put together."""
        weight = rule.samples if rule.given is None else rule.given
        number = rule.passes
        self._write("loss", info, loss=loss, weight=weight, number=number, reduction=rule.kind)

    def entered(self, info: GenerationInfo) -> None:
        """Note that a generation begins, after ``step`` updates."""
        self._write("entered", info, samples=info.samples, at_s=time.time())

    def committed(self, info: GenerationInfo) -> None:
        """Note an update."""
        self._write("committed", info, samples=info.samples, at_s=time.time())

    def _write(self, kind: str, info: GenerationInfo, **what: object) -> None:
        line: dict[str, Any] = {"kind": kind, "generation": info.generation, **what}
        line |= {"attempt": info.attempt, "step": info.step, "rank": info.rank, "size": info.size}
        self._out.write(json.dumps(line) + "\n")


def record_of(run: RunInfo) -> SampleRecord | None:
    """Return the record of a run, which notes its generations and updates; None: not wanted."""
    directory = os.environ.get(RECORD)
    if not directory:
        return None
    record = SampleRecord(Path(directory))
    run.on_entered(record.entered)
    run.on_committed(record.committed)
    run.on_loss(record.lost)
    return record
