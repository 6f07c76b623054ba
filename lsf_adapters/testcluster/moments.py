"""Times and durations as LSF writes them."""

from __future__ import annotations

import time


def short(moment_s: float, *, has_year: bool = False) -> str:
    """Return "Nov 22 08:33", with LSB_DISPLAY_YEAR "Nov 22 08:33:10 2026"."""
    form = "%b %d %H:%M"
    if has_year:
        form = "%b %d %H:%M:%S %Y"
    return time.strftime(form, _local(moment_s))


def long(moment_s: float, *, has_year: bool = False) -> str:
    """Return "Sun Nov 22 08:33:00", as in long listings."""
    text = time.strftime("%a %b %e %H:%M:%S", _local(moment_s))
    if has_year:
        text += f" {_local(moment_s).tm_year}"
    return text


def numeric(moment_s: float) -> str:
    """Return "11/22-08:33:00"."""
    return time.strftime("%m/%d-%H:%M:%S", _local(moment_s))


def minutes(duration_s: float) -> str:
    """Return "10.0"."""
    return f"{duration_s / 60:.1f}"


def left(duration_s: float) -> str:
    """Return "0:1 L": hours and minutes that are left of a run limit."""
    whole = max(0, int(duration_s) // 60)
    return f"{whole // 60}:{whole % 60} L"


def words(duration_s: float) -> str:
    """Return "25 hours 42 minutes 51 seconds"."""
    whole = max(0, int(duration_s))
    hours, minute, second = whole // 3600, whole // 60 % 60, whole % 60
    text = f"{second} seconds"
    if hours or minute:
        text = f"{minute} minutes {text}"
    if hours:
        text = f"{hours} hours {text}"
    return text


def _local(moment_s: float) -> time.struct_time:
    return time.localtime(moment_s)
