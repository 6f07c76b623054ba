"""How many nodes were idle and usable, sampled at equal steps. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.idle import held_down

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The usable nodes of a pool at instants that are ``step_s`` apart."""

    step_s: float
    nodes: Counts

    @property
    def duration_s(self) -> float:
        """How long the pool was watched."""
        return self.step_s * len(self.nodes)


def history_of(trace: Fragments, *, step_s: float, start_up_s: float) -> History:
    """Return the history that a trace tells.

    Args:
        trace: of the nodes that the study may use.
        step_s: between two samples. Samples, not means over a step: those would be smoother than
            the pool.
        start_up_s: from a node's becoming idle until it trains; it is not usable before.
    """
    changes = held_down(trace, start_up_s).pool_changes()
    begin_s, end_s = trace.span_s
    at_s = np.arange(begin_s, end_s, step_s)
    newest = np.searchsorted(changes.at_s, at_s, side="right") - 1
    return History(step_s=step_s, nodes=changes.pool_sizes()[newest])
