"""LSF's dates, which often have no year: ``Nov 22 08:33``, ``Sun Nov 22 08:33:00``. Pure.

Commands are run with TZ=UTC0, so all dates are UTC. A date without a year is the one nearest to
now, and a weekday, where there is one, is ignored. Source: bjobs(1), volclava 2.2 and LSF 10.1;
LSB_DISPLAY_YEAR appends the year.
"""

from __future__ import annotations

import re
import time
from calendar import timegm
from datetime import UTC, datetime

from bftrainer.model.hostlist import ParseError

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_WORDS = re.compile(
    rf"(?:[A-Z][a-z]{{2}} )?({'|'.join(_MONTHS)}) {{1,2}}(\d{{1,2}}) (\d\d):(\d\d)(?::(\d\d))?"
    r"(?: (\d{4}))?(?: [A-Z])?"  # L: follows from the limit; E, X: estimated, exceeded
)
DATE = r"(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d(?::\d\d)?(?: \d{4})?"
MINUTE_S = 60.0


def epoch_s(text: str, now_s: float) -> float | None:
    """Return a date as seconds since the epoch; None: "-" or nothing.

    Raises:
        ParseError: it is not a date.
    """
    text = text.strip()
    if text in {"", "-"}:
        return None
    found = _WORDS.fullmatch(text)
    if found is None:
        raise ParseError(f"not a date: {text[:40]!r}")
    month, day = _MONTHS.index(found[1]) + 1, int(found[2])
    hour, minute, second = int(found[3]), int(found[4]), int(found[5] or 0)
    this = time.gmtime(now_s).tm_year
    years = [int(found[6])] if found[6] else [this - 1, this, this + 1]
    times = [
        float(timegm((year, month, day, hour, minute, second)))
        for year in years
        if _exists(year, month, day)
    ]
    if not times or hour > 23 or minute > 59 or second > 60:
        raise ParseError(f"not a date: {text[:40]!r}")
    return min(times, key=lambda at_s: abs(at_s - now_s))


def has_seconds(text: str) -> bool:
    """Whether a date is exact to the second."""
    found = _WORDS.fullmatch(text.strip())
    return found is not None and found[5] is not None


def _exists(year: int, month: int, day: int) -> bool:
    try:
        datetime(year, month, day, tzinfo=UTC)
    except ValueError:
        return False
    return True
