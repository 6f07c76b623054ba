"""``brsvs``: advance reservations, during which hosts are not ours. Pure.

Source: brsvs(1) of LSF 10.1; documented, not tried. A time window that cannot be read counts as
one that holds now and has no end, so its hosts are left alone. volclava has no reservations.
"""

from __future__ import annotations

import math
import re
from calendar import timegm
from time import gmtime

from bftrainer.model.cluster import Reservation
from bftrainer.model.hostlist import ParseError

_HEAD = re.compile(r"^RSVID\s+TYPE\s+USER\s+\S*\s*RSV_HOSTS\s+TIME_WINDOW", re.MULTILINE)
NONE = re.compile(r"[Nn]o (?:advance )?reservations? found")
_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,255}):\d{1,9}/\d{1,9}")
_WINDOW = re.compile(
    r"(\d{1,2})/(\d{1,2})/(\d{1,2})/(\d{1,2})-(\d{1,2})/(\d{1,2})/(\d{1,2})/(\d{1,2})"
)


def reservations(text: str, now_s: float) -> tuple[Reservation, ...]:
    """Return the reservations that have not ended.

    Raises:
        ParseError: it is not what ``brsvs`` prints, or cut off.
    """
    if NONE.search(text):
        return ()
    head = _HEAD.search(text)
    if head is None or not text.endswith("\n"):
        raise ParseError(f"no head, or cut off: {text[-60:]!r}")
    found: list[Reservation] = []
    for line in text[head.end() :].split("\n"):
        hosts = tuple(found[1] for found in map(_HOST.fullmatch, line.split()) if found)
        if hosts and line[:1].isspace() and found:  # further hosts of the one above
            last = found.pop()
            found.append(_made(last.name, (*last.nodes, *hosts), last.start_s, last.end_s, last))
        elif hosts:
            start_s, end_s = _window(line, now_s)
            is_system = len(line.split()) > 1 and line.split()[1] == "system"
            one = Reservation(
                name=line.split()[0],
                start_s=start_s,
                end_s=end_s,
                nodes=hosts,
                is_maintenance=is_system,
            )
            found.append(one)
    return tuple(one for one in found if one.end_s > now_s)


def _made(
    name: str, nodes: tuple[str, ...], start_s: float, end_s: float, like: Reservation
) -> Reservation:
    return Reservation(
        name=name, start_s=start_s, end_s=end_s, nodes=nodes, is_maintenance=like.is_maintenance
    )


def _window(line: str, now_s: float) -> tuple[float, float]:
    """Return begin and end of ``month/day/hour/minute-...``: the first such that has not ended."""
    found = _WINDOW.search(line)
    if found is None:
        return now_s, math.inf
    this = gmtime(now_s).tm_year
    numbers = [int(one) for one in found.groups()]
    begin, end = numbers[:4], numbers[4:]
    try:
        for year in (this - 1, this, this + 1):
            end_s = float(timegm((year + (end < begin), *end, 0)))
            if end_s > now_s:
                return float(timegm((year, *begin, 0))), end_s
    except ValueError:
        pass  # no such month
    return now_s, math.inf
