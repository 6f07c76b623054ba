"""The decision: DecisionInput -> Plan, a pure fold over events.

The order of the stages is that of precedence: first nodes go back to ordinary jobs that
could use them, then the reserve is restored, then the policy allocates the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bftrainer.decide import allocation, claims, eligible, end_cost, giveback, limits
from bftrainer.decide.division import divided
from bftrainer.decide.draft import Draft
from bftrainer.decide.observation import observe
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.decide.queue.models import queue_of
from bftrainer.decide.victims import CheapestForTrainers, Pick, first_by_name
from bftrainer.model.census import census_of
from bftrainer.model.decision import DecisionInput, Plan

NO_ANSWER = "The batch system did not answer; nothing is taken or released until it does."
STAGES: tuple[Callable[[Draft], Draft], ...] = (
    giveback.stage,  # what ordinary jobs could use
    claims.release_overdue,  # pilots behind those of other daemons, overdue pilots and agents
    limits.keep_reserve,  # the reserve
    limits.limit_nodes,  # the node limit while the daemon backs off
    allocation.stage,  # assigns the rest to trainers
    claims.claim_nodes,  # requests pilots, releases unwanted ones
)


def decide(given: DecisionInput, policy: AllocationPolicy | None) -> Plan:
    """Return the assignment of nodes to trainers, the claims and the releases.

    While part of the snapshot is unread, nothing is claimed; give-back uses what is known.
    Without its nodes or its jobs nothing is released either, and the assignment stays unchanged.

    Args:
        given: everything the decision depends on.
        policy: the allocation policy; None: every trainer keeps its nodes.

    Raises:
        Exception: caused by one part of the input. ``isolation`` finds that part and
            decides without it.
    """
    if given.snapshot.nodes is None or given.snapshot.jobs is None:
        return unchanged(given, NO_ANSWER)
    draft = _begun(given, policy)
    if given.gives_back_only:
        return _giving_back_only(giveback.stage(draft))
    for stage in STAGES:
        draft = stage(draft)
    decided = draft.decided
    plan = Plan(
        assignment=draft.assignment,
        claims=draft.claims,
        releases=draft.releases,
        pool=draft.pool.nodes,
        not_used=draft.pool.not_used,
        reserve=draft.pool.reserve,
        allocation=None,
        memory=end_cost.asked(draft.memory, draft.releases, draft.given),
        wake_at_s=min(draft.wakes_s, default=None),
        swaps=draft.swaps,
    )
    if decided is None:  # no policy was asked
        return plan
    return replace(
        plan, allocation=decided.allocation, order=decided.order, dropped=decided.dropped
    )


def before_allocation(given: DecisionInput, policy: AllocationPolicy) -> Draft:
    """Return the decision as it stands when the pool is to be allocated."""
    draft = _begun(given, policy)
    for stage in STAGES[: STAGES.index(allocation.stage)]:
        draft = stage(draft)
    return draft


def _begun(given: DecisionInput, policy: AllocationPolicy | None) -> Draft:
    """Return the draft before the first stage."""
    as_shown = eligible.parted(given)
    given = divided(as_shown)
    census = census_of(given.snapshot, given.pilots)
    hosts = census
    if given is not as_shown:
        hosts = census_of(as_shown.snapshot)
    memory = observe(given, census)
    end_cost_s = end_cost.end_cost_s(memory)
    given = replace(given, settings=end_cost.applied(given.settings, end_cost_s))
    pick: Pick = first_by_name
    if policy is not None:
        pick = CheapestForTrainers(given, memory)
    return Draft(
        given=given,
        census=census,
        hosts=hosts,
        queue=queue_of(hosts, given.now_s, given.settings.cycle_s),
        memory=memory,
        end_cost_s=end_cost_s,
        pick=pick,
        policy=policy,
    )


def _giving_back_only(draft: Draft) -> Plan:
    """Return a plan that only releases nodes for ordinary jobs."""
    memory = end_cost.asked(draft.memory, draft.releases, draft.given)
    plan = replace(unchanged(draft.given, "Not evaluated yet."), releases=draft.releases)
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
