"""What a network learns from: steps with their rows, padded to one number of places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bftrainer.decide.policies.dl2_network import Array, Mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One step of an allocation: what was seen, and what was, or should be, done."""

    rows: Array  # (J, F)
    mask: Mask  # (J K + 1,), actions that fit
    wanted: Array  # (J K + 1,), probabilities that sum to 1; of a step taken 1 at the action


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """N steps, padded with empty places to J trainers."""

    rows: Array  # (N, J, F)
    present: Array  # (N, J), 1 or 0
    mask: Mask  # (N, J K + 1)
    wanted: Array  # (N, J K + 1)

    def __len__(self) -> int:
        """Return N."""
        return len(self.rows)

    def take(self, chosen: Sequence[int] | np.ndarray) -> Batch:
        """Return some of the steps."""
        return Batch(
            rows=self.rows[chosen],
            present=self.present[chosen],
            mask=self.mask[chosen],
            wanted=self.wanted[chosen],
        )


def batch_of(steps: Sequence[Step]) -> Batch:
    """Pad steps to the most trainers that one of them has."""
    features = steps[0].rows.shape[1]
    places = max(1, *(len(step.rows) for step in steps))
    per_row = max((len(s.mask) - 1) // len(s.rows) for s in steps if len(s.rows))
    n_actions = places * per_row + 1
    rows = np.zeros((len(steps), places, features))
    present = np.zeros((len(steps), places))
    mask = np.zeros((len(steps), n_actions), bool)
    wanted = np.zeros((len(steps), n_actions))
    for i, step in enumerate(steps):
        n_rows, n_masked = len(step.rows), len(step.mask) - 1
        rows[i, :n_rows], present[i, :n_rows] = step.rows, 1.0
        mask[i, :n_masked], mask[i, -1] = step.mask[:-1], step.mask[-1]
        wanted[i, :n_masked], wanted[i, -1] = step.wanted[:-1], step.wanted[-1]
    return Batch(rows=rows, present=present, mask=mask, wanted=wanted)
