"""Summarises harm records for ``bftrainer report harm``. Pure.

Records come from the daemon's memory or directly from a journal (``monitor``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from bftrainer.daemon.harm import backoff
from bftrainer.daemon.harm.aftermath import Departure, Unusable
from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.ledger import (
    HandOver,
    HarmRecords,
    How,
    Rule,
    Vain,
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
from bftrainer.daemon.harm.pending import StaysPending
from bftrainer.model.cluster import EndedBy, node_of
from bftrainer.model.reports import (
    HarmReport,
    LeavingRate,
    Leavings,
    PartCounts,
    PendingCount,
    TakenCount,
    UnusableNode,
    VainCount,
    WorstCase,
)

WORST_SHOWN: Final = 10
NODES_SHOWN: Final = 20
HOUR_S: Final = 3600.0
_Z: Final = 1.959964  # of a two-sided 95% interval


class _Settled:
    """All records of a period, of one kind each."""

    def __init__(self, records: Iterable[HarmRecords]) -> None:
        self.hand_overs: list[HandOver] = []
        self.vain: list[Vain] = []
        self.departures: list[Departure] = []
        self.unusable: list[Unusable] = []
        self.n_taken_by: Counter[EndedBy] = Counter()
        self.ordinary_left = 0
        self.pending: list[StaysPending] = []
        for settled in records:
            self.hand_overs += settled.hand_overs
            self.vain += settled.vain
            self.departures += settled.left
            self.unusable += settled.unusable
            self.n_taken_by.update(pilot.by for pilot in settled.taken)
            self.ordinary_left += settled.ordinary_left
            self.pending += settled.pending


def make_report(
    records: Iterable[HarmRecords], state: BackOff, rule: Rule, *, since_s: float, until_s: float
) -> HarmReport:
    """Summarise what was settled in a period."""
    settled = _Settled(records)
    hand_overs, vain = settled.hand_overs, settled.vain
    delays = delays_s(hand_overs)
    within = share_within(delays, rule.limit_s)
    jobs: set[str] = set()
    preempted_jobs: set[str] = set()
    n_preempted = n_asked_for = 0
    for hand_over in hand_overs:
        jobs.add(hand_over.job_id)
        if hand_over.how is How.PREEMPTED:
            n_preempted += 1
            preempted_jobs.add(hand_over.job_id)
        elif hand_over.how is How.GIVEN_BACK and hand_over.asked_for:
            n_asked_for += 1
    why = Counter(node.why for node in vain)
    cycles = lost_cycles(hand_overs)
    hours = (until_s - since_s) / HOUR_S
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
        given_back=len(hand_overs) - n_preempted,
        preempted=n_preempted,
        preempted_jobs=len(preempted_jobs),
        share_preempted=_share(len(preempted_jobs), len(jobs)),
        preempted_jobs_per_hour=_share(len(preempted_jobs), hours),
        taken=settled.n_taken_by.total(),
        in_vain=len(vain),
        share_in_vain=_share(len(vain), len(vain) + n_asked_for),
        in_vain_per_hour=_share(len(vain), hours),
        vain=tuple(VainCount(why=w.value, nodes=why[w]) for w in Why),
        worst=tuple(map(_worst_case, worst(hand_overs, WORST_SHOWN))),
        back_off_level=state.level,
        back_off=backoff.sentence(state),
        taken_by=_taken_by(settled.n_taken_by),
        leavings=_leavings(settled),
        cycles_lost=len(cycles),
        cycles_lost_s=math.fsum(cycle.lost_s for cycle in cycles),
        lost_cycles=cycles[:WORST_SHOWN],
        gpus=sum(hand_over.gpus for hand_over in hand_overs),
        by_gpu=_by_gpu(settled, rule),
        by_node=_by_node(settled, rule),
        pending=len(settled.pending),
        pending_why=_pending_why(settled.pending),
    )


def _by_gpu(settled: _Settled, rule: Rule) -> tuple[PartCounts, ...]:
    """Return what became of parts, by the type of their GPUs."""
    counts = _PartSums()
    counts.add(settled, rule, by_node=False)
    return tuple(counts.of[key] for key in sorted(counts.of))


def _by_node(settled: _Settled, rule: Rule) -> tuple[PartCounts, ...]:
    """Return the same by node and type, those with the most trouble first."""
    counts = _PartSums()
    counts.add(settled, rule, by_node=True)
    by_name = [counts.of[key] for key in sorted(counts.of)]
    by_name.sort(key=lambda one: one.late + one.in_vain + one.preempted + one.pending, reverse=True)
    return tuple(by_name[:NODES_SHOWN])


class _PartSums:
    """Counts of parts by node and type of GPUs."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], PartCounts] = {}

    def add(self, settled: _Settled, rule: Rule, *, by_node: bool) -> None:
        """Add all records of a period; ``by_node``: else all nodes together."""
        for hand_over in settled.hand_overs:
            is_preempted = hand_over.how is How.PREEMPTED
            is_late = hand_over.delay_s is not None and hand_over.delay_s > rule.limit_s
            self._count(
                hand_over,
                by_node=by_node,
                hand_overs=1,
                gpus=hand_over.gpus,
                given_back=int(not is_preempted),
                preempted=int(is_preempted),
                late=int(is_late),
            )
        for vain in settled.vain:
            self._count(vain, by_node=by_node, in_vain=1)
        for pilot in settled.pending:
            self._count(pilot, by_node=by_node, pending=1)

    def _count(self, of: HandOver | Vain | StaysPending, *, by_node: bool, **more: int) -> None:
        if not of.gpus:
            return  # a whole node
        node = ""
        if by_node:
            node = node_of(of.node)
        key = node, of.gpu_type
        before = self.of.get(key) or PartCounts(node=node, gpu_type=of.gpu_type)
        sums = {name: getattr(before, name) + number for name, number in more.items()}
        self.of[key] = replace(before, **sums)


def _pending_why(pilots: Iterable[StaysPending]) -> tuple[PendingCount, ...]:
    counts = Counter(pilot.why for pilot in pilots)
    return tuple(PendingCount(why=why, pilots=number) for why, number in counts.most_common())


def _taken_by(n_taken_by: Counter[EndedBy]) -> tuple[TakenCount, ...]:
    return tuple(
        TakenCount(by=taker.value, pilots=n_taken_by[taker])
        for taker in EndedBy
        if n_taken_by[taker]
    )


def wilson(events: int, trials: int) -> tuple[float, float] | None:
    """Return the two-sided 95% interval of a share (Wilson 1927); None: no trials."""
    if not trials:
        return None
    share, part = events / trials, _Z * _Z / trials
    middle = share + part / 2.0
    half = _Z * math.sqrt(share * (1.0 - share) / trials + part / (4.0 * trials))
    low, high = (middle - half) / (1.0 + part), (middle + half) / (1.0 + part)
    return min(share, max(0.0, low)), max(share, min(1.0, high))


def _leavings(settled: _Settled) -> Leavings:
    """Compare what pilots and ordinary jobs left behind.

    The interval of the difference is Newcombe's (1998), made of Wilson's of the two shares.
    """
    events = settled.unusable
    n_ours = sum(1 for event in events if event.pilot_id)
    n_left = sum(not departure.is_one_more for departure in settled.departures)
    ours = _rate(n_ours, n_left)
    theirs = _rate(len(events) - n_ours, settled.ordinary_left)
    times_s: list[float] = []
    precision_s: float | None = None
    for departure in settled.departures:
        if departure.took_s is not None:
            times_s.append(departure.took_s)
            precision_s = max(precision_s or 0.0, departure.precision_s)
    leavings = Leavings(
        by_pilots=ours,
        by_jobs=theirs,
        measured=len(times_s),
        median_s=quantile(times_s, 0.5),
        p95_s=quantile(times_s, 0.95),
        max_s=max(times_s, default=None),
        precision_s=precision_s,
        nodes=tuple(map(_unusable, events[-WORST_SHOWN:])),
    )
    p, q = ours, theirs
    if p.share is None or p.low is None or p.high is None:
        return leavings
    if q.share is None or q.low is None or q.high is None:
        return leavings
    excess = p.share - q.share
    return replace(
        leavings,
        excess=excess,
        excess_low=excess - math.hypot(p.share - p.low, q.high - q.share),
        excess_high=excess + math.hypot(p.high - p.share, q.share - q.low),
    )


def _rate(events: int, n_left: int) -> LeavingRate:
    n_left = max(n_left, events)  # a node whose job completes for ever is left later, or never
    interval = wilson(events, n_left)
    if interval is None:
        return LeavingRate()
    low, high = interval
    return LeavingRate(left=n_left, unusable=events, share=events / n_left, low=low, high=high)


def _unusable(event: Unusable) -> UnusableNode:
    return UnusableNode(
        node=event.node,
        state=event.state.value,
        reason=event.reason,
        at_s=event.at_s,
        after_s=event.after_s,
        job_id=event.job_id,
        pilot_id=event.pilot_id,
    )


def _share(part: float, whole: float) -> float | None:
    if whole <= 0:
        return None
    return part / whole


def _worst_case(hand_over: HandOver) -> WorstCase:
    precision_s = hand_over.precision_s
    if hand_over.cycle_lost_s:
        precision_s = max(precision_s, WHOLE_S)
    return WorstCase(
        job_id=hand_over.job_id,
        n_nodes=hand_over.n_nodes,
        node=hand_over.node,
        pilot_id=hand_over.pilot_id,
        how=hand_over.how.value,
        asked_s=hand_over.asked_s,
        delay_s=hand_over.delay_s,
        precision_s=precision_s,
        reason=slow_part(hand_over),
        gpus=hand_over.gpus,
        gpu_type=hand_over.gpu_type,
    )
