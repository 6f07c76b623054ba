"""The pool of a snapshot and our pilots: nodes that may be used, and until when. Pure.

A blackout ends the idle gap of every node, so that pilots are gone by its begin, as before a
planned job. ``DecisionInput.blackout`` is the present or the next one
(``bftrainer.site.policy.calendar`` finds it).

A node is *usable* when one of our pilots holds it or was requested for it, or when it is a
candidate: idle in enough snapshots, not held off for a job, with a gap long enough. Some
candidates stay free as the reserve. We leave a node when the next planned use
(``QueueModel.gap_ends``) is closer than the margin.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import lru_cache
from typing import Final

from bftrainer.decide import borrowers
from bftrainer.model.census import FREE_STATES, LOST_STATES, NodeCensus, once_per_look
from bftrainer.model.cluster import PART_MARK, JobState, Node, NodeState, node_of
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Pool, PoolNode, Settings
from bftrainer.model.lookups import by_node
from bftrainer.model.parts import Lend
from bftrainer.model.queue import GapEnd, Then

# Usually two passes of the main scheduler: a job for which a node was released has started by
# then, or waits for the next backfill cycle.
PASS_S: Final = 3.0
ENOUGH_GAP_S: Final = 3600.0  # an interactive job of an hour fits
SHORTEST_S: Final = 60.0  # the shortest time limit we request
NONE_TAKEN: Final[Mapping[str, int]] = {}
KEPT_FREE: Final = "It is kept free for small and immediate jobs (reserve_nodes_per_type)."


def gap_end(given: DecisionInput) -> GapEnd | None:
    """Return the end of all gaps; None: no pilot requested now would reach it."""
    blackout, settings = given.blackout, given.settings
    longest_s = settings.pilot_time_limit_s + settings.gap_margin_s + settings.cycle_s
    if blackout is None or blackout.end_s <= given.now_s:
        return None
    left_s = blackout.begin_s - given.now_s
    if left_s > longest_s and not any(pilot.end_s is None for pilot in given.pilots):
        return None
    begin_s = blackout.begin_s
    return GapEnd(at_s=begin_s, last_end_s=begin_s, then=Then.BLACKOUT, by=blackout.name)


def earlier(
    ends: Mapping[str, GapEnd], end: GapEnd | None, names: Iterable[str]
) -> Mapping[str, GapEnd]:
    """Return the ends of the nodes' gaps, none of them after ``end``."""
    if end is None:
        return ends
    earlier_ends = dict(ends)
    for name in names:
        if end.is_before(ends.get(name)):
            earlier_ends[name] = end
    return earlier_ends


def wake_at_s(given: DecisionInput) -> float | None:
    """Return when the next decision is due for it: the pilots leave, or nodes are lent again."""
    blackout = given.blackout
    if blackout is None:
        return None
    leaves_s = blackout.begin_s - given.settings.gap_margin_s
    if given.now_s < leaves_s <= blackout.end_s:
        return leaves_s
    if given.now_s < blackout.end_s:
        return blackout.end_s
    return None


def build_pool(
    census: NodeCensus,
    printed: Mapping[str, GapEnd],
    planned: Mapping[str, GapEnd],
    pilots: Sequence[PilotView],
    memory: Memory,
    settings: Settings,
    now_s: float,
    closing: GapEnd | None = None,
    spared: AbstractSet[str] = frozenset(),
) -> Pool:
    """Sort every node of a complete snapshot into pool, reserve or not used.

    Args:
        census: of a complete snapshot and our pilots.
        printed: the ends of gaps that the batch system shows (``QueueModel.gap_ends``).
        planned: earliest planned use of each node in the scheduler's next plan. It binds pilots
            that have not started, too.
        pilots: ours, not ended.
        memory: of the decision fold.
        settings: of the site.
        now_s: on the batch system's clock.
        closing: ends all gaps, whatever the batch system plans.
        spared: parts that stay when the job starts that is planned next on their host.
    """
    pilots_on = by_node(pilots)
    looked_at = census.free | pilots_on.keys()
    printed = earlier(_of_parts(printed, looked_at), closing, looked_at)
    planned_ends = _of_parts(planned, looked_at).items()
    sooner = {**printed, **{n: e for n, e in planned_ends if e.is_before(printed.get(n))}}
    # While jobs are pending, pilots start in the next cycle: their limit must fit what is left.
    waits_s = settings.cycle_s if sooner and census.has_startable_jobs else 0.0
    sorter = _Sorter(census, memory, settings, now_s, now_s + waits_s, pilots)
    usable, candidates, due = list[PoolNode](), list[PoolNode](), dict[str, str]()
    not_used = dict(_not_free(census.snapshot.nodes or ()))
    for node in census.sets.members(census.sets.named(looked_at)):
        pilot, end = pilots_on.get(node.name), sooner.get(node.name)
        if pilot is None:
            until_s, why = sorter.until_s(end), sorter.why_not_take(node, end)
            pilot_facts = "", False, ""
        else:
            if pilot.is_held or pilot.end_s is not None:
                end = _end_of_started(node.name, printed, spared)
            until_s = sorter.keep_until_s(pilot, end)
            pilot_facts = pilot.pilot_id, pilot.is_held, pilot.user
            why, must_go = sorter.leave(node, pilot, end)
            if must_go:
                due[pilot.pilot_id] = why
        if why:
            not_used[node.name] = why
        else:
            not_used.pop(node.name, None)
            part = census.parts[node.name]
            lent = _pool_node(part.name, part.gpu_type, part.gpus, until_s, *pilot_facts)
            usable.append(lent)
            if pilot is None:
                candidates.append(lent)
    pool = Pool(nodes=tuple(usable), not_used=not_used, due=due, starts_s=now_s + waits_s)
    reserve = _reserve_of(census, memory, candidates, usable, settings, now_s)
    return replace(pool.without(dict.fromkeys(reserve, KEPT_FREE)), reserve=reserve)


def _end_of_started(
    name: str, printed: Mapping[str, GapEnd], spared: AbstractSet[str]
) -> GapEnd | None:
    """Return the end of the gap of a node whose pilot has started; None: there is none."""
    end = printed.get(name)
    if end is not None and end.then is Then.JOB and name in spared:
        return None
    return end


def _reserve_of(
    census: NodeCensus,
    memory: Memory,
    candidates: Sequence[PoolNode],
    usable: Sequence[PoolNode],
    settings: Settings,
    now_s: float,
) -> tuple[str, ...]:
    n_taken: Mapping[str, int] = NONE_TAKEN
    if memory.reserve_taken:
        n_taken = borrowers.reserve_taken(memory, census)
    return in_reserve(candidates, settings, now_s, n_taken, usable)


def _of_parts(ends: Mapping[str, GapEnd], names: Iterable[str]) -> Mapping[str, GapEnd]:
    """Return the ends of gaps by the names of parts, too: a host's are those of its parts."""
    if not ends:
        return ends
    of_parts: dict[str, GapEnd] = {}
    for name in names:
        if PART_MARK in name:
            end = ends.get(node_of(name))
            if end is not None:
                of_parts[name] = end
    if not of_parts:
        return ends
    return {**ends, **of_parts}


def in_reserve(
    free: Sequence[PoolNode],
    settings: Settings,
    now_s: float,
    taken: Mapping[str, int] = NONE_TAKEN,
    usable: Sequence[PoolNode] = (),
) -> tuple[str, ...]:
    """Return which of the free nodes stay in reserve.

    Preferred are nodes whose gap has an end, because trainers gain less from them: the shortest
    gap first, as long as an interactive job fits. Then nodes without an end, then gaps too short
    for such a job, longest first. Of parts of nodes, those of the fullest host: a small job that
    starts there leaves whole hosts to the jobs that need them. Ties: the last by name. Ends are
    points in time, so the choice is stable while plans are.

    Args:
        free: without a pilot of ours.
        settings: of the site.
        now_s: on the batch system's clock.
        taken: how many of each type another daemon took of the reserve.
        usable: all that no ordinary job uses, those with pilots, too.
    """
    reserve, count = list[str](), settings.reserve_nodes_per_type + settings.reserve_extra_nodes
    if not count:
        return ()
    n_unused = Counter(node_of(node.name) for node in usable if PART_MARK in node.name)

    def liked(node: PoolNode) -> tuple[int, float, int, str]:
        until_s, fullness = node.usable_until_s, 0
        if PART_MARK in node.name:
            fullness = -n_unused[node_of(node.name)]
        if until_s is None:
            return 1, 0.0, fullness, node.name
        is_enough = until_s - now_s >= ENOUGH_GAP_S
        if is_enough:
            return (2, -until_s, fullness, node.name)
        return (0, until_s, fullness, node.name)

    by_type: dict[str, list[PoolNode]] = {}
    for node in free:
        by_type.setdefault(node.node_type, []).append(node)
    for node_type, of_type in sorted(by_type.items()):
        n_kept = max(0, count - taken.get(node_type, 0))
        reserve += sorted([node.name for node in heapq.nlargest(n_kept, of_type, key=liked)])
    return tuple(reserve)


@lru_cache(maxsize=1 << 14)  # mostly the same nodes in every decision
def _pool_node(
    name: str, kind: str, gpus: int, end_s: float | None, pilot_id: str, is_held: bool, user: str
) -> PoolNode:
    return PoolNode(
        name=name,
        node_type=kind,
        gpus=gpus,
        usable_until_s=end_s,
        pilot_id=pilot_id,
        is_held=is_held,
        user=user,
    )


class _Sorter:
    """Decides for a node until when it may be used, or why not."""

    def __init__(
        self,
        census: NodeCensus,
        memory: Memory,
        settings: Settings,
        now_s: float,
        starts_s: float,
        pilots: Sequence[PilotView],
    ) -> None:
        self._waited_for: AbstractSet[str] = frozenset()
        if census.has_other_daemons:
            self._waited_for = borrowers.waited_for(census, pilots)
        self._memory, self._settings, self._taken = memory, settings, census.taken
        snapshot = census.snapshot
        self._now_s, self._starts_s, self._held_off = now_s, starts_s, memory.held_off
        self._shortest_limit_s = snapshot.shortest_limit_s
        self._limits_s: dict[str, float] = {}
        for job in snapshot.jobs or ():
            if job.pilot_id and job.time_limit_s and job.state is JobState.PENDING:
                self._limits_s[job.pilot_id] = job.time_limit_s
        if snapshot.pilots_come_last and settings.hold_off_cycles <= 1.0:
            # Once a snapshot shows that the main scheduler passed over the node, a pilot may be
            # queued: it ranks below every ordinary job. Not while the daemon backs off.
            shown_s = snapshot.taken_at_s - PASS_S
            self._held_off = {n: at_s for n, at_s in memory.held_off.items() if at_s > shown_s}

    def until_s(self, end: GapEnd | None) -> float | None:
        """Return by when the time limit of a pilot requested now must end."""
        if end is None:
            return None
        return end.last_end_s - self._settings.gap_margin_s

    def keep_until_s(self, pilot: PilotView, end: GapEnd | None) -> float | None:
        """Return when a pilot must leave its node; for a pending pilot, when it would have to."""
        if end is None:
            return pilot.end_s
        if pilot.is_held or pilot.end_s is not None:
            return min(end.at_s - self._settings.gap_margin_s, pilot.end_s or math.inf)
        return self.until_s(end)

    def why_not_take(self, node: Node, end: GapEnd | None) -> str:
        """Say why a free node without a pilot is not claimed; "": it is a candidate."""
        settings = self._settings
        if why := self._why_not_lent(node):
            return why
        if node.name in self._held_off:
            return "It is left to the queue until a whole scheduler cycle has passed."
        if self._waited_for and node_of(node.name) in self._waited_for:
            return borrowers.WAITED_FOR
        until_s = self.until_s(end)
        if end is not None and until_s is not None:
            shortest_s = min(SHORTEST_S, settings.min_gap_s)  # left once the pilot starts
            shortest_s = max(shortest_s, self._shortest_limit_s)
            is_long = until_s - self._starts_s >= shortest_s and until_s > self._now_s
            if not is_long or until_s - self._now_s < settings.min_gap_s:
                return end.sentence(self._now_s)
        if self._memory.idle_seen.get(node.name, 0) < settings.idle_confirmations:
            return "It has not been idle in enough snapshots yet (idle_confirmations)."
        return ""

    def _why_not_lent(self, node: Node) -> str:
        """Say why the policy does not lend a node, or a part of its size, at all; "": it does."""
        settings = self._settings
        if settings.eligible_node_types and node.node_type not in settings.eligible_node_types:
            return f"Policy does not use nodes of type {node.node_type}."
        if settings.lend is Lend.GPUS and PART_MARK not in node.name:
            because = node.why_whole or "It lends none."
            return f"The policy lends GPUs one by one only (lend: gpus). {because}"
        return ""

    def leave(self, node: Node, pilot: PilotView, end: GapEnd | None) -> tuple[str, bool]:
        """Say why a pilot's node is not usable any more, and whether the pilot must be released."""
        settings, now_s = self._settings, self._now_s
        if pilot.is_leaving:
            return f"Pilot {pilot.pilot_id} is leaving it.", False
        left_s = math.inf
        if pilot.end_s is not None:
            left_s = pilot.end_s - now_s
        is_taken = node.name in self._taken and not pilot.is_held
        must_go = is_taken or left_s <= settings.end_margin_s / 2
        # Of a node that is down the batch system ends the pilot. While its agent is connected, only
        # the batch system's own daemon there does not answer.
        if node.state in LOST_STATES and not (node.state is NodeState.DOWN and pilot.is_held):
            return _state_of(node), must_go or node.state is not NodeState.DOWN
        is_ours_to_give = settings.gives_back or not pilot.is_held
        if (
            end is not None
            and (is_ours_to_give or end.then is Then.BLACKOUT)
            and self._is_due(pilot, end)
        ):
            return end.sentence(now_s), True
        if is_taken:
            return f"An ordinary job took it before pilot {pilot.pilot_id} could start.", True
        if left_s <= settings.end_margin_s:
            return f"The time limit of pilot {pilot.pilot_id} is about to strike.", must_go
        return _not_heard(pilot) if pilot.is_silent else "", False

    def _is_due(self, pilot: PilotView, end: GapEnd) -> bool:
        """Return whether a pilot must leave for the next use, or is pending and could not start."""
        if limit_s := self._limits_s.get(pilot.pilot_id):
            return self._now_s + limit_s > end.last_end_s
        return self._now_s >= end.at_s - self._settings.gap_margin_s


@once_per_look
def _not_free(nodes: tuple[Node, ...]) -> Mapping[str, str]:
    return {node.name: _state_of(node) for node in nodes if node.state not in FREE_STATES}


def _not_heard(pilot: PilotView) -> str:
    return (
        f"The agent of pilot {pilot.pilot_id} is not heard; trainers do without the node until it"
        " is, and the pilot ends if that takes too long (unreachable_s)."
    )


def _state_of(node: Node) -> str:
    because = ""
    if node.reason:
        because = f" ({node.reason})"
    return f"It is {node.state.value}{because}."
