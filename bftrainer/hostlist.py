"""Slurm's host list expressions, written out.

Text such as ``n[1-3,07],login`` comes in, node names in its order go out; called by
``slurm_plugins.parse`` for every list in a snapshot and by the reader of ``sacct``
output. Done here and not by ``scontrol show hostnames``: a queue of a thousand planned
jobs would cost a thousand processes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

MAX_NAMES = 200_000
"""More names than any cluster has nodes: a longer list is garbage, not a plan."""

_ELEMENT = re.compile(r"(?:[^\s,\[\]]|\[[^\[\]\s]*\])+")
_PIECE = re.compile(r"[^\[\]]+|\[[^\[\]]*\]")
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")
_EMPTY = frozenset({"", "(null)", "None", "N/A"})


class ParseError(ValueError):
    """Text from the batch system that does not have the form it should have."""


def expand(text: str) -> tuple[str, ...]:
    """Write out a host list; the words Slurm uses for "none" give an empty tuple.

    Raises:
        ParseError: the text is no host list, or names more than ``MAX_NAMES`` hosts.
    """
    text = text.strip()
    if text in _EMPTY:
        return ()
    names: list[str] = []
    at = 0
    while True:
        found = _ELEMENT.match(text, at)
        if found is None:
            raise ParseError(f"not a host list: {text[:80]!r}")
        names.extend(itertools.islice(_element(found[0]), MAX_NAMES + 1))
        if len(names) > MAX_NAMES:
            raise ParseError(f"a host list of more than {MAX_NAMES} names: {text[:80]!r}")
        at = found.end()
        if at == len(text):
            return tuple(names)
        if text[at] != ",":
            raise ParseError(f"not a host list: {text[:80]!r}")
        at += 1


def _element(text: str) -> Iterator[str]:
    """One expression without a comma outside brackets; several brackets multiply."""
    pieces = [
        list(_numbers(piece[1:-1])) if piece.startswith("[") else [piece]
        for piece in _PIECE.findall(text)
    ]
    return map("".join, itertools.product(*pieces))


def _numbers(text: str) -> Iterator[str]:
    """The inside of one bracket: numbers and ranges, leading zeros kept."""
    total = 0
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ParseError(f"not a range of hosts: {part[:80]!r}")
        first, last = int(found[1]), int(found[2] or found[1])
        total += last - first + 1
        if last < first or total > MAX_NAMES:
            raise ParseError(f"not a range of hosts: {part[:80]!r}")
        width = len(found[1])
        yield from (f"{number:0{width}d}" for number in range(first, last + 1))
