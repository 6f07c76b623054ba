"""Cycles of the scheduler, as looks have shown them: how many have passed since a moment.

``observe`` is an estimator (``observing``). Only what was seen counts: nobody foretells when
a cycle comes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bftrainer.model.cluster import Snapshot
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Settings

MOST = 33  # cycles that are remembered: nobody waits for more
PASS_S = 1.0  # where only its end is told a cycle takes less than that, and its clock rounds


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Add the cycle that the look shows, if it is a new one."""
    began_s, known = _began_s(given.snapshot), memory.cycles
    if began_s is None or (known and began_s <= known[-1]):
        return memory
    return replace(memory, cycles=(*known, began_s)[-MOST:])


def have_passed(
    count: int, since_s: float, memory: Memory, snapshot: Snapshot, settings: Settings
) -> bool:
    """Whether so many whole cycles, begun at that moment or later, are over.

    Where the batch system tells of none: whether so many are over for certain, and a bit.
    """
    if not are_told(snapshot):
        return snapshot.taken_at_s > since_s + (count + 1) * settings.cycle_s
    return sum(began_s >= since_s for began_s in memory.cycles) >= count


def are_told(snapshot: Snapshot) -> bool:
    """Whether the batch system tells of its cycles."""
    return _began_s(snapshot) is not None


def is_awaited(memory: Memory, pilots: Iterable[PilotView]) -> bool:
    """Whether anything of ours depends on what the scheduler's next cycle does.

    Asking for the cycle is a request to the controller of its own: else the daemon's looks have
    the one known last, which can only say "not passed yet", so that nothing is taken too early.
    """
    if memory.held_off or memory.vain:
        return True
    return any(not (p.is_held or p.is_leaving) for p in pilots)


def _began_s(snapshot: Snapshot) -> float | None:
    cycle = snapshot.cycle
    if cycle is None or cycle.ended_s is None:
        return None
    return cycle.ended_s - PASS_S if cycle.began_s is None else cycle.began_s
