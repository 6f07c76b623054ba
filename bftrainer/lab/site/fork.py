"""What the same machine would do from now on if bftrainer was gone: a copy of it, without.

Two schedules that differ by one start are soon different altogether: the phase of backfill alone
changes the mean wait of hours by a tenth and more. So what bftrainer adds is measured block by
block: each begins with a copy of the machine beside bftrainer, in which it is not, and both run on
to the end of the block.
"""

from __future__ import annotations

import copy
from functools import partial
from operator import itemgetter

from bftrainer.lab.site.backfill import Backfill
from bftrainer.lab.site.jobs import Job
from bftrainer.lab.site.machine import Machine


def alone(machine: Machine, backfill: Backfill) -> Machine:
    """Copy a machine, without its neighbour and the neighbour's jobs."""
    neighbour, know, kept = machine.neighbour, backfill.know, machine.events
    machine.neighbour, backfill.know = None, tuple_of_nobody
    own = [event for event in kept if _owner(event[2]) is not neighbour]
    machine.events = sorted(own, key=itemgetter(0, 1))  # a heap with holes is none
    try:
        twin = copy.deepcopy(machine)
    finally:
        machine.neighbour, backfill.know, machine.events = neighbour, know, kept
    for mine in list(twin.preemptable.values()):
        twin.cancel_preemptable(mine)
    return twin


def tuple_of_nobody() -> type[tuple[Job, ...]]:
    """Nobody is known of."""
    return tuple


def waiting_s(machine: Machine, from_s: float, to_s: float) -> float:
    """Return how long all jobs together waited in a span that is over."""
    total_s = 0.0
    for job in machine.jobs:
        if job.spec.submit_s < to_s and job.is_eligible and not job.is_refused:
            start_s = to_s if job.start_s is None else min(job.start_s, to_s)
            total_s += max(0.0, start_s - max(job.spec.submit_s, from_s))
    return total_s


def _owner(action: object) -> object:
    if isinstance(action, partial):
        action = action.func
    return getattr(action, "__self__", None)
