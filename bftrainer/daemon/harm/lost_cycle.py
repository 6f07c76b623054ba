"""Whether a job lost a cycle of the scheduler by having to preempt pilots, and its length. Pure.

A batch system that preempts for a job believes that it could start at that moment but for the
pilot. Slurm's backfill then starts it in its next cycle, at least one ``bf_interval`` later,
however soon the node is free (``tests/integration/slurm_plugins/test_slurm_lost_cycle.py``, release
22.05.8).
Its main scheduler starts it at the first tick after the pilots' end, so the job loses what
they took to leave. LSF starts it in the first session of its dispatcher after their end.

squeue and sdiag do not say who started a job (``scontrol show job`` does, one request per job), so
the time says it: a main scheduler does not leave a free node to a job for longer than ``TICK_S``.
Cycles shorter than that are told from ticks by the queue: a job behind one of its partition that
lacks nodes is started by backfill alone. What cannot be told counts as a lost cycle.

A job counts once, however many nodes or parts of nodes it got; each of its hand-overs by a
preemption has the loss as its delay, so that promise and back-off see it.
Called by ``bftrainer.daemon.harm.ledger``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bftrainer.model.cluster import Job, JobState

# Slurm's main scheduler looks at a queue within 3 s by default (batch_sched_delay,
# sched_min_interval), later on a busy controller; starts are whole seconds.
TICK_S = 5.0
WHOLE_S = 1.0  # what whole seconds may lack


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """What is known of a job that had to preempt pilots of ours."""

    at_s: float | None  # the batch system's first signal; None: no agent reported one
    ran_s: float | None  # the last look that showed the pilots running; None: none did
    free_s: float  # the last of the job's nodes, or parts, that were ours was free
    start_s: float | None  # of the job, rounded down to whole seconds; None: not reported
    cycle_s: float  # as configured: at least as long is the pause between two cycles
    is_behind: bool = False  # another job blocks the main scheduler's way to it


def lost_s(seen: Preemption) -> float:
    """Return the seconds that a job lost to a cycle; 0: it lost none.

    Measured from the signal to the job's start, so up to a second too few; where one of the two is
    not known, the configured length of a cycle.
    """
    if seen.start_s is None:
        return seen.cycle_s
    is_late = seen.start_s - seen.free_s > TICK_S
    if seen.at_s is None:
        may_be = seen.ran_s is None or _spans_cycle(seen, seen.ran_s)
        if is_late or may_be:
            return seen.cycle_s
        return 0.0
    is_by_backfill = seen.is_behind and _spans_cycle(seen, seen.at_s)
    if is_late or is_by_backfill:
        return max(0.0, seen.start_s - seen.at_s)
    return 0.0


def _spans_cycle(seen: Preemption, from_s: float) -> bool:
    return seen.start_s is not None and seen.start_s + WHOLE_S - from_s >= seen.cycle_s


def is_behind(job: Job, queue: Iterable[Job]) -> bool:
    """Return whether a job of its partition that lacks nodes came before it, and still waits.

    Slurm's main scheduler closes a partition to all later jobs at the first that lacks nodes.
    """
    for rival in queue:
        waits = rival.state is JobState.PENDING and rival.is_ordinary and rival.is_entitled
        is_first = _place(rival) < _place(job)
        if waits and is_first and not {*rival.partitions}.isdisjoint(job.partitions):
            return True
    return False


def _place(job: Job) -> tuple[float, float]:
    return -job.priority, job.submit_s or 0.0
