"""Scheduler cycles as snapshots have shown them: their number since a moment.

``observe`` is an estimator (``observation``). Only observed cycles count; the next one is never
predicted. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace

from bftrainer.model.cluster import Snapshot
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Settings

MOST = 33  # cycles remembered; nothing waits for more
PASS_S = 1.0  # assumed length where only the end is known; covers rounded clocks


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Add the cycle that the snapshot shows, if it is a new one."""
    began_s, cycles_s = _began_s(given.snapshot), memory.cycles
    if began_s is None or (cycles_s and began_s <= cycles_s[-1]):
        return memory
    return replace(memory, cycles=(*cycles_s, began_s)[-MOST:])


def have_passed(
    count: int, since_s: float, memory: Memory, snapshot: Snapshot, settings: Settings
) -> bool:
    """Return whether ``count`` whole cycles that began at ``since_s`` or later are over.

    Where the batch system does not report cycles: whether enough time has passed for ``count``
    cycles and, for safety, one more.
    """
    if not are_told(snapshot):
        return snapshot.taken_at_s > since_s + (count + 1) * settings.cycle_s
    first_after = bisect_left(memory.cycles, since_s)  # they are in order
    return len(memory.cycles) - first_after >= count


def are_told(snapshot: Snapshot) -> bool:
    """Return whether the batch system reports its cycles."""
    return _began_s(snapshot) is not None


def is_awaited(memory: Memory, pilots: Iterable[PilotView]) -> bool:
    """Return whether anything of ours depends on the outcome of the scheduler's next cycle.

    Reading the cycle costs one more request to the controller. Without it a snapshot holds the
    last known cycle, which can only delay a decision, never hasten it.
    """
    if memory.held_off or memory.vain:
        return True
    return any(not (p.is_held or p.is_leaving or p.is_silent) for p in pilots)


def _began_s(snapshot: Snapshot) -> float | None:
    cycle = snapshot.cycle
    if cycle is None or cycle.ended_s is None:
        return None
    if cycle.began_s is None:
        return cycle.ended_s - PASS_S
    return cycle.began_s
