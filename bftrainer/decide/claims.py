"""Pilots to request and to give up. Pure.

Requests are the last stage of ``decision`` (``claim_nodes``).

A pilot waits behind every ordinary job; it is overdue when two scheduler cycles that began after
its request passed over it (``release_overdue``, a stage of ``decision``). A slow prolog or file
system may delay an agent, so the time limit for agents is learnt (``observe``, an estimator of
``observation``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from bftrainer.decide import borrowers, eligible
from bftrainer.decide.constraints import swaps
from bftrainer.decide.cycles import are_told, have_passed
from bftrainer.decide.draft import Draft
from bftrainer.model.cluster import PART_MARK
from bftrainer.model.decision import (
    AgentPatience,
    Claim,
    DecisionInput,
    Memory,
    PilotView,
    PoolNode,
    Release,
)
from bftrainer.model.parts import NodePart

LEAST_S, MOST_S = 60.0, 900.0  # bounds of the agents' time limit; imports are slow
TIMES: Final = 3.0  # a wait lasts at most so many times what it usually takes
DID_NOT_CONNECT: Final = "Its agent did not connect in time"
A_BIT_S: Final = 5.0  # from the request until polls show the pilot


def claim_nodes(draft: Draft) -> Draft:
    """Claim the nodes assigned to trainers, and release those without a trainer."""
    given = draft.given
    unused: dict[str, float] = {}
    for node in draft.pool.nodes:
        is_used = node.name in draft.assignment or node.name in draft.memory.replacing
        if node.pilot_id and not is_used:
            unused[node.name] = draft.memory.unused_since.get(node.name, given.now_s)
    given_away = list(_swapped(draft))
    releases = [*given_away, *_unwanted(draft, unused), *_due(draft)]
    memory = replace(draft.memory, assignment=draft.assignment, unused_since=unused)
    requests = tuple(_claims(draft))
    if draft.census.has_other_daemons:
        requests = borrowers.in_turn(requests, draft)
    draft = replace(draft, claims=requests)
    if given_away or memory.swaps:
        begun = {release.node: draft.swaps[release.node] for release in given_away}
        memory = replace(memory, swaps=swaps.noted(memory, draft.pool, begun, given.now_s))
    draft = replace(draft, memory=memory)
    if not releases:
        return draft
    return draft.releasing(releases, is_held_off=False)


def _claims(draft: Draft) -> Iterator[Claim]:
    given, settings = draft.given, draft.given.settings
    if not (given.may_claim and given.snapshot.is_complete):
        return
    longest_s = settings.pilot_time_limit_s
    if given.snapshot.plan_window_s is not None:  # nothing is known beyond it
        longest_s = min(longest_s, given.snapshot.plan_window_s)
    for node in draft.pool.nodes:
        if node.pilot_id or node.name not in draft.assignment:
            continue
        limit_s = longest_s
        if node.usable_until_s is not None:
            limit_s = min(limit_s, node.usable_until_s - draft.pool.starts_s)
        part: NodePart | None = None
        if PART_MARK in node.name:
            part = draft.census.parts[node.name]
        yield Claim(
            node=node.name,
            time_limit_s=limit_s,
            for_trainer=draft.assignment[node.name],
            part=part,
        )


def _swapped(draft: Draft) -> Iterator[Release]:
    """Release pilots whose node goes to another user, once no trainer trains there."""
    leaving = draft.swaps.keys() - draft.given.training.keys() - draft.given.occupied.keys()
    for node in draft.pool.nodes:
        if node.name in leaving:
            yield _release(node, f"It goes to {draft.swaps[node.name]}, of another user.")


def _unwanted(draft: Draft, since_s: Mapping[str, float]) -> Iterator[Release]:
    """Release pilots whose node no trainer gets, once none trains or saves its state there.

    ``since_s``: node of such a pilot -> since when no trainer has it.
    """
    given = draft.given
    if not since_s:
        return
    # Earlier releases' inputs name trainers that have ended, too.
    trainer_ids = {record.trainer_id for record in given.trainers}
    busy = set(given.occupied)
    for node_name, trainer_id in given.training.items():
        if trainer_id in trainer_ids:
            busy.add(node_name)
    idle = since_s.keys() - busy  # once: for each node it would take a square of their number
    for node in draft.pool.nodes:
        if node.name not in idle:
            continue
        is_over = given.now_s - since_s[node.name] >= given.settings.hold_idle_s
        is_over = is_over and not (node.is_held and eligible.is_awaited(given, node.name))
        if is_over or not node.is_held:
            cools = given.cooling.get(node.name)
            why = eligible.why_unused(given, node.name) or "No trainer wants it."
            if cools is not None:
                why = cools.sentence(given.now_s)
            yield _release(node, why)


def _due(draft: Draft) -> Iterator[Release]:
    """Release pilots that must leave their node."""
    for pilot in draft.given.pilots:
        if pilot.pilot_id in draft.pool.due:
            why = draft.pool.due[pilot.pilot_id]
            yield Release(pilot_id=pilot.pilot_id, node=pilot.node, reason=why)


def _release(node: PoolNode, reason: str) -> Release:
    return Release(pilot_id=node.pilot_id, node=node.name, reason=reason)


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Note which pilots have started, and learn from the agents that connected."""
    patience = memory.agents
    took_s: list[float] = []
    started_s: dict[str, float | None] = {}
    for pilot in given.pilots:
        if pilot.is_held and pilot.pilot_id in patience.started_s:
            wait_s = given.now_s - (patience.started_s[pilot.pilot_id] or given.now_s)
            if given.now_s - wait_s >= given.slept.until_s:
                took_s.append(wait_s)
        if not (pilot.is_held or pilot.is_leaving or pilot.is_silent):
            since_s = patience.started_s.get(pilot.pilot_id)
            has_begun = since_s is None and pilot.end_s is not None
            if has_begun:
                since_s = given.now_s
            started_s[pilot.pilot_id] = since_s
    limit_s = patience.limit_s
    if took_s:
        limit_s = min(max(LEAST_S, TIMES * max(took_s)), MOST_S)
    agents = AgentPatience(limit_s=limit_s, started_s=started_s)
    if agents == patience:
        return memory
    return replace(memory, agents=agents)


def release_overdue(draft: Draft) -> Draft:
    """Release overdue pilots; if an agent was overdue, double the time limit for agents.

    Before them go the pilots that stand back behind those of other daemons.
    """
    if draft.census.has_other_daemons:
        draft = borrowers.step_back(draft)
    late = list(_late(draft.given, draft.memory))
    if not late:
        return draft
    memory = draft.memory
    agents = memory.agents
    if any(agents.started_s[release.pilot_id] is not None for release in late):
        longer = replace(agents, limit_s=min(2.0 * agents.limit_s, MOST_S))
        memory = replace(memory, agents=longer)
    return replace(draft, memory=memory).releasing(late, is_held_off=True)


def _late(given: DecisionInput, memory: Memory) -> Iterator[Release]:
    limit_s = memory.agents.limit_s
    for pilot in given.pilots:
        if pilot.is_held or pilot.is_leaving or pilot.is_silent:
            continue
        since_s, reason = memory.agents.started_s[pilot.pilot_id], ""
        if since_s is not None and given.now_s - max(since_s, given.slept.until_s) > limit_s:
            reason = f"{DID_NOT_CONNECT} ({limit_s:.0f} s)."
        elif since_s is None and _is_passed_over(pilot, given, memory):
            reason = "Its pilot did not start in time: the scheduler has passed over it."
        if reason:
            yield Release(pilot_id=pilot.pilot_id, node=pilot.node, reason=reason)


def _is_passed_over(pilot: PilotView, given: DecisionInput, memory: Memory) -> bool:
    """Return whether two cycles did not start it, as far as a recent enough snapshot shows."""
    snapshot, settings = given.snapshot, given.settings
    # A daemon that slept may have decided before and asked only after.
    asked_s = max(pilot.requested_s, given.slept.until_s)
    if snapshot.taken_at_s - asked_s <= A_BIT_S:
        return False
    if not are_told(snapshot):  # ``have_passed(1)`` waits for two intervals then
        return have_passed(1, asked_s + A_BIT_S, memory, snapshot, settings)
    return have_passed(2, asked_s, memory, snapshot, settings)
