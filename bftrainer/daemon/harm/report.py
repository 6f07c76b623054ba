"""Summarises harm records for ``bftrainer report harm``. Pure.

Records come from the daemon's memory or directly from a journal (``monitor``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bftrainer.daemon.harm import backoff
from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.ledger import (
    HandOver,
    HarmRecords,
    How,
    Rule,
    Why,
    delays_s,
    histogram,
    quantile,
    share_within,
    slow_part,
    worst,
)
from bftrainer.model.cluster import EndedBy
from bftrainer.model.reports import HarmReport, TakenCount, VainCount, WorstCase

WORST_SHOWN = 10


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
        precision_s=done.precision_s,
        reason=slow_part(done),
    )
