"""What the batch system plans → until when each node may be used, and what comes then.

Takes a complete snapshot, returns a ``GapEnd`` for every node whose gap has an end in
sight; a node that is not in the answer has none. Called by ``pool`` once per decision.

The sources, and what each of them ends (docs/gaps.md has the reasons):

* a reservation to come: everybody's use of its nodes. Nothing may run into it, ours or not;
* a planned start with the nodes it is planned on: our use of these nodes. Whoever ends
  before may use them until then, and so may we;
* a planned start without nodes: our use of as many nodes as the job asks for. It may take
  any; ``unnamed`` chooses those that bound us least;
* a node the batch system calls planned while some waiting job's plan is not known: at any
  moment. The shortest plausible gap is one scheduler cycle: what could start in the cycle
  that planned it would have started.

How far ahead the batch system plans at all (bf_window) ends nothing by itself: what is not
planned by then cannot start before then, unless jobs end early, and then the plan moves.
``decision`` asks for no pilot that lasts longer than that.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bftrainer.decide.unnamed import bound_by_unnamed, is_in_partition
from bftrainer.decide.waiting import pending_jobs, slot_begin_s
from bftrainer.poll.snapshot import Job, Node, NodeState, Reservation, Snapshot

# Reasons with which a waiting job is in no plan (squeue manual page, release 22.05, "JOB
# REASON CODES"): a node that is planned is not planned for it.
_IN_NO_PLAN = ("Dependency", "JobHeld", "JobHold", "BeginTime")
# A planned start that passed this many cycles ago is no plan any more, see _is_stale.
_STALE_CYCLES = 2.0


class Then(enum.StrEnum):
    """What ends a gap."""

    JOB = "job"  # a job planned on this node
    ANY_JOB = "any-job"  # a job planned on nodes nobody names
    RESERVATION = "reservation"  # set aside for somebody
    MAINTENANCE = "maintenance"  # set aside for nobody
    UNKNOWN = "unknown"  # planned, nobody says for when


@dataclass(frozen=True, slots=True, kw_only=True)
class GapEnd:
    """When a gap is over, and what comes then."""

    at_s: float
    then: Then
    by: str = ""  # job id or name of the reservation

    @property
    def is_for_everybody(self) -> bool:
        """Whether nobody's job may run into it; else only ours must be gone by then."""
        return self.then in (Then.RESERVATION, Then.MAINTENANCE)

    def last_end_s(self, plan_resolution_s: float) -> float:
        """Return when a job that starts now has to be over by its limit, to be let start.

        A reservation holds from its own second on.
        """
        is_planned = self.then in (Then.JOB, Then.ANY_JOB)
        return slot_begin_s(self.at_s, plan_resolution_s) if is_planned else self.at_s

    def sentence(self, now_s: float) -> str:
        """Say why the node is not used (any longer)."""
        if self.then is Then.UNKNOWN:
            return "The batch system plans to use it and does not say when."
        left_s = max(0.0, self.at_s - now_s)
        if self.then is Then.MAINTENANCE:
            return f"Maintenance {self.by} of it begins in {left_s:.0f} s."
        if self.then is Then.RESERVATION:
            return f"Reservation {self.by} of it begins in {left_s:.0f} s."
        where = "it" if self.then is Then.JOB else "nodes it does not name, perhaps this one,"
        return f"The batch system plans to use {where} in {left_s:.0f} s (job {self.by})."


def gap_ends(
    snapshot: Snapshot, now_s: float, cycle_s: float, ours: Collection[str] = ()
) -> dict[str, GapEnd]:
    """Return the end of the gap of each node that has one.

    Args:
        snapshot: complete.
        now_s: batch system's clock.
        cycle_s: time between two passes of its scheduler.
        ours: nodes with a pilot, requested or held.
    """
    nodes = snapshot.nodes or ()
    waiting = pending_jobs(snapshot)
    ends: dict[str, GapEnd] = {}
    for reservation in snapshot.reservations or ():
        if reservation.end_s > now_s:
            _bound(ends, reservation.nodes, _end_of(reservation))
    if not waiting:
        return ends  # a node that is still called planned is so no longer
    stale: list[Job] = []
    for job in waiting:
        if job.start_s is None:
            continue
        if job.start_s < now_s - _STALE_CYCLES * cycle_s:
            stale.append(job)
            continue
        named = job.planned_nodes or job.required_nodes
        _bound(ends, named, GapEnd(at_s=job.start_s, then=Then.JOB, by=job.job_id))
    if unnamed := [j for j in waiting if j.start_s is not None and not j.planned_nodes]:
        _bound_any(ends, [j for j in unnamed if j not in stale], snapshot, ours)
    _bound_planned(ends, nodes, waiting, stale, now_s + cycle_s)
    return ends


def _end_of(reservation: Reservation) -> GapEnd:
    then = Then.MAINTENANCE if reservation.is_maintenance else Then.RESERVATION
    return GapEnd(at_s=reservation.start_s, then=then, by=reservation.name)


def _bound(ends: dict[str, GapEnd], nodes: Sequence[str], end: GapEnd) -> None:
    for node in nodes:
        known = ends.get(node)
        if known is None or end.at_s < known.at_s:
            ends[node] = end


def _bound_any(
    ends: dict[str, GapEnd], jobs: Sequence[Job], snapshot: Snapshot, ours: Collection[str]
) -> None:
    """Let jobs that are planned somewhere end the gaps of as many nodes as they need."""
    known_s = {name: end.at_s for name, end in ends.items()}
    for name, job in bound_by_unnamed(jobs, snapshot, known_s, ours).items():
        end = GapEnd(at_s=job.start_s or 0.0, then=Then.ANY_JOB, by=job.job_id)
        _bound(ends, (name,), end)


def _bound_planned(
    ends: dict[str, GapEnd],
    nodes: Sequence[Node],
    waiting: Sequence[Job],
    stale: Sequence[Job],
    soon_s: float,
) -> None:
    """Let nodes that are planned for nobody knows whom have the shortest plausible gap.

    Only where some waiting job could be the one. The state of a node is read before the
    queue and is cleared at the next cycle only, so a node whose job has started or gone in
    the meantime still shows it. That of our own pilots in the queue shows the same way.

    A start that has passed and has not happened is not a plan by itself: Slurm leaves the
    last estimate of a job that it no longer tries (bf_max_job_test) in the queue for ever.
    It counts where the node is still called planned.
    """
    unknown = [
        job for job in waiting if job.start_s is None and not job.reason.startswith(_IN_NO_PLAN)
    ] + list(stale)
    if not unknown:
        return
    named = {name for job in unknown for name in _named(job)}
    of_partition = {job.partition: job for job in unknown if not _named(job)}
    for node in nodes:
        known = ends.get(node.name)
        is_explained = known is not None and known.then in (Then.JOB, Then.ANY_JOB)
        if node.state is not NodeState.PLANNED or is_explained:
            continue
        is_open = any(is_in_partition(job, node) for job in of_partition.values())
        if is_open or node.name in named:
            _bound(ends, (node.name,), GapEnd(at_s=soon_s, then=Then.UNKNOWN))


def _named(job: Job) -> tuple[str, ...]:
    return job.planned_nodes or job.required_nodes
