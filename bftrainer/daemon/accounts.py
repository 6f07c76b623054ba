"""Node-hours by user, account and trainer: measured, kept in the journal, summarised.

``account`` entries hold what was added since the one before, ``account-sums`` entries all sums.
The journal never removes the last of these, so that the removal of entries does not change the
sums.

``Accountant`` looks once a second. The time that a pilot has used since the last look counts as
what it does now, so the sum over a pilot is exact and its parts are exact to a second. Times are
cut to whole seconds, as batch systems do in their own accounting. A daemon that starts counts the
time since its predecessor's last entry, because trainers go on without a daemon.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import datetime, time, timedelta
from functools import partial
from typing import Any, Protocol, Self
from zoneinfo import ZoneInfo

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.daemon.decider import Observed
from bftrainer.fleet.pilots.pilots import SIGNAL, Pilot, PilotBook
from bftrainer.fleet.trainers.occupancy import Occupancy
from bftrainer.journal.journal import Journal
from bftrainer.journal.tables import ACCOUNT_SUMS
from bftrainer.model.cluster import EndedBy
from bftrainer.model.reports import (
    COLUMNS,
    AccountLine,
    AccountReport,
    Asked,
    NodeTime,
    Use,
    UserAccount,
    Whose,
    date_of,
    day_of,
)
from bftrainer.model.trainer import Mark, TrainerRecord
from bftrainer.site.policy.model import SitePolicy

Sums = dict[Whose, NodeTime]


def days(begin_s: float, end_s: float, zone: str | None = None) -> Iterator[tuple[str, float]]:
    """Yield each day that a span of time touches, with the seconds of the span in it."""
    while begin_s < end_s:
        day = date_of(begin_s, zone)
        # Of the day after, not 24 h later: days have 23 or 25 h when clocks are changed.
        midnight = datetime.combine(
            day + timedelta(days=1), time(), ZoneInfo(zone) if zone else None
        )
        next_s = min(end_s, max(midnight.timestamp(), begin_s + 1.0))
        yield day.isoformat(), next_s - begin_s
        begin_s = next_s


def add(sums: Sums, whose: Whose, used: NodeTime) -> None:
    """Add node time to the sum of whose it is."""
    known = sums.get(whose)
    sums[whose] = used if known is None else known + used


def merged(rows: Iterable[tuple[Whose, NodeTime]], *, before: str) -> Sums:
    """Return sums in which the trainers of days before a day are not told apart any more."""
    result: Sums = {}
    for whose, used in rows:
        add(result, replace(whose, trainer_id="") if whose.day < before else whose, used)
    return result


LOG = logging.getLogger("bftrainer.accounting")
ADDED = "account"

# As in ``Whose`` and ``NodeTime``; without their names, because there may be 100,000 of them.
Row = tuple[str, str, str, str, str, float, float, float, float, float, int, int, int]
_WHOSE, _TIME = ([one.name for one in fields(kind)] for kind in (Whose, NodeTime))


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Payload of both kinds of entries."""

    until_s: float  # everything until then is counted
    rows: tuple[Row, ...]
    since_s: float | None = None  # of all sums: nothing is known of the time before

    @classmethod
    def of(cls, sums: Sums, *, until_s: float, since_s: float | None = None) -> Self:
        """Write sums down; milliseconds are the least that counts."""
        return cls(until_s=until_s, since_s=since_s, rows=tuple(map(_row, sums.items())))

    def sums(self) -> Iterator[tuple[Whose, NodeTime]]:
        """Yield them again."""
        for row in self.rows:
            whose, time = (
                zip(_WHOSE, row, strict=False),
                zip(_TIME, row[len(_WHOSE) :], strict=True),
            )
            yield Whose(**dict[str, Any](whose)), NodeTime(**dict[str, Any](time))


def _row(item: tuple[Whose, NodeTime]) -> Row:
    whose, time = item
    return (*astuple(whose), *(round(figure, 3) for figure in astuple(time)))


@dataclass(slots=True, kw_only=True)
class Kept:
    """Sums and time span of the accounts in a journal."""

    since_s: float  # figures are complete from then on
    until_s: float
    sums: Sums = field(default_factory=dict)
    entries: int = 0  # read after those that hold all sums
    summed_s: float | None = None  # when all sums were last written; None: never


def read(journal: Journal, now_s: float) -> Kept:
    """Return the sums of a journal; ``now_s`` is where they begin if it has none."""
    whole = journal.latest(ACCOUNT_SUMS)
    base = whole.payload_if(Added) if whole is not None else None
    kept = Kept(since_s=now_s, until_s=now_s)
    if whole is not None and base is not None:
        kept = Kept(
            since_s=whole.at_s if base.since_s is None else base.since_s,
            until_s=base.until_s,
            sums=dict(base.sums()),
            summed_s=whole.at_s,
        )
    unreadable = 0
    for entry in journal.entries(ADDED, after_seq=whole.seq if whole is not None else 0):
        kept.entries += 1
        more = entry.payload_if(Added)
        if more is None:
            unreadable += 1
            continue
        for whose, spent in more.sums():
            add(kept.sums, whose, spent)
        kept.until_s = max(kept.until_s, more.until_s)
    if unreadable:
        LOG.warning("%d entries of the accounting are of another release: not counted", unreadable)
    return kept


def sum_up(journal: Journal) -> None:
    """Write all sums again, without a daemon, after a checkpoint: earlier entries may go."""
    kept = read(journal, 0.0)
    if kept.summed_s is not None:
        journal.checkpoint(0.0)
        whole = Added.of(kept.sums, until_s=kept.until_s, since_s=kept.since_s)
        journal.append(ACCOUNT_SUMS, whole)


Rows = Iterable[tuple[Whose, NodeTime]]


@dataclass(slots=True)
class _Group:
    time: NodeTime = field(default_factory=NodeTime)
    by_type: dict[str, float] = field(default_factory=dict)  # harvested_s

    def add(self, whose: Whose, time: NodeTime) -> None:
        self.time += time
        known_s = self.by_type.get(whose.node_type, 0.0)
        self.by_type[whose.node_type] = known_s + time.harvested_s

    def energy_kwh(self, watts: Mapping[str, float]) -> float | None:
        """Return what the nodes draw by the policy; None: it does not say it of all types."""
        used = {node_type: s for node_type, s in self.by_type.items() if s > 0.0}
        if not watts or not used.keys() <= watts.keys():
            return None
        return sum(watts[node_type] * s for node_type, s in used.items()) / 3.6e6


def make_report(
    rows: Rows,
    asked: Asked,
    policy: SitePolicy,
    *,
    since_s: float,
    until_s: float,
) -> AccountReport:
    """Sum up.

    Args:
        rows: all that is known.
        asked: which of it, and how it is told apart.
        policy: of the site: its time zone, and what nodes draw.
        since_s: figures are complete from then on.
        until_s: everything until then is counted.
    """
    until, watts = asked.until or day_of(until_s, policy.time_zone), policy.watts_per_node_type
    chosen = [
        (whose, spent)
        for whose, spent in rows
        if asked.since <= whose.day <= until and asked.user in ("", whose.user)
    ]
    groups: dict[tuple[str, ...], _Group] = {}
    whole = _Group()
    for whose, spent in chosen:
        groups.setdefault(_key(whose, asked.by), _Group()).add(whose, spent)
        whole.add(whose, spent)
    return AccountReport(
        by=asked.by,
        since=asked.since or min((whose.day for whose, _ in chosen), default=until),
        until=until,
        complete_since_s=since_s,
        counted_until_s=until_s,
        lines=tuple(_line(asked.by, key, groups[key], watts) for key in sorted(groups)),
        total=_line((), (), whole, watts),
        user=asked.user,
    )


def _key(whose: Whose, by: Sequence[str]) -> tuple[str, ...]:
    named = {
        "user": whose.user,
        "account": whose.account,
        "trainer": whose.trainer_id,
        "day": whose.day,
    }
    return tuple(named[column] for column in by)


def _line(
    by: Sequence[str], key: Sequence[str], group: _Group, watts: Mapping[str, float]
) -> AccountLine:
    named = {**dict.fromkeys(COLUMNS, ""), **dict(zip(by, key, strict=True))}
    time = group.time
    return AccountLine(
        **named,
        harvested_h=time.harvested_s / 3600.0,
        lost_h=time.lost_s / 3600.0,
        redone_h=time.redone_s / 3600.0,
        warm_up_h=time.warm_up_s / 3600.0,
        idle_h=time.idle_s / 3600.0,
        given_back_h=time.returned_s / 3600.0,
        pilots=time.pilots,
        pilots_given_back=time.given_back,
        pilots_preempted=time.preempted,
        energy_kwh=group.energy_kwh(watts),
    )


WRITTEN_EVERY_S = 300.0
ENDS_WRITTEN_AFTER_S = 10.0  # what a daemon that is killed may not have counted
DAY_S = 86_400.0
SUMMED_EVERY_S = 7 * DAY_S
MOST_ENTRIES = 2000  # until all sums are written again; bounds what a start reads
OVERTIME_S = 60.0  # batch systems end jobs so long after their limit
ASKED_FOR_S = 60.0  # how an ended pilot ended is known by then


class Trainers(Protocol):
    """The part of the daemon's ``TrainerBook`` that is used here."""

    @property
    def records(self) -> Mapping[str, TrainerRecord]:
        """All trainers by id."""

    def occupancy(self) -> Occupancy:
        """Return the trainer that trains on each node."""


# Trainer, user of the pilot, type of node, what it did, begin and end.
_Span = tuple[str, str, str, Use, float, float]


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
        kept = read(journal, clock())
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
        # Node-seconds since the start.
        self.used_s: dict[tuple[UserAccount, Use], float] = defaultdict(float)
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
            use: Use = "warm_up_s" if wanted else "idle_s"
            if trains:
                use = "redone_s" if trains in redoing else "trained_s"
            self._count(one, now_s, use)
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
            self._span(one, one.begin_s, seen.end_s, "trained_s" if one.trainer_id else "idle_s")
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
            added = Added.of(self._added, until_s=self.until_s)
            self._journal.note(ADDED, added)
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
        whole = Added.of(self.sums, until_s=self.until_s, since_s=self.since_s)
        self._journal.note(ACCOUNT_SUMS, whole)
        self._summed_s, self._entries = self.until_s, 0

    # ---- one pilot ---------------------------------------------------------------------

    def _count(self, one: _Counted, now_s: float, use: Use) -> None:
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
            self._span(one, start_s, one.begin_s, "warm_up_s")
            one.begin_s = start_s
        left_s = now_s if pilot.silent_s is None else math.floor(pilot.silent_s)
        end_s = min(left_s, _limit_s(one) + OVERTIME_S)
        if end_s > one.until_s:
            self._span(one, one.until_s, end_s, use)
            one.until_s = end_s

    def _end(self, pilot_id: str, now_s: float) -> None:
        one = self._ended[pilot_id] = self._open.pop(pilot_id)
        one.ended_s = now_s
        if one.begin_s is None and one.pilot.came_s is None:
            return  # it never started, or ended before this daemon began
        self._count(one, now_s, "idle_s")
        is_given_back = one.pilot.is_given_back
        rest_s = _rest_s(one) if is_given_back else 0.0
        self._add(one, NodeTime(pilots=1, given_back=int(is_given_back), returned_s=rest_s))

    def _span(self, one: _Counted, begin_s: float, end_s: float, use: Use) -> None:
        node_type = self._type_of(one.pilot.record.node)
        self._spans[one.trainer_id, one.pilot.record.user, node_type, use, begin_s, end_s] += 1

    def _settle(self) -> None:
        for (trainer_id, user, node_type, use, begin_s, end_s), n in self._spans.items():
            for day, seconds in days(begin_s, end_s, self._policy().time_zone):
                used = NodeTime(**dict[str, Any]({use: n * seconds}))
                whose = self._whose(day, trainer_id, user, node_type)
                self._sum(whose, used)
                self.used_s[(whose.user, whose.account), use] += n * seconds
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
        """Return whether a trainer is not yet as far as it once was."""
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
