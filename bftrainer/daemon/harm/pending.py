"""Pilots that stay pending: the batch system passed over them for longer than a cycle. Pure.

A pilot is asked for where the last look showed room, and the next cycle of the scheduler starts it.
One that is pending for longer finds no room: what is lent is not what the batch system gives (its
limits of shared nodes, memory, a GPU in use), or other jobs were faster. A few are of no concern;
most of them mean that the harvest is missed, and each costs the scheduler work.

Counted of all pilots, and recorded of those that ask for a part of a node. Called by
``bftrainer.daemon.harm.book``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bftrainer.daemon.harm.ends import lent_part
from bftrainer.model.cluster import Job, JobState
from bftrainer.model.decision import DecisionInput
from bftrainer.model.lookups import by_pilot

CYCLES_UNTIL_STARTED: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StaysPending:
    """A pilot for a part of a node that was pending for longer than a cycle of the scheduler."""

    node: str  # the part
    pilot_id: str
    gpus: int
    gpu_type: str  # "gpu:a100"
    requested_s: float
    at_s: float  # of the look that showed it
    why: str  # in the batch system's words


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPilots:
    """State of the fold."""

    listed: frozenset[str] = frozenset()  # pilots at the last decision
    staying: frozenset[str] = frozenset()  # of these, pending for longer than a cycle
    n_requested: int = 0  # since the daemon began
    n_stayed: int = 0  # of these


def fold(
    state: PendingPilots, given: DecisionInput
) -> tuple[PendingPilots, tuple[StaysPending, ...]]:
    """Process one decision's input; return also the pilots that have been pending for too long."""
    views = by_pilot(given.pilots)
    requested = [
        pilot_id
        for pilot_id in views.keys() - state.listed
        if views[pilot_id].end_s is None and not views[pilot_id].is_held
    ]
    staying = state.staying & views.keys()
    if given.is_new_snapshot:
        staying = frozenset(_pending(given))
    news = staying - state.staying
    records: list[StaysPending] = []
    jobs = _jobs(given)
    for pilot_id in sorted(news):
        view = views[pilot_id]
        part = lent_part(view)
        if part is not None:
            records.append(
                StaysPending(
                    node=view.node,
                    pilot_id=pilot_id,
                    gpus=part.gpus,
                    gpu_type=part.gpu_type,
                    requested_s=view.requested_s,
                    at_s=given.snapshot.taken_at_s,
                    why=jobs[pilot_id].reason,
                )
            )
    after = PendingPilots(
        listed=frozenset(views),
        staying=staying,
        n_requested=state.n_requested + len(requested),
        n_stayed=state.n_stayed + len(news),
    )
    return after, tuple(records)


def _jobs(given: DecisionInput) -> Mapping[str, Job]:
    """Return the pending jobs of our pilots."""
    jobs: dict[str, Job] = {}
    for job in given.snapshot.jobs or ():
        if job.pilot_id is not None and job.state is JobState.PENDING:
            jobs[job.pilot_id] = job
    return jobs


def _pending(given: DecisionInput) -> set[str]:
    """Return the pilots that the snapshot shows pending for longer than a cycle."""
    jobs = _jobs(given)
    limit_s = CYCLES_UNTIL_STARTED * given.settings.cycle_s
    pending: set[str] = set()
    for view in given.pilots:
        asked_s = max(view.requested_s, given.slept.until_s)
        is_late = given.snapshot.taken_at_s - asked_s > limit_s
        if is_late and view.pilot_id in jobs and not view.is_leaving:
            pending.add(view.pilot_id)
    return pending
