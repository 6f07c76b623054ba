"""Node-hours by user, account and trainer, as the journal keeps them.

``account`` entries hold what was added since the one before, ``account-sums`` entries all sums.
The journal never removes the last of these, so that the removal of entries does not change the
sums. ``accountant`` measures them, ``account_report`` sums them up for users.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import datetime, time, timedelta
from typing import Any, Final, Self
from zoneinfo import ZoneInfo

from bftrainer.journal.journal import Journal
from bftrainer.journal.tables import ACCOUNT_SUMS
from bftrainer.model.reports import NodeTime, Whose, date_of

LOG = logging.getLogger("bftrainer.accounting")
ADDED: Final = "account"  # kind of journal entries
DECIMALS: Final = 3  # of figures in the journal: milliseconds are the least that counts
_WHOSE: Final = tuple(column.name for column in fields(Whose))
_TIME: Final = tuple(column.name for column in fields(NodeTime))
Sums = dict[Whose, NodeTime]
# As in ``Whose`` and ``NodeTime``; without their names, because there may be 100,000 of them.
Row = tuple[str, str, str, str, str, float, float, float, float, float, int, int, int]


def days(begin_s: float, end_s: float, zone: str | None = None) -> Iterator[tuple[str, float]]:
    """Yield each day that a span of time touches, with the seconds of the span in it."""
    zone_info = None
    if zone:
        zone_info = ZoneInfo(zone)
    while begin_s < end_s:
        day = date_of(begin_s, zone)
        # Of the day after, not 24 h later: days have 23 or 25 h when clocks are changed.
        midnight = datetime.combine(day + timedelta(days=1), time(), zone_info)
        next_s = min(end_s, max(midnight.timestamp(), begin_s + 1.0))
        yield day.isoformat(), next_s - begin_s
        begin_s = next_s


def add(sums: Sums, owner: Whose, used: NodeTime) -> None:
    """Add node time to the sum of whose it is."""
    if owner in sums:
        sums[owner] += used
    else:
        sums[owner] = used


def merged(rows: Iterable[tuple[Whose, NodeTime]], *, before: str) -> Sums:
    """Return sums in which the trainers of days before a day are not told apart any more."""
    result: Sums = {}
    for owner, node_time in rows:
        if owner.day < before:
            owner = replace(owner, trainer_id="")  # noqa: PLW2901 - the same, less exactly
        add(result, owner, node_time)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Payload of both kinds of entries."""

    until_s: float  # everything until then is counted
    rows: tuple[Row, ...]
    since_s: float | None = None  # of all sums: nothing is known of the time before

    @classmethod
    def of(cls, sums: Sums, *, until_s: float, since_s: float | None = None) -> Self:
        """Write sums down."""
        return cls(until_s=until_s, since_s=since_s, rows=tuple(map(_row, sums.items())))

    def sums(self) -> Iterator[tuple[Whose, NodeTime]]:
        """Yield them again."""
        for row in self.rows:
            owner = dict[str, Any](zip(_WHOSE, row, strict=False))
            figures = dict[str, Any](zip(_TIME, row[len(_WHOSE) :], strict=True))
            yield Whose(**owner), NodeTime(**figures)


def _row(item: tuple[Whose, NodeTime]) -> Row:
    owner, node_time = item
    return (*astuple(owner), *(round(figure, DECIMALS) for figure in astuple(node_time)))


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
    accounts = Kept(since_s=now_s, until_s=now_s)
    after_seq = 0
    last_sums = journal.latest(ACCOUNT_SUMS)
    if last_sums is not None:
        after_seq = last_sums.seq
        payload = last_sums.payload_if(Added)
        if payload is not None:
            accounts = _of_sums(payload, last_sums.at_s)
    unreadable = 0
    for entry in journal.entries(ADDED, after_seq=after_seq):
        accounts.entries += 1
        addition = entry.payload_if(Added)
        if addition is None:
            unreadable += 1
            continue
        for owner, node_time in addition.sums():
            add(accounts.sums, owner, node_time)
        accounts.until_s = max(accounts.until_s, addition.until_s)
    if unreadable:
        LOG.warning("%d entries of the accounting are of another release: not counted", unreadable)
    return accounts


def _of_sums(sums: Added, summed_s: float) -> Kept:
    since_s = sums.since_s
    if since_s is None:
        since_s = summed_s
    return Kept(since_s=since_s, until_s=sums.until_s, sums=dict(sums.sums()), summed_s=summed_s)


def sum_up(journal: Journal) -> None:
    """Write all sums again, without a daemon, after a checkpoint: earlier entries may go."""
    accounts = read(journal, 0.0)
    if accounts.summed_s is not None:
        journal.checkpoint(0.0)
        sums = Added.of(accounts.sums, until_s=accounts.until_s, since_s=accounts.since_s)
        journal.append(ACCOUNT_SUMS, sums)
