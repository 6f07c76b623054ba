"""Expands Slurm's host list expressions, such as ``n[1-3,07],login``.

Called by ``slurm_plugins.parse`` for every list in a snapshot and by the reader of ``sacct``
output. Not done by ``scontrol show hostnames``, which would take a process for each of possibly a
thousand planned jobs. The number of names is computed before any is expanded, because lists may
come from users.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

MAX_NAMES = 32_768
"""Limit on names, above the number of nodes of any cluster."""

LONGEST = 1 << 16  # characters of a list
MOST_PIECES = 16  # of a name: brackets, and what is between them
LONGEST_NAME = 255  # characters of a name: RFC 1035, section 2.3.4

_PIECE = re.compile(r"[^\s,\[\]]+|\[[^\s\[\]]+\]|,")
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")
_EMPTY = frozenset({"", "(null)", "None", "N/A", "n/a"})


class ParseError(ValueError):
    """Malformed text from the batch system."""


def expand(text: str, most: int = MAX_NAMES) -> tuple[str, ...]:
    """Expand a host list; Slurm's words for "none" give an empty tuple.

    Raises:
        ParseError: the text is not a host list, or has more than ``most`` hosts.
    """
    text = text.strip()
    if text in _EMPTY:
        return ()
    if len(text) > LONGEST:
        raise ParseError(f"a host list of {len(text)} characters: {text[:80]!r}")
    names: list[str] = []
    pieces: list[str] = []  # of one expression without a comma outside brackets
    at = 0
    while at < len(text):
        match = _PIECE.match(text, at)
        if match is None:
            raise ParseError(f"not a host list: {text[:80]!r}")
        at = match.end()
        if match[0] == ",":
            names += _names(pieces, most - len(names))
            pieces = []
        else:
            pieces.append(match[0])
    names += _names(pieces, most - len(names))
    return tuple(names)


def _names(pieces: list[str], most: int) -> Iterable[str]:
    """Expand one expression; several brackets multiply."""
    if not pieces or len(pieces) > MOST_PIECES:
        raise ParseError(f"not a name of hosts: {''.join(pieces)[:80]!r}")
    parts: list[Iterable[str]] = []
    count, length = 1, 0
    for piece in pieces:
        if piece[0] == "[":
            n_numbers, width, numbers = _numbers(piece[1:-1])
            count *= n_numbers
            length += width
            parts.append(numbers)
        else:
            length += len(piece)
            parts.append((piece,))
    if count > most or length > LONGEST_NAME:
        raise ParseError(f"a host list or host name is too long: {''.join(pieces)[:80]!r}")
    return map("".join, itertools.product(*parts))


def _numbers(text: str) -> tuple[int, int, Iterator[str]]:
    """Parse the inside of a bracket; return count, width and an iterator of its numbers."""
    ranges: list[tuple[int, int, int]] = []
    total = width = 0
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ParseError(f"not a range of hosts: {part[:80]!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ParseError(f"not a range of hosts: {part[:80]!r}")
        total += last - first + 1
        width = max(width, len(match[1]), len(match[2] or ""))
        ranges.append((first, last, len(match[1])))
    return total, width, _written(ranges)


def _written(ranges: list[tuple[int, int, int]]) -> Iterator[str]:
    """Expand ranges, keeping leading zeros."""
    for first, last, width in ranges:
        for number in range(first, last + 1):
            yield f"{number:0{width}d}"
