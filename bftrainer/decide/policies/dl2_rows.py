"""What the network of dl2 sees of each trainer: a row of numbers of about 1, free of units.

DL2 (arXiv 1909.06040, section 4.1) tells models apart by a one-hot code, which says nothing of a
model that was not trained with. Here the shape of a trainer's curve stands for it, and what a
rescale costs; times and gains are relative to the mean of the trainers seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bftrainer.decide.policies.base import Context
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.dl2_network import Array
from bftrainer.decide.policies.greedy_steps import samples_ahead

FEATURES = 16
HOUR_S = 3600.0
FAR = 3.0  # logarithms are cut off here
TINY = 1e-12

# Columns that change with the size of a trainer.
SIZE, SHARE, RETURNS, EFFICIENCY, MARGINAL, GAIN = range(6)
TIME_LEFT = 6  # relative to the mean, as GAIN


class Rows:
    """The rows of the trainers seen, kept up to date while nodes are handed out."""

    def __init__(self, handing: Handing, context: Context, seen: Sequence[int]) -> None:
        """Fill in the rows of trainers without nodes.

        Args:
            handing: the pool.
            context: what is known of the trainers.
            seen: indices of the trainers, in the order of the rows.
        """
        self._handing, self.seen = handing, list(seen)
        self._place = {j: place for place, j in enumerate(seen)}
        self._rates = {j: handing.rates(j) for j in seen}
        self._ahead = {j: samples_ahead(handing, context, j) for j in seen}
        self._total = max(1, sum(handing.counts))
        self._rows = np.zeros((len(self.seen), FEATURES))
        for j in seen:
            self._begin(j, context)
            self.update(j)

    def _begin(self, j: int, context: Context) -> None:
        """Fill in what does not change with its size."""
        handing, row = self._handing, self._rows[self._place[j]]
        trainer, t_fwd_s = handing.trainers[j], max(handing.problem.t_fwd_s, TINY)
        known = context.trainers[trainer.trainer_id]
        one, ahead = self._one(j), self._ahead[j]
        has_goal = known.left_samples is not None
        goal = known.done_samples + ahead
        row[TIME_LEFT] = math.log(max(ahead, TINY) / max(one, TINY))
        row[7:] = (
            known.done_samples / goal if has_goal and goal else 0.0,
            float(has_goal),
            math.log1p(max(0.0, context.now_s - known.submitted_s) / HOUR_S) / FAR,
            math.log1p(known.attained_node_s / HOUR_S) / FAR,
            min(trainer.rescale_up_s / t_fwd_s, FAR),
            min(trainer.rescale_down_s / t_fwd_s, FAR),
            len(handing.pool.present[j]) / max(1, self.largest(j)),
            trainer.n_min / max(1, self.largest(j)),
            1.0,
        )

    def _one(self, j: int) -> float:
        """Samples per second and node at n_min."""
        rates, n_min = self._rates[j], self._handing.trainers[j].n_min
        return rates[n_min] / n_min if n_min < len(rates) else 0.0

    def largest(self, j: int) -> int:
        """Return the largest size of a trainer, were it alone."""
        return len(self._rates[j]) - 1

    def next_size(self, j: int) -> int:
        """Return the size that one action more gives."""
        size = self._handing.size(j)
        return size + 1 if size else self._handing.trainers[j].n_min

    def update(self, j: int) -> None:
        """Fill in what changes with a trainer's size."""
        handing, row, rates = self._handing, self._rows[self._place[j]], self._rates[j]
        size, after, one = handing.size(j), self.next_size(j), max(self._one(j), TINY)
        is_over = after >= len(rates)
        more = 0.0 if is_over else max(0.0, rates[after] - rates[size]) / (after - size)
        row[SIZE] = size / max(1, self.largest(j))
        row[SHARE] = size / self._total
        row[RETURNS] = float(size < len(handing.pool.present[j]))
        row[EFFICIENCY] = 0.0 if is_over else rates[after] / after / one
        row[MARGINAL] = more / one
        row[GAIN] = math.log(max(more, TINY) / max(self._ahead[j], TINY))

    def rows(self) -> Array:
        """Return the rows (J, F), gain and time left relative to the mean of those seen."""
        found = self._rows.copy()
        for column in (GAIN, TIME_LEFT):
            found[:, column] -= found[:, column].mean()
        np.clip(found, -FAR, FAR, out=found)
        return found

    def worth(self, j: int) -> float:
        """Return the share of its work done until T_fwd, less what a change of size costs."""
        handing, rates = self._handing, self._rates[j]
        trainer, size, now = handing.trainers[j], handing.size(j), len(handing.pool.present[j])
        cost_s = 0.0
        if size != now:
            cost_s = trainer.rescale_up_s if size > now else trainer.rescale_down_s
        rate_now = rates[min(now, len(rates) - 1)]
        done = handing.problem.t_fwd_s * rates[size] - cost_s * rate_now
        return done / max(self._ahead[j], TINY)
