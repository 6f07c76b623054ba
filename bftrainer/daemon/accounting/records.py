"""Sums of node time, and how the journal keeps them.

``records`` says how they are kept, ``accountant`` what is added, ``report`` how they are shown.

``account`` entries hold what was added since the one before, ``account-sums`` entries all sums.
The journal never removes the last of these, so that entries that go take nothing from the sums.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from typing import Self
from zoneinfo import ZoneInfo

from bftrainer.journal.journal import Journal
from bftrainer.journal.reader import Reading
from bftrainer.journal.retention import ACCOUNT_SUMS
from bftrainer.model.account import NodeTime, Whose

Sums = dict[Whose, NodeTime]
Count = Callable[[float], NodeTime]  # seconds -> what they were used for


def day_of(at_s: float, zone: str | None = None) -> str:
    """Return the day of a time in a time zone; None: this machine's."""
    return _date(at_s, zone).isoformat()


def days(begin_s: float, end_s: float, zone: str | None = None) -> Iterator[tuple[str, float]]:
    """Yield each day that a span of time touches, with the seconds of the span in it."""
    while begin_s < end_s:
        day = _date(begin_s, zone)
        # Of the day after, not 24 h later: days have 23 or 25 h when clocks are changed.
        midnight = datetime.combine(
            day + timedelta(days=1), time(), ZoneInfo(zone) if zone else None
        )
        next_s = min(end_s, max(midnight.timestamp(), begin_s + 1.0))
        yield day.isoformat(), next_s - begin_s
        begin_s = next_s


def _date(at_s: float, zone: str | None) -> date:
    return datetime.fromtimestamp(at_s, ZoneInfo(zone) if zone else None).date()


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
        for day, user, account, trainer_id, node_type, *figures in self.rows:
            whose = Whose(
                day=day, user=user, account=account, trainer_id=trainer_id, node_type=node_type
            )
            trained_s, redone_s, warm_up_s, idle_s, returned_s, *counts = figures
            pilots, given_back, preempted = map(int, counts)
            yield (
                whose,
                NodeTime(
                    trained_s=trained_s,
                    redone_s=redone_s,
                    warm_up_s=warm_up_s,
                    idle_s=idle_s,
                    returned_s=returned_s,
                    pilots=pilots,
                    given_back=given_back,
                    preempted=preempted,
                ),
            )


def _row(item: tuple[Whose, NodeTime]) -> Row:
    whose, time = item
    return (
        *(whose.day, whose.user, whose.account, whose.trainer_id, whose.node_type),
        *(round(time.trained_s, 3), round(time.redone_s, 3), round(time.warm_up_s, 3)),
        *(round(time.idle_s, 3), round(time.returned_s, 3)),
        *(time.pilots, time.given_back, time.preempted),
    )


@dataclass(slots=True, kw_only=True)
class Kept:
    """What a journal holds."""

    since_s: float  # figures are complete from then on
    until_s: float
    sums: Sums = field(default_factory=dict)
    entries: int = 0  # read after those that hold all sums
    summed_s: float | None = None  # when all sums were last written; None: never


def read(journal: Reading, now_s: float) -> Kept:
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
