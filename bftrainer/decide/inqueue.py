"""Pilots that wait in the queue for a cycle of the scheduler: when to ask for one, for how long.

Where pilots come last, one that waits is in nobody's way: it gets what the next cycle leaves
over, by the plan that cycle makes. Called by ``pool`` for every node; docs/gaps.md and
docs/give-back.md have the reasons. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from bftrainer.decide.claims import SHORTEST_S
from bftrainer.decide.gaps import GapEnd, Then
from bftrainer.decide.types import DecisionInput, Memory, PilotView, Settings
from bftrainer.decide.waiting import LAST_CALL_S, next_cycle_s, starts_by_s
from bftrainer.poll.snapshot import Snapshot

# One pass of the main scheduler, and two, usually: a job for which a node was given back has
# it by then, or waits for backfill.
ONE_PASS_S, PASS_S = 1.0, 3.0
HOPEFUL = 2.0  # times min_gap_s: asked for where the plan has to move first


def left_to_queue(
    memory: Memory,
    snapshot: Snapshot,
    settings: Settings,
    now_s: float,
    spoken_for: AbstractSet[str] = frozenset(),
) -> Mapping[str, float]:
    """Return the nodes held off for which no pilot may be asked for yet.

    Where pilots come last one may wait in the queue for the cycle that would pass over the
    node anyhow: it gets what that cycle leaves, and not what the next one does. Not while
    the daemon backs off. Shortly before that cycle it is now or a cycle later, but for nodes
    on which the main scheduler is about to start somebody (``spoken_for``): of those a look
    has to show first that it did not.
    """
    if not _may_wait(snapshot, settings):
        return memory.held_off
    next_s = next_cycle_s(snapshot, settings.cycle_s, now_s)
    is_last_call = next_s is not None and next_s - now_s <= LAST_CALL_S
    least_s = now_s - (ONE_PASS_S if is_last_call else PASS_S)
    shown_s = min(now_s - PASS_S, snapshot.taken_at_s - ONE_PASS_S)
    return {
        node: at_s
        for node, at_s in memory.held_off.items()
        if at_s > (shown_s if node in spoken_for else least_s)
    }


def look_wanted_s(
    given: DecisionInput, memory: Memory, spoken_for: AbstractSet[str]
) -> float | None:
    """From when a look can show that the main scheduler passed over nodes; None: over none.

    Nobody announces that a job did not start, and the next look may come after the cycle that
    gives these nodes away.
    """
    if not _may_wait(given.snapshot, given.settings):
        return None
    shown_s = given.snapshot.taken_at_s - ONE_PASS_S
    since_s = [at_s for node in spoken_for if (at_s := memory.held_off.get(node)) is not None]
    # Since just now: not all nodes of the job are free yet, and their end is announced.
    return min((s + PASS_S for s in since_s if shown_s < s < given.now_s), default=None)


def claim_until_s(
    end: GapEnd | None, snapshot: Snapshot, settings: Settings, now_s: float, starts_s: float
) -> float | None:
    """When a pilot that is asked for now must be over by its limit.

    One that waits for a cycle finds another plan: where the gap is too short by this one, a
    short one may wait, and starts if its least limit fits then.
    """
    if end is None:
        return None
    until_s = end.last_end_s(snapshot.plan_resolution_s) - settings.gap_margin_s
    if not is_too_short(until_s, settings, now_s, starts_s) or end.is_for_everybody:
        return until_s
    is_open = now_s < starts_s < end.at_s - settings.gap_margin_s
    if not is_open or end.then is Then.UNKNOWN or not _may_wait(snapshot, settings):
        return until_s
    return starts_s + HOPEFUL * settings.min_gap_s


def is_too_short(until_s: float, settings: Settings, now_s: float, starts_s: float) -> bool:
    """Whether a gap is not worth a claim."""
    shortest_s = min(SHORTEST_S, settings.min_gap_s)  # of what is left once it starts
    return until_s - now_s < settings.min_gap_s or until_s - starts_s < shortest_s


def cannot_start(pilot: PilotView, end: GapEnd, snapshot: Snapshot, settings: Settings) -> bool:
    """Whether it waits in vain: what is planned on its node came after it had been asked for.

    By what the look would have shown: a cycle that began just before may still start it.
    It is asked for again, shorter; one that is as short as any waits for a plan that moves.
    """
    limit_s, shown_s = pilot.shortest_limit_s, snapshot.taken_at_s - PASS_S
    if limit_s is None or pilot.is_held or end.then is Then.ANY_JOB:
        return False
    if pilot.requested_s > shown_s or limit_s < HOPEFUL * settings.min_gap_s:
        return False
    began_s = snapshot.cycle.began_s if snapshot.cycle else None
    starts_s = starts_by_s(snapshot, settings.cycle_s, shown_s)
    if began_s is not None and began_s >= shown_s:
        starts_s = began_s
    return starts_s + limit_s > end.last_end_s(snapshot.plan_resolution_s)


def _may_wait(snapshot: Snapshot, settings: Settings) -> bool:
    """Whether a pilot in the queue is in nobody's way."""
    return snapshot.pilots_come_last and settings.hold_off_cycles <= 1.0
