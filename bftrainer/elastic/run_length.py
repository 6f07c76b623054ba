"""How long a run is, and whether a state has come so far. Pure.

What a script or a submission asks for comes in; what is left to train goes out. Used by
``run``.
"""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.state import Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Passes over the data, or samples; exactly one of them is given."""

    epochs: int | None
    samples: int | None

    def __post_init__(self) -> None:
        """Refuse what is no length."""
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
        """Return it in words."""
        return f"{self.epochs} epochs" if self.samples is None else f"{self.samples} samples"

    def left(self, counters: Counters) -> int | None:
        """Return how many samples may still be consumed; None: as many as the epochs have."""
        return None if self.samples is None else self.samples - counters.samples

    def is_done(self, counters: Counters) -> bool:
        """Whether there is nothing left to train."""
        is_reached = (self.epochs is not None and counters.epoch >= self.epochs) or (
            self.samples is not None and counters.samples >= self.samples
        )
        return is_reached or (counters.is_complete and not self._is_more(counters))

    def _is_more(self, counters: Counters) -> bool:
        """Whether it is longer than what was asked for when the run was completed.

        A script may end its run early, and that stands; unless it is asked for more.
        """
        asked = counters.asked_samples if self.epochs is None else counters.asked_epochs
        return asked is None or (self.epochs or self.samples or 0) > asked

    def open(self, counters: Counters) -> None:
        """Take back that a run is complete, where this length goes on from there."""
        if counters.is_complete and not self.is_done(counters):
            counters.is_complete = False
            counters.asked_epochs = counters.asked_samples = None

    def complete(self, counters: Counters) -> None:
        """Note that a run of this length is complete."""
        counters.is_complete = True
        counters.asked_epochs, counters.asked_samples = self.epochs, self.samples
