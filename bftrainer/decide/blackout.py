"""Blackouts: times in which the policy lends no nodes.

A blackout ends the idle gap of every node, so that pilots are gone by its begin, as before a
planned job (``pool``). ``DecisionInput.blackout`` is the present or the next one
(``bftrainer.site.policy.calendar`` finds it). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bftrainer.batch.queue.model import GapEnd, Then
from bftrainer.model.decision import DecisionInput


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
    return {**ends, **{name: end for name in names if end.is_before(ends.get(name))}}


def wake_at_s(given: DecisionInput) -> float | None:
    """Return when the next decision is due for it: the pilots leave, or nodes are lent again."""
    blackout = given.blackout
    if blackout is None:
        return None
    leaves_s = blackout.begin_s - given.settings.gap_margin_s
    later = [at_s for at_s in (leaves_s, blackout.end_s) if at_s > given.now_s]
    return min(later, default=None)
