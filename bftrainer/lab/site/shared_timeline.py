"""Backfill's view of the future where jobs share nodes, and the earliest start of a job in it.

As sched/backfill and select/cons_tres of Slurm 22.05 do it (``_attempt_backfill`` in backfill.c,
``_will_run_test`` in job_test.c). All times are whole seconds. What is planned closes whole nodes,
from the slot of ``bf_resolution`` in which it begins to the one in which it ends; a slot that a
limit only touches counts. A job is first sought a place on the nodes that are open from now until
its limit: now, or when running jobs end. These are taken out in the order of their limits, those
together that end within a span; spans begin with 30 s and double. If it could begin only after the
first plan has ended, or would overlap with a plan, all is done again with the nodes that are open
from then on. Where a job begins later, its nodes are thus not the best for that time, but the best
of those that are open for the time that was looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from bftrainer.lab.site.shared import Need, Remainder, ResourceLayout, TakenParts
from bftrainer.lab.site.sharing import NodeSet
from bftrainer.lab.site.timeline import FIRST_SPAN_S, EarliestStart, union_of


@dataclass(slots=True)
class _Slot:
    """Nodes on which nobody is planned from when until when."""

    begin_s: float
    end_s: float
    nodes: NodeSet


class _Fit(NamedTuple):
    """The nodes that have room for a need when a running job, and all before it, have ended."""

    turn: int  # of the job, among those that run in the order of their limits
    nodes: NodeSet


class SharedTimeline:
    """What is left on shared nodes from when on, and which nodes are planned for others."""

    def __init__(
        self,
        now_s: float,
        remainder: Remainder,
        ends: Iterable[tuple[float, TakenParts]],
        slot_s: float,
        layout: ResourceLayout,
    ) -> None:
        """Begin with nothing planned.

        Args:
            now_s: when the plan is made.
            remainder: beside ordinary jobs now.
            ends: of running jobs: when their limit strikes, and what they have.
            slot_s: bf_resolution.
            layout: of the nodes.
        """
        self.now_s, self._slot_s, self._layout = now_s, slot_s, layout
        self._left = remainder.copy()
        # A limit that is overdue is taken to strike in a second.
        struck = ((max(math.floor(end_s), self._now + 1), parts) for end_s, parts in ends)
        self._running = sorted(struck, key=itemgetter(0))
        every = (1 << len(layout.capacities)) - 1
        self._slots = [_Slot(self._slot(self._now), math.inf, every)]
        self._fits: dict[Need, list[_Fit]] = {}
        self._later: dict[int, Remainder] = {}

    @property
    def _now(self) -> int:
        return math.floor(self.now_s)

    def advance(self, now_s: float) -> None:
        """Let time pass in which no job started or ended."""
        self.now_s = now_s

    # ---- the earliest start --------------------------------------------------------------

    def earliest(
        self, count: int, limit_s: float, among: NodeSet, need: Need | None = None
    ) -> EarliestStart | None:
        """Return the earliest start of a job, and its nodes; None: there is none."""
        need = need or self._layout.need(None, "")
        now, later = self._now, 0.0
        while True:
            from_s = later
            until_s = max(from_s, now) + limit_s
            open_nodes, later = self._open(from_s, until_s, among)
            turn = self._turn_on(open_nodes, count, need)
            if turn is None:
                if not later:
                    return None
                continue
            room_s: float = now
            if turn >= 0:
                room_s, _ = self._running[turn]
            at_s = max(from_s, room_s)
            if at_s > now and later and at_s > later:
                continue
            remainder = self._left_after(turn)
            nodes = self._layout.choose(need, remainder.fits(need) & open_nodes, count, remainder)
            if at_s <= now:
                return EarliestStart(self.now_s, nodes)
            if not self._overlaps(self._slot(at_s), self._slot(at_s + limit_s), nodes):
                return EarliestStart(at_s, nodes)
            later = at_s

    def choose(self, start: EarliestStart, _count: int, _need: Need | None = None) -> NodeSet:
        """Return the nodes of a planned start: those that came with it."""
        return start.nodes

    def _open(self, from_s: float, until_s: float, among: NodeSet) -> tuple[NodeSet, float]:
        """Return the nodes that are open all the time, and when others are; 0: never."""
        open_nodes, later = among, 0.0
        for n, slot in enumerate(self._slots):
            if slot.end_s > from_s and not later and n + 1 < len(self._slots):
                next_nodes = among & self._slots[n + 1].nodes
                if next_nodes & ~(open_nodes & slot.nodes):
                    later = slot.end_s
            if slot.end_s <= from_s:
                continue
            if slot.begin_s > until_s:
                break
            open_nodes &= slot.nodes
        return open_nodes, later

    def _turn_on(self, among: NodeSet, count: int, need: Need) -> int | None:
        """Return after which running job's end so many of these nodes have room.

        It is the last one of a span; -1: they have room now; None: they never have.
        """
        if (self._left.fits(need) & among).bit_count() >= count:
            return -1
        for fit in self._fits_of(need):
            if (fit.nodes & among).bit_count() >= count:
                return self._last_of_span(among, fit.turn)
        return None

    def _fits_of(self, need: Need) -> list[_Fit]:
        """Return which nodes have room after each end that makes room on some."""
        if need not in self._fits:
            self._fits[need] = list(self._following_fits(need))
        return self._fits[need]

    def _following_fits(self, need: Need) -> Iterator[_Fit]:
        remainder = self._left.copy()
        fitting = remainder.fits(need)
        for turn, (_, parts) in enumerate(self._running):
            remainder.give(parts)
            if parts.nodes & ~fitting:
                has_room = (remainder.amounts[:, parts.at] >= need.least[:, None]).all(axis=0)
                newly_fitting = union_of(1 << k for k in parts.at[has_room].tolist())
                if newly_fitting & ~fitting:
                    fitting |= newly_fitting
                    yield _Fit(turn, fitting)

    def _last_of_span(self, among: NodeSet, turn: int) -> int:
        """Return the last end of the span in which an end lies; only jobs on these nodes count."""
        span_s, mark_s, last = FIRST_SPAN_S, 0.0, turn
        ends = self._running
        for n, (end_s, parts) in enumerate(ends):
            if not parts.nodes & among:
                continue
            if not mark_s:
                mark_s = end_s + span_s - end_s % span_s
            last = n
            # The next limit counts here whether or not its job is on one of these nodes.
            if n + 1 == len(ends) or ends[n + 1][0] > mark_s + span_s:
                if last >= turn:
                    break
                span_s *= 2.0
                while ends[n + 1][0] > mark_s + span_s:
                    span_s *= 2.0
        return last

    def _left_after(self, turn: int) -> Remainder:
        """Return what is left when all jobs up to this one have ended."""
        if turn < 0:
            return self._left
        if turn not in self._later:
            remainder = self._left.copy()
            for _, parts in self._running[: turn + 1]:
                remainder.give(parts)
            self._later[turn] = remainder
        return self._later[turn]

    # ---- what is planned -----------------------------------------------------------------

    def close(self, start_s: float, end_s: float, nodes: NodeSet) -> None:
        """Plan a job on these nodes as a whole, in slots."""
        begin_s = max(self._slot(start_s), self._slots[0].begin_s)
        self.cut(begin_s, max(self._slot(end_s), begin_s + self._slot_s), nodes)

    def start(self, end_s: float, nodes: NodeSet, need: Need | None = None) -> None:
        """Let a job run from now until its limit."""
        need = need or self._layout.need(None, "")
        parts = self._layout.take(need, nodes, self._left)
        self._left.take(parts)
        self._running.append((math.floor(end_s), parts))
        self._running.sort(key=itemgetter(0))
        self._fits.clear()
        self._later.clear()
        if need.is_whole:
            self.close(self.now_s, end_s, nodes)

    def cut(self, begin_s: float, end_s: float, nodes: NodeSet) -> None:
        """Close nodes from one moment to another."""
        self._divide(begin_s)
        self._divide(end_s)
        slots: list[_Slot] = []
        for slot in self._slots:
            if begin_s <= slot.begin_s and slot.end_s <= end_s:
                slot.nodes &= ~nodes
            if slots and slots[-1].nodes == slot.nodes:
                slots[-1].end_s = slot.end_s
            else:
                slots.append(slot)
        self._slots = slots

    def open_now(self, limit_s: float) -> NodeSet:
        """Return the nodes that nobody is planned on for the whole limit; they may be in use."""
        open_nodes, _ = self._open(self._now, self._now + limit_s, -1)
        return open_nodes

    def _divide(self, at_s: float) -> None:
        for n, slot in enumerate(self._slots):
            if slot.begin_s < at_s < slot.end_s:
                self._slots.insert(n + 1, _Slot(at_s, slot.end_s, slot.nodes))
                slot.end_s = at_s
                return

    def _overlaps(self, begin_s: float, end_s: float, nodes: NodeSet) -> bool:
        return any(
            slot.end_s > begin_s and slot.begin_s < end_s and nodes & ~slot.nodes
            for slot in self._slots
        )

    def _slot(self, at_s: float) -> float:
        if math.isinf(at_s):
            return at_s
        return math.floor(at_s / self._slot_s) * self._slot_s
