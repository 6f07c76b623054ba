"""The time for which a log of jobs is complete: only there a node without a job was idle. Pure.

Logs select jobs by when they ended, ran or were submitted. Outside that time, and for as long as
a job may take at its edges, jobs are missing and their nodes look idle. Each reader says what its
records prove (``Coverage``); ``window_of`` compares that with what the user says.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bftrainer.batch.traces.fragments import HOUR_S, UsedNodes
from bftrainer.batch.traces.text import ReadOptions, TraceError, clock
from bftrainer.model.quantities import time_span

LEAST_RECORDED = 0.9  # of the time that the user names; a quiet machine records less than all
SHORT_S = 180.0  # less that is left out is not worth a note
LEAST_LEFT = 0.5  # of the log: if its doubtful ends are longer, they are kept, with a warning

RAMP_PARTS = 24  # of the window
RAMP_LEAST_CHANGES = 20 * RAMP_PARTS  # of the nodes in use: fewer are no steady use
RAMP_QUIET = 0.1  # the quantile of the other parts that is called quiet
RAMP_SHARE = 0.8  # of the quiet parts' use: a part at the edge below it lacks jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What the records of a log say of its time; seconds of the epoch."""

    recorded_s: tuple[float, float]  # the first and the last instant of a job on nodes
    complete_s: tuple[float, float]  # between them no job is missing
    why: str  # a clause: why not the whole recorded time is complete
    is_proven: bool = True  # False: complete if no missing job was longer than the longest listed


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenTime:
    """The time that is taken, and what is to be said of it."""

    span_s: tuple[float, float]
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def window_of(coverage: Coverage, options: ReadOptions, name: str) -> TakenTime:
    """Return the time that the user names, and what is proven where none is named.

    Raises:
        TraceError: BFT-4005, the log has hardly a record of the time that is named; BFT-4008, it
            proves of no time that it is complete.
    """
    warnings: list[str] = []
    begin_s, end_s = coverage.complete_s
    first_s, last_s = coverage.recorded_s
    if not coverage.is_proven and end_s - begin_s < LEAST_LEFT * (last_s - first_s):
        begin_s, end_s = first_s, last_s
        if options.start_s is None or options.end_s is None:
            warnings.append(
                f"{coverage.why}: the idle share may be overstated at the ends. Give a longer "
                "log, or --start and --end of the time for which it lists all jobs"
            )
    if options.start_s is not None:
        begin_s = options.start_s
    if options.end_s is not None:
        end_s = options.end_s
    _check(coverage, options, (begin_s, end_s), name)
    left_out = [
        f"{time_span(seconds)} at the {edge}"
        for seconds, edge, asked_s in (
            (begin_s - first_s, "beginning", options.start_s),
            (last_s - end_s, "end", options.end_s),
        )
        if asked_s is None and seconds > SHORT_S
    ]
    sentences: tuple[str, ...] = ()
    if left_out:
        sentences = (f"{' and '.join(left_out)} are left out: {coverage.why}",)
    return TakenTime(
        span_s=(begin_s, end_s),
        left_out=sentences,
        warnings=tuple(warnings),
    )


def _check(
    coverage: Coverage, options: ReadOptions, span_s: tuple[float, float], name: str
) -> None:
    begin_s, end_s = span_s
    first_s, last_s = coverage.recorded_s
    is_named = options.start_s is not None or options.end_s is not None
    if not begin_s < end_s and not is_named:
        raise TraceError(
            "BFT-4008",
            f"{name}: of no time in it all jobs are known: {coverage.why}.",
            "Export a longer time, or give --start and --end of the time that was exported.",
        )
    recorded_s = min(end_s, last_s) - max(begin_s, first_s)
    if not begin_s < end_s or recorded_s < LEAST_RECORDED * (end_s - begin_s):
        raise TraceError(
            "BFT-4005",
            f"The jobs of {name} ran from {clock(first_s)} to {clock(last_s)}, which is less than "
            f"{LEAST_RECORDED:.0%} of {clock(begin_s)} to {clock(end_s)}.",
            "Choose --start, --end and --hours inside the time that was exported.",
        )


def ramp_warnings(used: UsedNodes, span_s: tuple[float, float]) -> list[str]:
    """Warn where fewer nodes are in use at an edge than in the quietest of the other time.

    This does not ask why: whatever was assumed of the log, jobs that are missing show here.
    """
    if len(used.at_s) < RAMP_LEAST_CHANGES:
        return []
    begin_s, end_s = span_s
    edges = np.linspace(begin_s, end_s, RAMP_PARTS + 1).tolist()
    means = []
    for from_s, to_s in pairwise(edges):
        means.append(used.node_seconds((from_s, to_s)) / (to_s - from_s))
    hours = (end_s - begin_s) / RAMP_PARTS / HOUR_S
    warnings = []
    for edge, order, way in (
        ("beginning", means, "a later --start"),
        ("end", means[::-1], "an earlier --end"),
    ):
        quiet = float(np.quantile(order[1:], RAMP_QUIET))
        if order[0] < RAMP_SHARE * quiet:
            warnings.append(
                f"in the {hours:.1f} h at the {edge} {order[0]:.1f} nodes are in use, in quiet "
                f"hours of the rest {quiet:.1f}: jobs may be missing there, and their nodes look "
                f"idle. Compare with {way}"
            )
    return warnings


@dataclass(slots=True)
class RecordedTimes:
    """First and last instants of the records of one log, filled by its reader."""

    first_start_s: float = np.inf  # of jobs on nodes
    last_start_s: float = -np.inf
    last_run_end_s: float = -np.inf
    first_end_s: float = np.inf  # of all jobs
    last_end_s: float = -np.inf
    first_eligible_s: float = np.inf
    last_eligible_s: float = -np.inf
    longest_run_s: float = 0.0
    longest_stay_s: float = 0.0  # from eligible to the end

    def eligible(self, at_s: float) -> None:
        """Note when a job could have started, or was submitted."""
        self.first_eligible_s = min(self.first_eligible_s, at_s)
        self.last_eligible_s = max(self.last_eligible_s, at_s)

    def ended(self, at_s: float) -> None:
        """Note the end of a job, whether it ever ran or not; infinite: it has none."""
        if at_s < np.inf:
            self.first_end_s = min(self.first_end_s, at_s)
            self.last_end_s = max(self.last_end_s, at_s)

    def ran(self, start_s: float, end_s: float, eligible_s: float | None = None) -> None:
        """Note a run on nodes; an infinite end: it still ran."""
        self.first_start_s = min(self.first_start_s, start_s)
        self.last_start_s = max(self.last_start_s, start_s)
        if end_s < np.inf:
            self.last_run_end_s = max(self.last_run_end_s, end_s)
            self.longest_run_s = max(self.longest_run_s, end_s - start_s)
            if eligible_s is not None:
                self.longest_stay_s = max(self.longest_stay_s, end_s - eligible_s)

    def recorded_s(self) -> tuple[float, float]:
        """Return the first and the last instant at which a job was on nodes."""
        return self.first_start_s, max(self.last_start_s, self.last_run_end_s)
