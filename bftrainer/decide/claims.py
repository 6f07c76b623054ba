"""Which pilots are requested, and which are released because they are unwanted or due.

The last stage of ``decision``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bftrainer.decide import reachability
from bftrainer.decide.draft import Draft
from bftrainer.model.decision import Claim, PoolNode, Release


def stage(draft: Draft) -> Draft:
    """Claim the nodes assigned to trainers, and release those without a trainer."""
    given = draft.given
    unused = {
        n.name: draft.memory.unused_since.get(n.name, given.now_s)
        for n in draft.pool.nodes
        if n.pilot_id and n.name not in draft.assignment and n.name not in draft.memory.replacing
    }
    memory = replace(draft.memory, assignment=draft.assignment, unused_since=unused)
    draft = replace(draft, memory=memory, claims=tuple(_claims(draft)))
    releases = [*_swapped(draft), *_unwanted(draft), *_due(draft)]
    return draft.releasing(releases, is_held_off=False)


def _claims(draft: Draft) -> Iterator[Claim]:
    given, settings = draft.given, draft.given.settings
    asked = [n for n in draft.pool.nodes if not n.pilot_id and n.name in draft.assignment]
    if not (given.may_claim and given.snapshot.is_complete and asked):
        return
    longest_s = settings.pilot_time_limit_s
    if given.snapshot.plan_window_s is not None:  # nothing is known beyond it
        longest_s = min(longest_s, given.snapshot.plan_window_s)
    for node in asked:
        limit_s = longest_s
        if node.usable_until_s is not None:
            limit_s = min(limit_s, node.usable_until_s - draft.pool.starts_s)
        yield Claim(node=node.name, time_limit_s=limit_s, for_trainer=draft.assignment[node.name])


def _swapped(draft: Draft) -> Iterator[Release]:
    """Release pilots whose node goes to another user, once nobody trains there."""
    given = draft.given
    for node in draft.pool.nodes:
        if node.name in draft.swaps.keys() - given.training.keys() - given.occupied.keys():
            yield _release(node, f"It goes to {draft.swaps[node.name]}, of another user.")


def _unwanted(draft: Draft) -> Iterator[Release]:
    """Release pilots whose node no trainer gets, once nobody trains or saves its state there."""
    given, since_s = draft.given, draft.memory.unused_since
    if not since_s:
        return
    # Earlier releases' inputs name trainers that have ended, too.
    its = {record.trainer_id for record in given.trainers}
    busy = given.occupied.keys() | {node for node, one in given.training.items() if one in its}
    for node in draft.pool.nodes:
        if node.name not in since_s.keys() - busy:
            continue
        is_over = given.now_s - since_s[node.name] >= given.settings.hold_idle_s
        is_over = is_over and not (node.is_held and reachability.is_awaited(given, node.name))
        if is_over or not node.is_held:
            cools = given.cooling.get(node.name)
            why = reachability.why_unused(given, node.name) or "No trainer wants it."
            why = why if cools is None else cools.sentence(given.now_s)
            yield _release(node, why)


def _due(draft: Draft) -> Iterator[Release]:
    """Release pilots that must leave their node."""
    for pilot in draft.given.pilots:
        if pilot.pilot_id in draft.pool.due:
            why = draft.pool.due[pilot.pilot_id]
            yield Release(pilot_id=pilot.pilot_id, node=pilot.node, reason=why)


def _release(node: PoolNode, reason: str) -> Release:
    return Release(pilot_id=node.pilot_id, node=node.name, reason=reason)
