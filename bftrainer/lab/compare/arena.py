"""The interface of an arena: a workload on a machine that a policy can be tried on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What came of one play; None: over nothing."""

    # Submission to end. Who has not ended by the end of the play counts until then, so that a
    # policy gains nothing by ending short trainers alone.
    jct_mean_s: float | None
    jct_p95_s: float | None
    makespan_s: float | None  # begin to the last end; None: not all ended
    utilization: float | None  # U; None: the arena has no reference
    node_h: float  # node-hours that trainers had (of GPUs, where a node is one)
    fairness: float | None  # Jain's index
    rescales: int
    decision_ms: float  # mean
    completed: int
    submitted: int
    job_wait_s: float | None = None  # mean of ordinary jobs; None: the arena has none
    job_wait_added: float | None = None  # of it, because of the trainers


class Arena(Protocol):
    """A workload on a machine, drawn anew for each seed. Pickled."""

    @property
    def name(self) -> str:
        """The name by which users choose it."""

    @property
    def about(self) -> str:
        """What is played, one sentence."""

    def play(self, policy: str, seed: int) -> Score:
        """Play a policy; the same seed gives all policies the same.

        Raises:
            UsageError: BFT-3050, there is no such policy.
        """


def completion(
    times_s: Sequence[float], submitted: int, last_s: float
) -> tuple[float | None, float | None, float | None]:
    """Return mean and 95th percentile of completion times, and the makespan."""
    if not times_s:
        return None, None, None
    makespan_s = last_s if len(times_s) == submitted else None
    return float(np.mean(times_s)), float(np.quantile(times_s, 0.95)), makespan_s
