"""The idle nodes of all of Summit over two weeks, counted as section 2.1 does; nothing is replayed.

The published log has a row per observed change. Its replayer starts at row 1000, and there the
paper's two weeks begin (github.com/dummy4binary/BFTrainer-Log-Replayer).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bftrainer.batch.traces import Fragments, read_trace
from bftrainer.lab.papers.bftrainer.scenario import PAPER_START_S

SHORT_S = 600.0  # "less than 10 minutes"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCount:
    """Asked for as a replay is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRecord:
    """What was counted."""

    hours: float
    nodes: int  # of the machine
    node_h: float  # idle
    events: int  # instants at which nodes join or leave
    joins: int  # of them, those at which a node joins
    leaves: int
    short_count: float  # part of the fragments shorter than ``SHORT_S``
    short_time: float  # their part of the node-time

    @property
    def n_eq(self) -> float:
        """Mean number of idle nodes."""
        return self.node_h / self.hours

    def per_hour(self, number: int) -> float:
        """Return a number per hour."""
        return number / self.hours


def count_file(file: Path | None) -> MachineRecord | None:
    """Count a file of two weeks; None without one.

    Raises:
        TraceError: it cannot be read.
    """
    if file is None:
        return None
    return count(read_trace(file), PAPER_START_S)


def count(trace: Fragments, begin_s: float) -> MachineRecord:
    """Count a trace from an instant to its end; a change at that instant counts.

    At the trace's end every fragment is cut, and who joins or leaves there is not known; that
    something did is, if it was observed.
    """
    end_s = trace.span_s[1]
    part = trace.restrict(start_s=begin_s)
    starts_s, ends_s, observed_s = map(np.unique, (trace.start_s, trace.end_s, trace.observed_s))
    is_short = part.length_s < SHORT_S
    return MachineRecord(
        hours=part.duration_s / 3600.0,
        nodes=len(part.names),
        node_h=part.node_seconds() / 3600.0,
        events=int((observed_s >= begin_s).sum()),
        joins=int((starts_s >= begin_s).sum()),
        leaves=int(((ends_s >= begin_s) & (ends_s < end_s)).sum()),
        short_count=float(is_short.mean()),
        short_time=float(part.length_s[is_short].sum()) / part.node_seconds(),
    )
