"""Idle time that min_gap_s and gap_margin_s leave alone, and what other values lend. Pure.

A gap is lent if what the plan leaves of it, less the margin, covers three times: until Slurm starts
the pilot (up to one cycle while jobs wait), the pilot's time limit (Slurm knows whole minutes), and
``min_gap_s``, in which a trainer has to earn its start and its two rescales. Hence no ``min_gap_s``
below ``LEAST_GAP_S`` is tried. ``bftrainer.daemon.idle_watch`` collects the gaps that a daemon has
seen, with what the plan said of each; a trace tells how long gaps were, so there every end counts
as planned, and all figures are upper bounds. ``doctor`` and ``whatif`` print them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from bftrainer.decide.pool import SHORTEST_S
from bftrainer.model.site import Finding, GapTrial, Measured, ShortGaps, Weight

CODE: Final = "BFT-2125"
LEAST_GAP_S: Final = SHORTEST_S
TELLING_SHARE: Final = 0.05  # of the idle time: with less there is nothing to change
LEAST_SHARE: Final = 0.001  # of the idle time: less is not told
HOUR_S: Final = 3600.0
DAY_H: Final = 24.0
HALF: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time in which a node was idle and its next use near."""

    length_s: float  # it lasted
    left_s: float  # it was to last, by the plan, when it began
    waits_s: float = 0.0  # until Slurm would have started a pilot
    lead_s: float = 0.0  # that ends of pilots take, beside the margin
    is_after_pilot: bool = False  # a pilot left for the next use: it would only have stayed on


def lent_s(gap: Gap, min_gap_s: float, gap_margin_s: float) -> float:
    """Return how much of a gap is lent with these settings, in seconds."""
    until_s = gap.left_s - gap_margin_s - gap.lead_s
    if gap.is_after_pilot:
        return max(0.0, min(gap.length_s, until_s))
    if until_s < max(min_gap_s, min(SHORTEST_S, min_gap_s) + gap.waits_s):
        return 0.0
    return max(0.0, min(gap.length_s, until_s) - gap.waits_s)


def pairs_to_try(min_gap_s: float, gap_margin_s: float) -> tuple[tuple[float, float], ...]:
    """Return other pairs of the two settings: each one lower, and both."""
    least_s = min(min_gap_s, LEAST_GAP_S)
    pairs = ((least_s, gap_margin_s), (min_gap_s, 0.0), (least_s, 0.0))
    return tuple(dict.fromkeys(pair for pair in pairs if pair != (min_gap_s, gap_margin_s)))


def trials(gaps: Iterable[Gap], min_gap_s: float, gap_margin_s: float) -> tuple[GapTrial, ...]:
    """Return what the other pairs would have lent more of some gaps."""
    all_gaps = list(gaps)
    usual_s = [lent_s(gap, min_gap_s, gap_margin_s) for gap in all_gaps]
    gap_trials: list[GapTrial] = []
    for least_s, margin_s in pairs_to_try(min_gap_s, gap_margin_s):
        trial = _trial(all_gaps, usual_s, least_s, margin_s)
        gap_trials.append(trial)
    return tuple(gap_trials)


def _trial(gaps: list[Gap], usual_s: list[float], min_gap_s: float, margin_s: float) -> GapTrial:
    other_s = [lent_s(gap, min_gap_s, margin_s) for gap in gaps]
    n_new_pilots = 0
    for gap, more_s, before_s in zip(gaps, other_s, usual_s, strict=True):
        if not gap.is_after_pilot and more_s > 0.0 and before_s <= 0.0:
            n_new_pilots += 1
    return GapTrial(
        min_gap_s=min_gap_s,
        gap_margin_s=margin_s,
        more_node_h=(sum(other_s) - sum(usual_s)) / HOUR_S,
        more_pilots=n_new_pilots,
    )


def of_lengths(
    length_s: Iterable[float], hours: float, *, min_gap_s: float, gap_margin_s: float
) -> ShortGaps:
    """Return the figures of a trace, of the lengths of its idle times.

    All ends count as planned from the beginning, and pilots as started at once.
    """
    lengths = list(map(float, length_s))
    shortest_s = min_gap_s + gap_margin_s
    near_s = 0.0
    gaps: list[Gap] = []
    for one_s in lengths:
        gaps.append(Gap(length_s=one_s, left_s=one_s))
        if one_s < shortest_s:
            near_s += one_s
    return ShortGaps(
        hours=hours,
        idle_node_h=sum(lengths) / HOUR_S,
        near_node_h=near_s / HOUR_S,
        min_gap_s=min_gap_s,
        gap_margin_s=gap_margin_s,
        trials=trials(gaps, min_gap_s, gap_margin_s),
    )


def sentences(found: ShortGaps, measured: Measured | None) -> Iterator[str]:
    """Say what is left alone, what other settings would bring, and what they would risk.

    Args:
        found: the figures.
        measured: by the daemon that has seen the gaps; None: they are of a trace.
    """
    settings = f"min_gap_s {found.min_gap_s:g} + gap_margin_s {found.gap_margin_s:g}"
    shortest_s = found.min_gap_s + found.gap_margin_s
    if measured is None:
        yield (
            f"{found.near_share:.1%} of the idle node-time lies in gaps shorter than"
            f" {shortest_s:g} s ({settings}): it is not lent where the batch system has planned"
            " the end of the gap. The replays do not know of plans and lend it."
        )
    else:
        yield (
            f"{found.near_share:.1%} of {found.idle_node_h:,.1f} idle node-hours in"
            f" {found.hours:,.1f} h were left alone because a planned job or reservation was to"
            f" use the node within {shortest_s:g} s ({settings})."
        )
    least_node_h = LEAST_SHARE * found.idle_node_h
    useful = [trial for trial in found.trials if trial.more_node_h >= least_node_h]
    if not useful:
        little = f"{LEAST_SHARE:.1%} of the idle time"
        yield f"Of gaps that have ended, lower values would lend less than {little} more."
        return
    for trial in useful:
        share = 0.0
        if found.idle_node_h:
            share = trial.more_node_h / found.idle_node_h
        per_day = 0.0
        if found.hours:
            per_day = trial.more_pilots / found.hours * DAY_H
        yield (
            f"min_gap_s {trial.min_gap_s:g} with gap_margin_s {trial.gap_margin_s:g} would lend at"
            f" most {share:.1%} of the idle time more, with {_pilots(per_day)} a day."
        )
    yield from _alike(useful)
    yield _risk(found, measured)


def _pilots(per_day: float) -> str:
    """Return a mean number of pilots, rounded to whole ones."""
    if 0.0 < per_day < HALF:
        return "less than one more pilot"
    count = math.floor(per_day + HALF)
    about = "about " if count else ""
    return f"{about}{count:,} more pilot{'' if count == 1 else 's'}"


def _alike(useful: list[GapTrial]) -> Iterator[str]:
    """Say why two pairs of settings bring as many pilots: what counts is their sum."""
    for first, second in combinations(useful, 2):
        sum_s = first.min_gap_s + first.gap_margin_s
        is_same_sum = sum_s == second.min_gap_s + second.gap_margin_s
        if is_same_sum and first.more_pilots == second.more_pilots:
            yield (
                f"Pairs with the same sum ({sum_s:g} s) take the same gaps, hence the same number"
                " of pilots; with the smaller margin each pilot stays longer."
            )


def _risk(found: ShortGaps, measured: Measured | None) -> str:
    return_text = "comes back only when its pilot and the site's Epilog have ended"
    if measured is not None and measured.end_s is not None:
        return_text = (
            f"is usable {measured.end_s:.1f} s after its pilot is asked to leave (measured)"
        )
    cycle = ""
    if found.cycle_s is not None:
        cycle = f" ({found.cycle_s:g} s)"
    return (
        f"The risk: each of these pilots is a node more to give back, and it {return_text}."
        f" A job to which it comes back too late starts one cycle of the scheduler{cycle} later."
        " Without a margin"
        " a pilot leaves only when the job is due."
    )


def findings(measured: Measured) -> tuple[Finding, ...]:
    """Return a finding if much of the idle time is left alone and other settings would lend it."""
    gaps = measured.short_gaps
    if gaps is None or not gaps.idle_node_h:
        return ()
    best = max(gaps.trials, key=lambda trial: trial.more_node_h, default=None)
    if best is None or best.more_node_h < TELLING_SHARE * gaps.idle_node_h:
        return ()
    cost, *_, risk = sentences(gaps, measured)
    finding = Finding(
        code=CODE,
        weight=Weight.LOSS,
        setting=f"min_gap_s {gaps.min_gap_s:g}, gap_margin_s {gaps.gap_margin_s:g}",
        cost=cost,
        remedy=f"min_gap_s: {best.min_gap_s:g} and gap_margin_s: {best.gap_margin_s:g} in the"
        f" policy would lend at most {best.more_node_h:,.1f} node-hours of these. {risk}",
    )
    return (finding,)
