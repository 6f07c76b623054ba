"""Follows the daemon's pilots and adds up what became of their nodes' time.

Looks once a second. What a pilot has used since the last look counts as what it does now, so the
sum over a pilot is exact and its parts are to a second. Times are cut to whole seconds, as batch
systems do in their own accounting. A daemon that starts counts the time since its predecessor's
last entry; trainers go on without one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.daemon.accounting import records
from bftrainer.daemon.accounting.records import Count, Sums, add, day_of, days, merged
from bftrainer.daemon.accounting.report import make_report
from bftrainer.daemon.decider import Observed
from bftrainer.fleet.pilots.pilots import SIGNAL, Pilot, PilotBook
from bftrainer.fleet.trainers.occupancy import Occupancy
from bftrainer.journal.journal import Journal
from bftrainer.journal.retention import ACCOUNT_SUMS
from bftrainer.model.account import AccountReport, Asked, NodeTime, Whose
from bftrainer.model.cluster import EndedBy
from bftrainer.model.trainer import Mark, TrainerRecord
from bftrainer.site.policy.model import SitePolicy

WRITTEN_EVERY_S = 300.0
ENDS_WRITTEN_AFTER_S = 10.0  # what a daemon that is killed may not have counted
DAY_S = 86_400.0
SUMMED_EVERY_S = 7 * DAY_S
MOST_ENTRIES = 2000  # until all sums are written again; bounds what a start reads
OVERTIME_S = 60.0  # batch systems end jobs so long after their limit
ASKED_FOR_S = 60.0  # how an ended pilot ended is known by then


class Trainers(Protocol):
    """What is used of the daemon's ``TrainerBook``."""

    @property
    def records(self) -> Mapping[str, TrainerRecord]:
        """All trainers by id."""

    def occupancy(self) -> Occupancy:
        """Return the trainer that trains on each node."""


# Trainer, user of the pilot, type of node, what it did, begin and end.
_Span = tuple[str, str, str, Count, float, float]


@dataclass(slots=True, kw_only=True)
class _Counted:
    """A pilot, and how much of it is counted."""

    pilot: Pilot
    from_s: float  # earlier time was counted by an earlier daemon
    begin_s: float | None = None  # counted from here; None: it has not started
    until_s: float = 0.0
    trainer_id: str = ""  # the last one that it was for
    ended_s: float = math.inf  # when we noticed


class Accountant:
    """Adds up node time; one per daemon."""

    def __init__(
        self,
        journal: Journal,
        pilots: PilotBook,
        trainers: Trainers,
        seen: Observed,
        clock: Callable[[], float],
        policy: Callable[[], SitePolicy],
    ) -> None:
        """Go on where the journal ends.

        Args:
            journal: keeps the sums.
            pilots: the daemon's.
            trainers: likewise.
            seen: last snapshot and plan.
            clock: seconds since the epoch.
            policy: in force; trainers of days before ``journal_days`` are not told apart any more.
        """
        self._journal, self._pilots, self._trainers, self._seen = journal, pilots, trainers, seen
        self._clock, self._policy = clock, policy
        kept = records.read(journal, clock())
        self.since_s, self.until_s, self.sums = kept.since_s, kept.until_s, kept.sums
        self._summed_s, self._entries = kept.summed_s, kept.entries
        self._added: Sums = {}
        # Most pilots of a trainer have the same span of time in a look: with how many it was so.
        self._spans: Counter[_Span] = Counter()
        self._written_s = kept.until_s
        had = {pilot: r.trainer_id for r in trainers.records.values() for _, pilot in r.workers}
        self._open = {
            pilot_id: _Counted(pilot=pilot, from_s=kept.until_s, trainer_id=had.get(pilot_id, ""))
            for pilot_id, pilot in pilots.pilots.items()
        }
        self._ended: dict[str, _Counted] = {}
        self._furthest: dict[str, Mark] = {}
        self._types: tuple[object, Mapping[str, str]] = (None, {})

    def look(self) -> None:
        """Count everything until now, and write it down now and then."""
        now_s = math.floor(self._clock())
        training, planned = self._trainers.occupancy().training, self._seen.memory.assignment
        redoing = {trainer_id for trainer_id in set(training.values()) if self._redoes(trainer_id)}
        for pilot_id, pilot in self._pilots.pilots.items():
            one = self._open.get(pilot_id)
            if one is None:
                one = self._open[pilot_id] = _Counted(pilot=pilot, from_s=-math.inf)
            trains = training.get(pilot.record.node, "")
            wanted = ""
            if pilot.silent_s is None and not pilot.is_leaving:
                wanted = planned.get(pilot.record.node, "")
            one.trainer_id = trains or wanted or one.trainer_id
            count = _warm_up if wanted else _idle
            if trains:
                count = _redone if trains in redoing else _trained
            self._count(one, now_s, count)
        for pilot_id in self._open.keys() - self._pilots.pilots.keys():
            self._end(pilot_id, now_s)
        self._settle()
        for pilot_id in [i for i, one in self._ended.items() if now_s > one.ended_s + ASKED_FOR_S]:
            del self._ended[pilot_id]
        self.until_s = now_s
        has_ends = any(time.pilots for time in self._added.values())
        every_s = ENDS_WRITTEN_AFTER_S if has_ends else WRITTEN_EVERY_S
        if self._summed_s is None or now_s - self._written_s > every_s:
            self.write()

    def heard(self, pilot_id: str, seen: PilotObservation) -> None:
        """Learn from the batch system how a pilot ended whose end we did not ask for."""
        if pilot_id in self._open:
            self._end(pilot_id, math.floor(self._clock()))
        one = self._ended.pop(pilot_id, None)
        if one is None:
            return
        if one.begin_s is None and seen.start_s is not None and seen.end_s is not None:
            # It ended while no daemon was there; trainers go on without one.
            one.begin_s = one.until_s = max(seen.start_s, one.from_s)
            self._span(one, one.begin_s, seen.end_s, _trained if one.trainer_id else _idle)
            one.until_s = max(one.until_s, seen.end_s)
            self._add(one, NodeTime(pilots=1))
        self._settle()
        is_unknown = seen.ended_by is EndedBy.UNKNOWN
        if seen.ended_by is EndedBy.PREEMPTED or (is_unknown and one.pilot.farewell == SIGNAL):
            self._add(one, NodeTime(preempted=1, returned_s=_rest_s(one)))

    def report(self, asked: Asked) -> Callable[[], AccountReport]:
        """Count until now; the result sums up, in any thread."""
        self.look()
        return partial(
            make_report,
            tuple(self.sums.items()),
            asked,
            self._policy(),
            since_s=self.since_s,
            until_s=self.until_s,
        )

    def close(self) -> None:
        """Count until now and write it down; trainers go on."""
        self.look()
        self.write()

    def write(self) -> None:
        """Write down what was added since the last time."""
        if self._summed_s is None or self._is_to_sum():
            self._write_sums()
        elif self._added:
            added = records.Added.of(self._added, until_s=self.until_s)
            self._journal.note(records.ADDED, added)
            self._entries += 1
        self._added, self._written_s = {}, self.until_s
        known = self._trainers.records
        self._furthest = {i: m for i, m in self._furthest.items() if not known[i].state.is_final}

    def _is_to_sum(self) -> bool:
        every_s = min(SUMMED_EVERY_S, DAY_S * self._policy().journal_days / 3.0)
        is_old = self._summed_s is not None and self.until_s - self._summed_s > every_s
        return is_old or self._entries >= MOST_ENTRIES

    def _write_sums(self) -> None:
        kept_s = DAY_S * self._policy().journal_days
        first = day_of(self.until_s - kept_s, self._policy().time_zone)
        self.sums = merged(self.sums.items(), before=first)
        whole = records.Added.of(self.sums, until_s=self.until_s, since_s=self.since_s)
        self._journal.note(ACCOUNT_SUMS, whole)
        self._summed_s, self._entries = self.until_s, 0

    # ---- one pilot ---------------------------------------------------------------------

    def _count(self, one: _Counted, now_s: float, count: Count) -> None:
        pilot = one.pilot
        start_s = pilot.start_s
        if start_s is None and one.from_s < 0.0:  # else it has been running for longer
            start_s = pilot.came_s
        if start_s is None:
            return
        start_s = max(math.floor(start_s), one.from_s)
        if one.begin_s is None:
            one.begin_s = one.until_s = start_s
        elif start_s < one.begin_s:  # a poll shows when it started, after its agent came
            self._span(one, start_s, one.begin_s, _warm_up)
            one.begin_s = start_s
        left_s = now_s if pilot.silent_s is None else math.floor(pilot.silent_s)
        end_s = min(left_s, _limit_s(one) + OVERTIME_S)
        if end_s > one.until_s:
            self._span(one, one.until_s, end_s, count)
            one.until_s = end_s

    def _end(self, pilot_id: str, now_s: float) -> None:
        one = self._ended[pilot_id] = self._open.pop(pilot_id)
        one.ended_s = now_s
        if one.begin_s is None and one.pilot.came_s is None:
            return  # it never started, or ended before this daemon began
        self._count(one, now_s, _idle)
        is_given_back = one.pilot.is_given_back
        rest_s = _rest_s(one) if is_given_back else 0.0
        self._add(one, NodeTime(pilots=1, given_back=int(is_given_back), returned_s=rest_s))

    def _span(self, one: _Counted, begin_s: float, end_s: float, count: Count) -> None:
        node_type = self._type_of(one.pilot.record.node)
        self._spans[one.trainer_id, one.pilot.record.user, node_type, count, begin_s, end_s] += 1

    def _settle(self) -> None:
        for (trainer_id, user, node_type, count, begin_s, end_s), n in self._spans.items():
            for day, seconds in days(begin_s, end_s, self._policy().time_zone):
                self._sum(self._whose(day, trainer_id, user, node_type), count(n * seconds))
        self._spans.clear()

    def _add(self, one: _Counted, time: NodeTime) -> None:
        day = day_of(one.until_s, self._policy().time_zone)
        record = one.pilot.record
        self._sum(self._whose(day, one.trainer_id, record.user, self._type_of(record.node)), time)

    def _sum(self, whose: Whose, time: NodeTime) -> None:
        add(self.sums, whose, time)
        add(self._added, whose, time)

    def _whose(self, day: str, trainer_id: str, user: str, node_type: str) -> Whose:
        trainer = self._trainers.records.get(trainer_id)
        return Whose(
            day=day,
            user=trainer.spec.user if trainer else user,
            account=trainer.spec.account if trainer else "",
            trainer_id=trainer_id,
            node_type=node_type,
        )

    def _type_of(self, node: str) -> str:
        snapshot = self._seen.snapshot
        nodes = snapshot.nodes if snapshot is not None else None
        if nodes is not None and self._types[0] is not nodes:
            self._types = nodes, {one.name: one.node_type for one in nodes}
        return self._types[1].get(node, "default")

    def _redoes(self, trainer_id: str) -> bool:
        """Whether a trainer is not yet as far as it once was."""
        record = self._trainers.records[trainer_id]
        known = self._furthest.get(trainer_id) or record.failing.best
        best = self._furthest[trainer_id] = known.joined(_mark(record))
        mark = _mark(record)
        if best.samples:
            return mark.samples < best.samples
        return mark.step < best.step


def _mark(record: TrainerRecord) -> Mark:
    progress = record.progress
    return Mark(step=progress.step, epoch=progress.epoch, samples=progress.samples)


def _limit_s(one: _Counted) -> float:
    return (one.begin_s or 0.0) + one.pilot.record.time_limit_s


def _rest_s(one: _Counted) -> float:
    """Return how much of its time limit a pilot did not use."""
    return 0.0 if one.begin_s is None else max(0.0, _limit_s(one) - one.until_s)


def _trained(seconds: float) -> NodeTime:
    return NodeTime(trained_s=seconds)


def _redone(seconds: float) -> NodeTime:
    return NodeTime(redone_s=seconds)


def _warm_up(seconds: float) -> NodeTime:
    return NodeTime(warm_up_s=seconds)


def _idle(seconds: float) -> NodeTime:
    return NodeTime(idle_s=seconds)
