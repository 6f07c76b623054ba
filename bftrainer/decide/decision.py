"""The decision itself: DecisionInput → Plan, a pure fold over events.

Order matters and is the order of the promises: first give back what ordinary jobs
could use, then restore the reserve, then allocate what is left by the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bftrainer.decide import allocating, claiming, end_cost, giveback, limit, overdue, reserving
from bftrainer.decide.draft import Draft
from bftrainer.decide.observing import observe
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.decide.victims import CheapestForTrainers, first_by_name
from bftrainer.model.cluster import Snapshot
from bftrainer.model.decision import DecisionInput, Plan
from bftrainer.queue.model import QueueModel
from bftrainer.queue.printed import PrintedQueue

# The one there is; the look will name the other when there are two (docs/adr/0017).
MODEL: Callable[[Snapshot, float, float], QueueModel] = PrintedQueue
NO_ANSWER = "The batch system did not answer; nothing is taken or released until it does."
STAGES: tuple[Callable[[Draft], Draft], ...] = (
    giveback.stage,  # what ordinary jobs could use
    overdue.stage,  # pilots that do not come
    reserving.stage,  # the reserve
    limit.stage,  # of a daemon that backs off
    allocating.stage,  # who gets what is left
    claiming.stage,  # pilots to ask for, and those that nobody wants
)


def decide(given: DecisionInput, policy: AllocationPolicy | None) -> Plan:
    """Return who gets which node, what to claim and what to release.

    While a part of the snapshot could not be read nothing is claimed; give-back goes on with
    what is known. Without nodes or jobs nothing is released either (observation *unknown*),
    and the assignment stays as it is.

    Args:
        given: everything it depends on.
        policy: who allocates; none: everybody keeps what they have.

    Raises:
        Exception: on something in the input. ``bftrainer.surviving`` decides without it.
    """
    if given.snapshot.nodes is None or given.snapshot.jobs is None:
        return unchanged(given, NO_ANSWER)
    memory = observe(given)
    given = replace(given, settings=end_cost.applied(given.settings, memory))
    pick = first_by_name if policy is None else CheapestForTrainers(given, memory)
    queue = MODEL(given.snapshot, given.now_s, given.settings.cycle_s)
    draft = Draft(given=given, queue=queue, memory=memory, pick=pick, policy=policy)
    if given.gives_back_only:
        return _in_haste(giveback.stage(draft))
    for stage in STAGES:
        draft = stage(draft)
    decided = draft.decided
    return Plan(
        assignment=draft.assignment,
        claims=draft.claims,
        releases=draft.releases,
        pool=draft.pool.nodes,
        not_used=draft.pool.not_used,
        reserve=draft.pool.reserve,
        allocation=decided.allocation if decided else None,
        memory=end_cost.asked(draft.memory, draft.releases, given),
        wake_at_s=decided.wake_at_s if decided else None,
        order=decided.order if decided else (),
        dropped=decided.dropped if decided else {},
    )


def _in_haste(draft: Draft) -> Plan:
    """Release what is in the way of jobs; all else is left as it is."""
    memory = end_cost.asked(draft.memory, draft.releases, draft.given)
    plan = replace(unchanged(draft.given, "Not looked at yet."), releases=draft.releases)
    return replace(plan, memory=memory).without_taking(memory)


def unchanged(given: DecisionInput, reason: str) -> Plan:
    """Return the plan that takes and releases nothing."""
    return Plan(
        assignment=dict(given.memory.assignment),
        claims=(),
        releases=(),
        pool=(),
        not_used=dict.fromkeys(given.memory.idle_seen, reason),
        reserve=(),
        allocation=None,
        memory=given.memory,
    )
