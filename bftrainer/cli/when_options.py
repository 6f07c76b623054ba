"""The options of ``submit`` on when a trainer starts, and on arrays of trainers.

``submit_options`` lists them with the others; ``array`` makes several specs of one.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

import click

from bftrainer.api.admission import RANGES, check_after
from bftrainer.model.errors import UsageError

MAX_ARRAY = 1000  # trainers of one array
MAX_INDEX = 999_999
_UNITS_S = {"": 1, "s": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_FROM_NOW = re.compile(r"now(?:\+(\d{1,9})([a-z]*))?\Z", re.ASCII)
_FORMS = ("%H:%M", "%H:%M:%S", "%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")
_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayOption:
    """Value of ``--array``."""

    indices: tuple[int, ...]  # in the order of submission
    limit: int | None = None  # so many have nodes at once


def parse_ids(text: str) -> tuple[str, ...]:
    """Return the trainers of ``t1,t2``; raise BFT-1044 if one of them is no id."""
    ids = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    check_after(ids)
    return ids


def parse_begin(text: str, now_s: float | None = None) -> float:
    """Return the time of ``now+1hour``, ``HH:MM`` or ``YYYY-MM-DDTHH:MM``, as for sbatch.

    Raises:
        UsageError: BFT-1045 if this is none of them.
    """
    now_s = time.time() if now_s is None else now_s
    if match := _FROM_NOW.match(text):
        unit = (match[2] or "").removesuffix("s") or (match[2] or "")
        if unit in _UNITS_S:
            return now_s + int(match[1] or 0) * _UNITS_S[unit]
    for form in _FORMS:
        try:
            at = datetime.strptime(text, form)  # noqa: DTZ007 - local time, as for sbatch
            if form.startswith("%H"):
                now = datetime.fromtimestamp(now_s)  # noqa: DTZ006 - likewise
                at = datetime.combine(now.date(), at.time())
                at += timedelta(days=1 if at <= now else 0)  # the next time it is so late
            if 0 <= (begin_s := at.timestamp()) <= RANGES["--begin"][1]:
                return begin_s
        except (ValueError, OverflowError, OSError):
            continue
    raise UsageError(
        "BFT-1045",
        f"{text[:60]!r} is not a time.",
        "Write --begin now+2hours (seconds, minutes, hours, days, weeks), 22:30 or"
        " 2031-12-24T22:30.",
    )


def parse_array(text: str) -> ArrayOption:
    """Return the indices of ``0-9``, ``1,4-8:2`` or ``0-99%10``, as for sbatch.

    Raises:
        UsageError: BFT-1046 if it is malformed or has too many.
    """
    listed, has_limit, limit = text.partition("%")
    indices: dict[int, None] = {}
    for part in listed.split(","):
        match = _PART.match(part)
        if match is None:
            raise _no_array(f"{text[:60]!r} is not a list of indices.")
        first, last = int(match[1]), int(match[2] or match[1])
        step = int(match[3] or 1)
        if last < first or not step:
            raise _no_array(f"{part!r} is not a range of indices.")
        if (last - first) // step >= MAX_ARRAY:
            raise _no_array(f"{part!r} has more than {MAX_ARRAY} indices.")
        indices |= dict.fromkeys(range(first, last + 1, step))
    if len(indices) > MAX_ARRAY:
        raise _no_array(f"It has {len(indices)} indices; the limit is {MAX_ARRAY}.")
    if has_limit and not re.fullmatch(r"[1-9]\d{0,5}", limit, re.ASCII):
        raise _no_array(f"{limit[:20]!r} is not a number of trainers at once.")
    return ArrayOption(indices=tuple(sorted(indices)), limit=int(limit) if limit else None)


def _no_array(cause: str) -> UsageError:
    return UsageError("BFT-1046", cause, "Write --array 0-9, 1,3,5-7 or 0-99%10 (10 at once).")


def when_options() -> list[click.Option]:
    """Return the options on when it starts."""
    return [
        click.Option(
            ["--after"],
            type=parse_ids,
            metavar="ID[,ID...]",
            help="Start it when those have finished; never, if one fails or is cancelled.",
        ),
        click.Option(
            ["--after-any"],
            type=parse_ids,
            metavar="ID[,ID...]",
            help="Start it when those have ended, in whatever way.",
        ),
        click.Option(
            ["--begin", "begin_s"],
            type=parse_begin,
            metavar="TIME",
            help="Start it at that time at the earliest: now+1hour, 22:30, 2031-12-24T22:30.",
        ),
        click.Option(["--hold"], is_flag=True, help="Submit it held; see 'bftrainer release'."),
        click.Option(
            ["--array"],
            type=parse_array,
            metavar="LIST[%N]",
            help="One trainer for each index: 0-9, or 0-99%10 for ten of them at once.",
        ),
    ]
