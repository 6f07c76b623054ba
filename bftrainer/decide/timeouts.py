"""Gives up pilots that do not start and agents that do not connect.

A pilot waits behind every ordinary job; it is overdue when two scheduler cycles that began after
its request passed over it. A slow prolog or file system may delay an agent, so the time limit
for agents is learnt. ``observe`` is an estimator (``observing``), ``stage`` a stage of
``decision``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bftrainer.decide.cycles import are_told, have_passed
from bftrainer.decide.draft import Draft
from bftrainer.model.decision import AgentPatience, DecisionInput, Memory, PilotView, Release

LEAST_S, MOST_S = 60.0, 900.0  # bounds of the agents' time limit; imports are slow
TIMES = 3.0  # the time of the agent that connected last
DID_NOT_CONNECT = "Its agent did not connect in time"
A_BIT_S = 5.0  # from the request until polls show the pilot


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Note which pilots have started, and learn from the agents that connected."""
    known = memory.agents
    came = [p.pilot_id for p in given.pilots if p.is_held and p.pilot_id in known.started_s]
    took_s = [given.now_s - (known.started_s[pilot_id] or given.now_s) for pilot_id in came]
    started_s: dict[str, float | None] = {}
    for pilot in given.pilots:
        if not (pilot.is_held or pilot.is_leaving or pilot.is_silent):
            since_s = known.started_s.get(pilot.pilot_id)
            has_begun = since_s is None and pilot.end_s is not None
            started_s[pilot.pilot_id] = given.now_s if has_begun else since_s
    limit_s = known.limit_s
    if took_s:
        limit_s = min(max(LEAST_S, TIMES * max(took_s)), MOST_S)
    agents = AgentPatience(limit_s=limit_s, started_s=started_s)
    return memory if agents == known else replace(memory, agents=agents)


def stage(draft: Draft) -> Draft:
    """Release overdue pilots; if an agent was overdue, double the time limit for agents."""
    late = list(_late(draft.given, draft.memory))
    draft = draft.releasing(late, is_held_off=True)
    agents = draft.memory.agents
    if all(agents.started_s[release.pilot_id] is None for release in late):
        return draft
    longer = replace(agents, limit_s=min(2.0 * agents.limit_s, MOST_S))
    return replace(draft, memory=replace(draft.memory, agents=longer))


def _late(given: DecisionInput, memory: Memory) -> Iterator[Release]:
    limit_s = memory.agents.limit_s
    for pilot in given.pilots:
        if pilot.is_held or pilot.is_leaving or pilot.is_silent:
            continue
        since_s, reason = memory.agents.started_s[pilot.pilot_id], ""
        if since_s is not None and given.now_s - since_s > limit_s:
            reason = f"{DID_NOT_CONNECT} ({limit_s:.0f} s)."
        elif since_s is None and _is_passed_over(pilot, given, memory):
            reason = "Its pilot did not start in time: the scheduler has passed over it."
        if reason:
            yield Release(pilot_id=pilot.pilot_id, node=pilot.node, reason=reason)


def _is_passed_over(pilot: PilotView, given: DecisionInput, memory: Memory) -> bool:
    """Whether two cycles did not start it, as far as a recent enough snapshot shows."""
    snapshot, settings = given.snapshot, given.settings
    if snapshot.taken_at_s - pilot.requested_s <= A_BIT_S:
        return False
    if not are_told(snapshot):  # ``have_passed(1)`` waits for two intervals then
        since_s = pilot.requested_s + A_BIT_S
        return have_passed(1, since_s, memory, snapshot, settings)
    return have_passed(2, pilot.requested_s, memory, snapshot, settings)
