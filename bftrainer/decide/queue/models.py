"""The queue models: one for the batch system's printed plan, and LSF's; found by name.

``QueueModel`` hides the differences between schedulers from ``decide``: which jobs may start, in
which order, on which nodes, and when a node is planned for another use.

The first is for adapters that provide a plan as data: ``local``, and Slurm with its backfill plan.
What ends a node's idle gap (docs/design/give-back.md has the reasons):

* a future reservation: no job may run into it, ours or not;
* a planned start on that node: jobs that end before may use the node until then, and so may we.

The planning window (bf_window) itself ends nothing: jobs not planned within it cannot start
within it unless others end early, and then the plan moves. ``decide.claims`` requests no pilot
that lasts longer than the window.

Slurm plans every blocked job, and later ones may not delay it. LSF serves queues by priority and
each queue in order of submission, passes over a job that cannot start, and reserves slots only in
queues with SLOT_RESERVE; others may use those until the planned start (BACKFILL). Source: LSF 10.1,
"Reserve resources" and "Backfill scheduling"; measured on volclava 2.2. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

from bftrainer.decide.queue.backfill import BackfillPlan
from bftrainer.decide.queue.requests import Requests
from bftrainer.model.census import NodeCensus
from bftrainer.model.cluster import BEFORE_ALL, Job, Reservation
from bftrainer.model.node_sets import NodeSet
from bftrainer.model.queue import GapEnd, JobNeeds, Then, earliest, slot_begin_s

# A planned start older than this many cycles is stale: Slurm keeps the last estimate of a job
# that it no longer tries (bf_max_job_test).
_STALE_CYCLES = 2.0


class PrintedQueue:
    """``QueueModel`` of a complete snapshot; each part is computed on demand."""

    def __init__(self, census: NodeCensus, now_s: float, cycle_s: float) -> None:
        """Put the jobs in order.

        Args:
            census: of a complete snapshot.
            now_s: on the batch system's clock.
            cycle_s: time between two passes of its scheduler.
        """
        self.now_s = now_s
        self._snapshot, self._cycle_s = census.snapshot, cycle_s
        self._census = census
        self.sets = census.sets
        # By partition tier, priority, then age; before them those that precede all.
        self.jobs = self._ordered()
        self.requests = Requests(census, now_s)  # what each job requests, regardless of others

    def _ordered(self) -> list[Job]:
        jobs, ranks = list(self._census.pending_jobs), dict[tuple[str, ...], int]()
        tiers = {partition.name: partition.tier for partition in self._snapshot.partitions}
        for job in jobs:
            if job.partitions not in ranks:
                its_tiers = [tiers.get(name, 0) for name in job.partitions]
                ranks[job.partitions] = -max(its_tiers, default=0)
        jobs.sort(key=lambda j: (ranks[j.partitions], -j.priority, j.submit_s or 0.0, _number(j)))
        jobs.sort(key=lambda j: j.priority < BEFORE_ALL)  # stable
        return jobs

    @cached_property
    def gap_ends(self) -> dict[str, GapEnd]:
        """The earliest plan or reservation of each node."""
        bounds: list[tuple[GapEnd, NodeSet]] = []
        for reservation in self._snapshot.reservations or ():
            if reservation.end_s > self.now_s:
                nodes = self.sets.named(reservation.nodes)
                bounds.append((_end_of(reservation), nodes))
        for job in self._census.pending_jobs:
            start_s = job.start_s
            if start_s is not None and start_s >= self.now_s - _STALE_CYCLES * self._cycle_s:
                slot_s = slot_begin_s(start_s, self._snapshot.plan_resolution_s)
                end = GapEnd(at_s=start_s, last_end_s=slot_s, then=Then.JOB, by=job.job_id)
                nodes = self.sets.named(job.planned_nodes or job.required_nodes)
                bounds.append((end, nodes))
        return earliest(bounds, self.sets)

    def next_plan(self, usable: NodeSet) -> BackfillPlan:
        """Return Slurm's next backfill plan, still empty; ``usable``: nodes jobs may have."""
        return BackfillPlan(self._snapshot, self.sets, usable, self.now_s)


def _number(job: Job) -> float:
    """Order of jobs submitted within the same second: by job number."""
    number = job.counts_as
    if number.isdecimal():
        return float(number)
    return math.inf


def _end_of(reservation: Reservation) -> GapEnd:
    """A reservation holds from its exact start, not from a slot."""
    then = Then.RESERVATION
    if reservation.is_maintenance:
        then = Then.MAINTENANCE
    return GapEnd(
        at_s=reservation.start_s, last_end_s=reservation.start_s, then=then, by=reservation.name
    )


class ReservedStarts(BackfillPlan):
    """The starts that LSF has planned, and no others."""

    def wait(self, job: Job, request: JobNeeds | None) -> None:
        """Plan the job where slots are reserved for it."""
        del request  # what LSF reserves is known, what it might reserve next is not
        super().wait(job, None)


class LsfQueue(PrintedQueue):
    """``QueueModel`` of LSF: order and requests as printed, plans as reserved."""

    def next_plan(self, usable: NodeSet) -> ReservedStarts:
        """Plan as LSF reserves."""
        return ReservedStarts(self._snapshot, self.sets, usable, self.now_s)


QueueModel = PrintedQueue
MODELS: Mapping[str, type[QueueModel]] = {"printed": PrintedQueue, "lsf": LsfQueue}


def queue_of(census: NodeCensus, now_s: float, cycle_s: float) -> QueueModel:
    """Return the model of a complete snapshot; arguments as of ``PrintedQueue``."""
    return MODELS[census.snapshot.queue_model](census, now_s, cycle_s)
