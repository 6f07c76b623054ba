"""``run.mean``, ``run.sum`` and ``run.max``. ``Run`` inherits them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bftrainer.elastic.loop.position import Position
from bftrainer.elastic.loop.run_phases import LastStep
from bftrainer.elastic.network import shared_values
from bftrainer.elastic.network.collective import settle
from bftrainer.elastic.network.shared_values import SharedValues
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.script.batch import Cutting
from bftrainer.elastic.state.state import State
from bftrainer.ground.errors import ElasticError


class CommonValues(Position):
    """Values of all workers."""

    _control: Control
    _cutting: Cutting
    _state: State
    _values: SharedValues
    _last_step: LastStep

    def _is_in_vain(self) -> bool:
        raise NotImplementedError

    def mean(self, value: Any, weight: float = 1.0) -> Any:
        """Return the mean of what all workers give, the same bits on each of them.

        For what a schedule or an early end depends on, such as the mean loss of an epoch:
        ``run.mean(total / n, weight=n)``. All workers call it at the same place; it works at every
        size, without an agent, and while evaluating. What a lost member gave does not count.
        In a rehearsal, and in passes and steps that are undone, it is this worker's own value.

        Args:
            value: a number, or a tensor of at most ``shared_values.MOST_ELEMENTS``.
            weight: of this worker's value; if all are 0, the result is NaN.

        Returns:
            A float, or a tensor of this shape.

        Raises:
            ElasticError: BFT-1405 outside of the loops; BFT-1436 for another value; BFT-1437 where
                another worker waits elsewhere.
        """
        return self._combined(shared_values.MEAN, value, float(weight))

    def sum(self, value: Any) -> Any:
        """Return the sum of what all workers give; see ``mean``."""
        return self._combined(shared_values.SUM, value)

    def max(self, value: Any) -> Any:
        """Return the largest of what all workers give, element by element; see ``mean``."""
        return self._combined(shared_values.MAX, value)

    def _combined(self, kind: str, value: Any, weight: float = 1.0) -> Any:
        numbers, remade = shared_values.numbers_in(value)
        if not self._life.is_looping:
            raise ElasticError(
                "BFT-1405",
                f"run.{kind}() was called before run.epochs().",
                "Call it inside the loop over run.epochs().",
            )
        is_early = self._life.has_batch and not self._pass.is_last
        is_alone = self._is_in_vain() or is_early or self._control.is_over
        if is_alone:
            return remade(numbers)
        result = self._values.combine(
            kind, numbers, weight=weight, step=self.step_count, ranks=self._callers()
        )
        self._state.calls = self._values.mark
        return remade(result)

    def _agree_on_end(self) -> None:
        """Require that all workers end the training here, where its length does not end it.

        Raises:
            ElasticError: BFT-1434, another worker goes on.
        """
        membership = self._membership
        group, reducer, ranks = membership.group, membership.reducer, self._callers()
        is_void = reducer is not None and reducer.broken is not None
        if group is None or not group.compares or is_void or len(ranks) < self.size:
            return
        self._values.combine(shared_values.END, (), weight=1.0, step=self.step_count, ranks=ranks)
        # The store is rank 0's: it must not end before all have read.
        settle(group.control.all_reduce(torch.zeros(1)), membership.must_abandon)

    def _callers(self) -> Sequence[int]:
        """Return the ranks that run the script's code at this point."""
        short_batch = self._last_step.short_batch
        if short_batch is None:
            return range(self.size)
        return range(self._cutting.active(short_batch, self.size))
