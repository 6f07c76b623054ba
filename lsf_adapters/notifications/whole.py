"""Assembles pieces of lsb.events into whole records.

A record ends at a line break outside quotes. mbatchd doubles a quote inside a text but writes line
breaks as they are (volclava 2.2), and a user may submit from a directory whose name contains one:
what follows it looks like a record of anybody. So records with line breaks in them are dropped.
In names of files to copy (``bsub -f``) quotes are not doubled: one leaves its record open, and what
follows is dropped, too. ``DROPPED`` says so, and the daemon polls instead.
"""

from __future__ import annotations

from typing import Final

DROPPED: Final = "?"  # in place of records that were dropped
MOST_RECORD_BYTES = 1 << 15  # longer ones are dropped
# A quote that never ends must not hide all later records. No user can write that much into one.
MOST_HIDDEN_BYTES = 1 << 18


class WholeRecords:
    """Assembles records; instead of torn, overlong and broken ones it returns ``DROPPED``."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the current record
        self._length = 0  # of the current record, kept or not
        self._is_quoted = False
        self._is_bad = False  # drop the current record when it ends
        self._ends_anyhow = False  # at the next line break: its begin was skipped

    def add(self, piece: bytes) -> list[str]:
        """Return the records completed by this piece."""
        found: list[str] = []
        first, *others = piece.split(b"\n")
        self._extend(first)
        for line in others:
            self._line_ends(found)
            self._extend(line)
        return found

    def skip(self) -> None:
        """Drop the current record: part of the file was skipped."""
        self._parts.clear()
        self._is_bad = self._ends_anyhow = True

    def _extend(self, part: bytes) -> None:
        self._is_quoted ^= part.count(b'"') % 2 == 1
        self._length += len(part)
        if self._length > MOST_RECORD_BYTES:
            self._is_bad = True
        if self._is_bad:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _line_ends(self, found: list[str]) -> None:
        self._length += 1
        if self._is_quoted and not self._ends_anyhow and self._length <= MOST_HIDDEN_BYTES:
            self._is_bad = True
            self._parts.clear()
            found.append(DROPPED)
            return
        if self._is_bad:
            found.append(DROPPED)
        elif self._parts:
            found.append(b"".join(self._parts).decode(errors="replace"))
        self._parts.clear()
        self._length = 0
        self._is_quoted = self._is_bad = self._ends_anyhow = False
