"""Sums of node time by day, user, account, trainer and type of node. Pure.

``records`` says how they are kept, ``accountant`` what is added, ``report`` how they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

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
