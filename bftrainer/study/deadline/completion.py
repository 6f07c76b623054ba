"""When a study is done, if so many nodes are there at each step. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bftrainer.study.deadline.history import Counts

Floats = NDArray[np.float64]


def finish_s(nodes: Counts, rates: Floats, step_s: float) -> Floats:
    """Return when each row of ``nodes`` is through all stages; infinity: not within its steps.

    Args:
        nodes: usable nodes, one row for each future, one column for each step.
        rates: share of a stage that is done in a second, one row for each stage, one column for
            each number of nodes from 0 on; the last one counts for more nodes, too.
        step_s: how long a step is.
    """
    steps = nodes.shape[1]
    rows, at = np.arange(len(nodes)), np.zeros(len(nodes))
    held = np.minimum(nodes, rates.shape[1] - 1)
    for rate in rates:
        done = np.zeros((len(nodes), steps + 1))
        np.cumsum(rate[held] * step_s, axis=1, out=done[:, 1:])
        goal = _between(done, rows, np.minimum(at, steps)) + 1.0
        step = (done < goal[:, None] - 1e-9).sum(axis=1)  # the first at which it is done
        is_done = (step <= steps) & np.isfinite(at)
        step = np.clip(step, 1, steps)
        low, high = done[rows, step - 1], done[rows, step]
        part = (goal - low) / np.where(high > low, high - low, 1.0)
        # A stage that is done at once does not go back behind the one before.
        at = np.where(is_done, np.maximum(at, step - 1 + np.clip(part, 0.0, 1.0)), np.inf)
    return at * step_s


def _between(done: Floats, rows: Counts, at: Floats) -> Floats:
    step = np.minimum(at.astype(np.int64), done.shape[1] - 2)
    low, high = done[rows, step], done[rows, step + 1]
    found: Floats = low + (at - step) * (high - low)
    return found
