"""The length of a run, and what is left of it. Pure. Used by ``run``."""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.protocol import BY_AGENT, TELLS_TOTAL, WorkerConfig
from bftrainer.elastic.state import Counters

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
        """Whether there is nothing left to train."""
        is_reached = (self.epochs is not None and counters.epoch >= self.epochs) or (
            self.samples is not None and counters.samples >= self.samples
        )
        return is_reached or (counters.is_complete and not self._is_more(counters))

    def _is_more(self, counters: Counters) -> bool:
        """Whether this length exceeds the one requested when the run was completed.

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
