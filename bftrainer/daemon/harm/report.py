"""Summarises harm records for ``bftrainer report harm``. Pure.

Records come from the daemon's memory or directly from a journal (``monitor``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from bftrainer.daemon.harm import backoff
from bftrainer.daemon.harm.aftermath import Unusable
from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.ledger import (
    HandOver,
    HarmRecords,
    How,
    Rule,
    Why,
    delays_s,
    histogram,
    lost_cycles,
    quantile,
    share_within,
    slow_part,
    worst,
)
from bftrainer.daemon.harm.lost_cycle import WHOLE_S
from bftrainer.model.cluster import EndedBy
from bftrainer.model.reports import (
    HarmReport,
    LeavingRate,
    Leavings,
    TakenCount,
    UnusableNode,
    VainCount,
    WorstCase,
)

WORST_SHOWN = 10
_Z = 1.959964  # of a two-sided 95% interval


def make_report(
    found: Iterable[HarmRecords], state: BackOff, rule: Rule, *, since_s: float, until_s: float
) -> HarmReport:
    """Summarise what was settled in a period."""
    records = list(found)
    hand_overs = [h for r in records for h in r.hand_overs]
    vain = [v for r in records for v in r.vain]
    delays = delays_s(hand_overs)
    within = share_within(delays, rule.limit_s)
    preempted = [h for h in hand_overs if h.how is How.PREEMPTED]
    jobs = {h.job_id for h in hand_overs}
    preempted_jobs = {h.job_id for h in preempted}
    asked_for = sum(1 for h in hand_overs if h.how is How.GIVEN_BACK and h.asked_for)
    why = Counter(v.why for v in vain)
    taken = Counter(t.by for r in records for t in r.taken)
    lost = lost_cycles(hand_overs)
    hours = (until_s - since_s) / 3600.0
    return HarmReport(
        since_s=since_s,
        until_s=until_s,
        limit_s=rule.limit_s,
        share_promised=rule.share,
        hand_overs=len(hand_overs),
        jobs=len(jobs),
        measured=len(delays),
        share_within=within,
        is_kept=within is None or within >= rule.share,
        median_s=quantile(delays, 0.5),
        p95_s=quantile(delays, 0.95),
        max_s=max(delays, default=None),
        histogram=histogram(delays),
        given_back=len(hand_overs) - len(preempted),
        preempted=len(preempted),
        preempted_jobs=len(preempted_jobs),
        share_preempted=_share(len(preempted_jobs), len(jobs)),
        preempted_jobs_per_hour=_share(len(preempted_jobs), hours),
        taken=taken.total(),
        in_vain=len(vain),
        share_in_vain=_share(len(vain), len(vain) + asked_for),
        in_vain_per_hour=_share(len(vain), hours),
        vain=tuple(VainCount(why=w.value, nodes=why[w]) for w in Why),
        worst=tuple(_worst_case(h) for h in worst(hand_overs, WORST_SHOWN)),
        back_off_level=state.level,
        back_off=backoff.sentence(state),
        taken_by=tuple(TakenCount(by=by.value, pilots=taken[by]) for by in EndedBy if taken[by]),
        leavings=_leavings(records),
        cycles_lost=len(lost),
        cycles_lost_s=math.fsum(one.lost_s for one in lost),
        lost_cycles=lost[:WORST_SHOWN],
    )


def wilson(events: int, trials: int) -> tuple[float, float] | None:
    """Return the two-sided 95% interval of a share (Wilson 1927); None: no trials."""
    if not trials:
        return None
    share, part = events / trials, _Z * _Z / trials
    middle = share + part / 2.0
    half = _Z * math.sqrt(share * (1.0 - share) / trials + part / (4.0 * trials))
    ends = (middle - half) / (1.0 + part), (middle + half) / (1.0 + part)
    return min(share, max(0.0, ends[0])), max(share, min(1.0, ends[1]))


def _leavings(records: list[HarmRecords]) -> Leavings:
    """Compare what pilots and ordinary jobs left behind.

    The interval of the difference is Newcombe's (1998), made of Wilson's of the two shares.
    """
    left = [one for r in records for one in r.left]
    events = [one for r in records for one in r.unusable]
    n_ours = sum(1 for one in events if one.pilot_id)
    ours = _rate(n_ours, len(left))
    theirs = _rate(len(events) - n_ours, sum(r.ordinary_left for r in records))
    times = [(one.took_s, one.precision_s) for one in left if one.took_s is not None]
    took = [took_s for took_s, _ in times]
    found = Leavings(
        by_pilots=ours,
        by_jobs=theirs,
        measured=len(took),
        median_s=quantile(took, 0.5),
        p95_s=quantile(took, 0.95),
        max_s=max(took, default=None),
        precision_s=max((by_s for _, by_s in times), default=None),
        nodes=tuple(_unusable(one) for one in events[-WORST_SHOWN:]),
    )
    p, q = ours, theirs
    if p.share is None or p.low is None or p.high is None:
        return found
    if q.share is None or q.low is None or q.high is None:
        return found
    excess = p.share - q.share
    return replace(
        found,
        excess=excess,
        excess_low=excess - math.hypot(p.share - p.low, q.high - q.share),
        excess_high=excess + math.hypot(p.high - p.share, q.share - q.low),
    )


def _rate(events: int, left: int) -> LeavingRate:
    left = max(left, events)  # a node whose job completes for ever is left later, or never
    interval = wilson(events, left)
    if interval is None:
        return LeavingRate()
    low, high = interval
    return LeavingRate(left=left, unusable=events, share=events / left, low=low, high=high)


def _unusable(one: Unusable) -> UnusableNode:
    return UnusableNode(
        node=one.node,
        state=one.state.value,
        reason=one.reason,
        at_s=one.at_s,
        after_s=one.after_s,
        job_id=one.job_id,
        pilot_id=one.pilot_id,
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _worst_case(done: HandOver) -> WorstCase:
    return WorstCase(
        job_id=done.job_id,
        n_nodes=done.n_nodes,
        node=done.node,
        pilot_id=done.pilot_id,
        how=done.how.value,
        asked_s=done.asked_s,
        delay_s=done.delay_s,
        precision_s=max(done.precision_s, WHOLE_S if done.cycle_lost_s else 0.0),
        reason=slow_part(done),
    )
