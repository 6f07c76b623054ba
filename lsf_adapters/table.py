"""Tables and JSON as LSF's commands print them. Pure.

A table's head must be the expected one, so that another language or version is noticed and not
read wrongly; text before the head or before the JSON ("LSF is down. Please wait ...") is skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bftrainer.hostlist import ParseError

Record = Mapping[str, str]


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


def records(text: str, command: str) -> list[Record]:
    """Return the records of ``-json`` output.

    Raises:
        ParseError: it is not JSON of that command, or cut off.
    """
    begin = text.find("{")
    try:
        said: Any = json.loads(text[max(0, begin) :])
        if said["COMMAND"] != command:
            raise ParseError(f"the answer of {str(said['COMMAND'])[:40]!r}")
        found = said["RECORDS"]
        if not all(isinstance(value, str) for one in found for value in dict(one).values()):
            raise ParseError("a value that is no text")
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        if isinstance(problem, ParseError):
            raise
        raise ParseError(f"not the JSON of {command}: {text[:60]!r}") from problem
    return list(found)


_DIGITS = re.compile(r"[0-9]{1,9}")


def count(text: str) -> int:
    """Return a number of a table; "-" is none of them.

    Raises:
        ParseError: it is neither.
    """
    if text == "-":
        return 0
    if not _DIGITS.fullmatch(text):
        raise ParseError(f"not a number: {text[:40]!r}")
    return int(text)
