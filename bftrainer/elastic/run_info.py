"""What ``Run`` tells the script and is told by it: position, size, metrics and hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.loss_rule import LossRule
from bftrainer.elastic.membership import GenerationInfo, Membership
from bftrainer.elastic.parameters import params

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
        """Whether this is rank 0, which prints and writes; never while rehearsing."""
        return self.rank == 0 and not self._is_rehearsing

    @property
    def rehearsing(self) -> bool:
        """Whether the present batch is a joiner's rehearsal, which changes nothing."""
        return self._is_rehearsing

    @property
    def is_last_pass(self) -> bool:
        """Whether the next ``step()`` updates: no further pass over this batch follows."""
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
        """Whether what the script does now changes nothing."""
        return self._is_rehearsing

    def _is_epoch_over(self) -> bool:
        """Whether all batches of the present epoch are committed."""
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
