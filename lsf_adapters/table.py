"""Tables, JSON and dates as LSF's commands print them. Pure.

A table's head must be the expected one, so that another language or version is noticed and not
read wrongly; text before the head or before the JSON ("LSF is down. Please wait ...") is skipped.

Commands are run with TZ=UTC0, so all dates are UTC. A date without a year is the one nearest to
now, and a weekday, where there is one, is ignored. Source: bjobs(1), volclava 2.2 and LSF 10.1;
LSB_DISPLAY_YEAR appends the year.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from bftrainer.model.hostlist import ParseError

Record = Mapping[str, str]
S = TypeVar("S")
T = TypeVar("T")
_MOST_NAMED = 5
_DIGITS = re.compile(r"[0-9]{1,9}")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_WORDS = re.compile(
    rf"(?:[A-Z][a-z]{{2}} )?({'|'.join(_MONTHS)}) {{1,2}}(\d{{1,2}}) (\d\d):(\d\d)(?::(\d\d))?"
    r"(?: (\d{4}))?(?: [A-Z])?"  # L: follows from the limit; E, X: estimated, exceeded
)
DATE = r"(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d(?::\d\d)?(?: \d{4})?"
MINUTE_S = 60.0


def rows(text: str, head: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words of each line below the head.

    Args:
        text: a command's standard output.
        head: the first words of the table's first line.

    Raises:
        ParseError: there is no such head, or the last line is cut off.
    """
    if not text.endswith("\n"):
        raise ParseError(f"the output is empty or cut off: {text[-60:]!r}")
    lines = iter(text.split("\n"))
    for line in lines:
        if line.split()[: len(head)] == list(head):
            break
    else:
        raise ParseError(f"no line begins with {' '.join(head)}: {text[:60]!r}")
    for line in lines:
        if line.strip():
            yield line.split()


def blocks(text: str, head: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield what stands below each head up to the next one, with the head's first group."""
    name, begin = "", 0
    for match in head.finditer(text):
        if begin:
            yield name, text[begin : match.start()]
        name, begin = match[1], match.end()
    if begin:
        yield name, text[begin:]


def records(text: str, command: str) -> list[Record]:
    """Return the records of ``-json`` output, without their values that are no text.

    Raises:
        ParseError: it is not JSON of that command, or cut off.
    """
    begin = text.find("{")
    try:
        answer: Any = json.loads(text[max(0, begin) :])
        if answer["COMMAND"] != command:
            raise ParseError(f"the answer of {str(answer['COMMAND'])[:40]!r}")
        whole_records = list(map(dict, answer["RECORDS"]))
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        if isinstance(problem, ParseError):
            raise
        raise ParseError(f"not the JSON of {command}: {text[:60]!r}") from problem
    return list(map(_only_texts, whole_records))


def _only_texts(record: Mapping[str, object]) -> Record:
    """Leave out the values that are no text: they are as good as none."""
    return {name: value for name, value in record.items() if isinstance(value, str)}


def each(
    parts: Iterable[S],
    read: Callable[[S], T],
    name_of: Callable[[S], str],
    unread: Callable[[str], T],
    odd: list[str],
) -> list[T]:
    """Read each host or job; one that cannot be read does not hide the others.

    Args:
        parts: an answer's lines or records.
        read: reads one.
        name_of: returns the name of one; "": it has none, and the answer is refused.
        unread: makes what stands for one that cannot be read.
        odd: gets the names of such ones.

    Raises:
        ParseError: none can be read, as in another language.
    """
    results, n_read, first_problem = [], 0, ""
    for part in parts:
        try:
            results.append(read(part))
            n_read += 1
        except ParseError as problem:
            if not (name := name_of(part)):
                raise
            results.append(unread(name))
            odd.append(name)
            first_problem = first_problem or str(problem)
    if first_problem and not n_read:
        raise ParseError(first_problem)
    return results


def in_words(what: str, odd: Sequence[str]) -> tuple[str, ...]:
    """Say in a sentence which cannot be read; (): all can."""
    if not odd:
        return ()
    names = ", ".join(odd[:_MOST_NAMED])
    if len(odd) > _MOST_NAMED:
        names += " and others"
    return (f"{what} of LSF cannot be read, and are not used: {names}.",)


def count(text: str) -> int:
    """Return a number of a table; "-" is none of them; raises ``ParseError``: it is neither."""
    if text == "-":
        return 0
    if not _DIGITS.fullmatch(text):
        raise ParseError(f"not a number: {text[:40]!r}")
    return int(text)


def epoch_s(text: str, now_s: float) -> float | None:
    """Return a date as seconds since the epoch; None: "-" or nothing.

    Raises:
        ParseError: it is not a date.
    """
    text = text.strip()
    if text in {"", "-"}:
        return None
    date = _WORDS.fullmatch(text)
    if date is None:
        raise ParseError(f"not a date: {text[:40]!r}")
    month, day = _MONTHS.index(date[1]) + 1, int(date[2])
    hour, minute, second = int(date[3]), int(date[4]), int(date[5] or 0)
    this_year = time.gmtime(now_s).tm_year
    years = [this_year - 1, this_year, this_year + 1]
    if date[6]:
        years = [int(date[6])]
    times: list[float] = []
    for year in years:
        with suppress(ValueError):  # that year has no such day
            day_s = datetime(year, month, day, tzinfo=UTC).timestamp()
            times.append(day_s + 3600.0 * hour + 60.0 * minute + second)
    if not times or hour > 23 or minute > 59 or second > 60:
        raise ParseError(f"not a date: {text[:40]!r}")
    return min(times, key=lambda at_s: abs(at_s - now_s))


def has_seconds(text: str) -> bool:
    """Return whether a date is exact to the second."""
    date = _WORDS.fullmatch(text.strip())
    return date is not None and date[5] is not None
