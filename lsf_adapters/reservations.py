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

_HEAD = re.compile(r"^RSVID\s+TYPE\s+USER\s+\S*\s*RSV_HOSTS\s+TIME_WINDOW", re.MULTILINE)
_HOST = re.compile(r"([A-Za-z0-9][\w.-]*):\d+/\d+")
_WINDOW = re.compile(
    r"(\d{1,2})/(\d{1,2})/(\d{1,2})/(\d{1,2})-(\d{1,2})/(\d{1,2})/(\d{1,2})/(\d{1,2})"
)


def reservations(text: str, now_s: float) -> tuple[Reservation, ...]:
    """Return the reservations that have not ended; () if ``brsvs`` lists none."""
    head = _HEAD.search(text)
    found: list[Reservation] = []
    for line in text[head.end() :].split("\n") if head else ():
        hosts = tuple(_HOST.findall(line))
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
    """Return begin and end of ``month/day/hour/minute-...``."""
    found = _WINDOW.search(line)
    if found is None:
        return now_s, math.inf
    year = gmtime(now_s).tm_year
    numbers = [int(one) for one in found.groups()]
    begin, end = (float(timegm((year, *part, 0))) for part in (numbers[:4], numbers[4:]))
    if end < begin:  # over the turn of the year
        end = float(timegm((year + 1, *numbers[4:], 0)))
    return begin, end
