"""Blackout windows of the policy, and when they begin and end.

A window is weekly (``Mon-Fri 08:00-18:00``, ``daily 12:00-13:00``) or dated (``2026-12-24 12:00 to
2026-12-27 06:00``), in local time. One that ends at or before the time at which it begins ends on
the next day. Where clocks are put forward, a time that does not exist counts as an hour later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from bftrainer.model.fairness import Blackout

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
AHEAD = timedelta(days=9)  # weekly windows are foreseen; every one comes within a week
_DAY = "|".join(DAYS)
_CLOCK = r"(\d\d:\d\d)"
_WHOLE_DAY = timedelta(days=1)
_WEEKLY = re.compile(rf"(?:({_DAY})(?:-({_DAY}))?|daily) {_CLOCK}-{_CLOCK}", re.IGNORECASE)
_DATED = re.compile(rf"(\d{{4}}-\d\d-\d\d) {_CLOCK} to (\d{{4}}-\d\d-\d\d) {_CLOCK}")


class _Weekly(NamedTuple):
    days: frozenset[int]  # Monday: 0
    begin: time
    length: timedelta


class _Dated(NamedTuple):
    begin: datetime
    end: datetime


def check_window(text: str) -> str:
    """Return a window as it is.

    Raises:
        ValueError: it is none.
    """
    _parse(text)
    return text


def check_zone(name: str) -> str:
    """Return the name of a time zone as it is.

    Raises:
        ValueError: this machine knows no such zone.
    """
    _zone(name)
    return name


def next_blackout(
    windows: Sequence[str], zone: str | None, now_s: float, ahead_s: float = 0.0
) -> Blackout | None:
    """Return the present or the next blackout; windows that overlap or touch are one.

    Args:
        windows: of the policy.
        zone: its name; None: the machine's.
        now_s: the present time, since the epoch.
        ahead_s: so far is the calendar ahead of it; the blackout is by ``now_s``.
    """
    if not windows:
        return None
    calendar_s = now_s + ahead_s
    for blackout in _blackouts(tuple(windows), zone, int(calendar_s // 86400.0)):
        if blackout.end_s > calendar_s:
            return _earlier(blackout, ahead_s)
    return None


def _earlier(blackout: Blackout, ahead_s: float) -> Blackout:
    if not ahead_s:
        return blackout
    begin_s, end_s = blackout.begin_s - ahead_s, blackout.end_s - ahead_s
    return replace(blackout, begin_s=begin_s, end_s=end_s)


@lru_cache(maxsize=8)
def _blackouts(windows: tuple[str, ...], zone: str | None, day: int) -> tuple[Blackout, ...]:
    """Return what may be the next blackout on a day since the epoch, and those after it."""
    at = None if zone is None else _zone(zone)
    today = datetime.fromtimestamp(86400.0 * day, at).date()
    spans: list[tuple[float, float, str]] = []
    for text in windows:
        for begin, end in _spans(_parse(text), today, at):
            spans.append((begin.timestamp(), end.timestamp(), text))
    spans.sort()
    merged: list[Blackout] = []
    for begin_s, end_s, text in spans:
        if merged and begin_s <= merged[-1].end_s:
            longest_s = max(end_s, merged[-1].end_s)
            merged[-1] = replace(merged[-1], end_s=longest_s)
        else:
            merged.append(Blackout(begin_s=begin_s, end_s=end_s, name=text))
    return tuple(merged)


def _spans(
    window: _Weekly | _Dated, today: date, at: tzinfo | None
) -> Iterator[tuple[datetime, datetime]]:
    if isinstance(window, _Dated):
        yield window.begin.replace(tzinfo=at), window.end.replace(tzinfo=at)
        return
    day = today - timedelta(days=2)
    while day < today + AHEAD:
        if day.weekday() in window.days:
            begin = datetime.combine(day, window.begin, at)
            yield begin, begin + window.length  # by the clock on the wall
        day += timedelta(days=1)


def _parse(text: str) -> _Weekly | _Dated:
    dates = _DATED.fullmatch(text)
    if dates is not None:
        begin_date, begin_clock, end_date, end_clock = dates.groups()
        dated = _Dated(
            datetime.combine(_date(begin_date), _clock(begin_clock)),
            datetime.combine(_date(end_date), _clock(end_clock)),
        )
        if dated.begin >= dated.end:
            raise ValueError("it ends before it begins")
        return dated
    weekly = _WEEKLY.fullmatch(text)
    if weekly is None:
        raise ValueError("it is no window")
    first_day, last_day, begin_clock, end_clock = weekly.groups()
    begin, length = _clock(begin_clock), _WHOLE_DAY
    if end_clock != "24:00":
        length = _since_midnight(_clock(end_clock))
    length -= _since_midnight(begin)
    if length <= timedelta(0):
        length += _WHOLE_DAY
    return _Weekly(_days(first_day, last_day), begin, length)


def _days(first_day: str | None, last_day: str | None) -> frozenset[int]:
    """Return the weekdays of ``mon-fri``, of ``sat`` alone, or all where none is named."""
    if first_day is None:
        return frozenset(range(len(DAYS)))
    first = DAYS.index(first_day.lower())
    last = first
    if last_day is not None:
        last = DAYS.index(last_day.lower())
    return frozenset((first + i) % len(DAYS) for i in range((last - first) % len(DAYS) + 1))


def _date(text: str) -> date:
    return date.fromisoformat(text)


def _clock(text: str) -> time:
    return time.fromisoformat(text)


def _since_midnight(at: time) -> timedelta:
    return timedelta(hours=at.hour, minutes=at.minute)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as problem:
        raise ValueError(f"no time zone {name!r}") from problem
