"""Counts the samples of an MPI program, whose steps may have different batches. Pure.

A batch changes between two steps, where a generation begins. From these marks follows the count
at any step, also at an earlier one that a loss leads back to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Mark = tuple[int, int, int]  # step, samples until then, samples of a step from then on


class SampleCount:
    """Samples by step; equal on all members."""

    def __init__(self, batch: int) -> None:
        self._marks: list[Mark] = [(0, 0, batch)]

    @property
    def batch(self) -> int:
        """Samples of a step, over all members."""
        return self._marks[-1][2]

    def at(self, step: int) -> int:
        """Return the samples of the first ``step`` steps."""
        since, samples, batch = next(
            (m for m in reversed(self._marks) if m[0] <= step), self._marks[0]
        )
        return samples + (step - since) * batch

    def begin(self, step: int, batch: int = 0) -> None:
        """A generation begins after ``step`` steps; ``batch``: 0 keeps the present one."""
        samples = self.at(step)
        batch = batch or self.batch
        self._marks = [m for m in self._marks if m[0] < step]
        if not self._marks or self._marks[-1][2] != batch:
            self._marks.append((step, samples, batch))

    def resume(self, step: int, samples: int) -> None:
        """Continue from a checkpoint."""
        self._marks = [(step, samples, self.batch)]

    def marks(self) -> Sequence[Mark]:
        """Return what ``adopt`` takes on another member."""
        return self._marks

    def adopt(self, marks: Iterable[Sequence[int]]) -> None:
        """Take another member's count."""
        self._marks = [(step, samples, batch) for step, samples, batch in marks]
