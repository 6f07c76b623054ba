"""A separate file with the last acknowledged entry, which reveals lost entries.

SQLite silently drops a damaged end of its log, and a backup may be old; both leave an intact but
older journal. The daemon records every transaction here and reads the file at its next start. It
has two slots, written in turn, each with a checksum, so an interrupted write loses at most one
entry of the mark. Numbers recorded in it are never reused.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bftrainer.ground.fence import write_whole
from bftrainer.journal.errors import JournalError
from bftrainer.model.errors import BftError, ExitCode

MARK_NAME, MARK_SUFFIX, JOURNAL_NAME = "journal.mark", ".mark", "journal.db"
SLOT_BYTES: Final = 512  # disks write a sector atomically
_MAGIC: Final = "bftrainer-journal-mark-1"
_DIGITS: Final = 18  # of a number, at most
_WORDS: Final = 7  # of a slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The last acknowledged entry."""

    writes: int = 0  # of the mark; the slot with the greater number is newer
    seq: int = 0  # of the last entry
    sha256: str = "0" * 64  # of that entry, and so of all before it
    incarnation: int = 0
    last_pilot: int = 0  # greatest numbers used
    last_trainer: int = 0

    def followed_by(self, seq: int, sha256: str, **numbers: int) -> Mark:
        """Return the mark after one more entry; numbers never decrease."""
        greatest = {name: max(getattr(self, name), n) for name, n in numbers.items()}
        return replace(self, writes=self.writes + 1, seq=seq, sha256=sha256, **greatest)


def encode(mark: Mark) -> bytes:
    """Return a slot."""
    numbers = (mark.writes, mark.seq, mark.incarnation, mark.last_pilot, mark.last_trainer)
    line = " ".join((_MAGIC, *map(str, numbers), mark.sha256))
    return f"{line} {_checksum(line)}\n".encode("ascii").ljust(SLOT_BYTES, b" ")


def decode(slot: bytes) -> Mark | None:
    """Return the mark in a slot; None if it is missing or damaged."""
    line, _, checksum = slot[:SLOT_BYTES].decode("ascii", "replace").rstrip().rpartition(" ")
    words = line.split(" ")
    if checksum != _checksum(line) or len(words) != _WORDS:
        return None
    magic, *numbers, sha256 = words
    if magic != _MAGIC or not all(map(_is_number, numbers)):
        return None
    writes, seq, incarnation, last_pilot, last_trainer = map(int, numbers)
    return Mark(
        writes=writes,
        seq=seq,
        sha256=sha256,
        incarnation=incarnation,
        last_pilot=last_pilot,
        last_trainer=last_trainer,
    )


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _DIGITS


class MarkFile:
    """The mark's file, open as long as the journal is."""

    def __init__(self, path: Path) -> None:
        """Open the file if it exists.

        Raises:
            JournalError: BFT-2214 when it exists but holds no valid mark.
        """
        self.path = path
        self._handle: int | None = None
        self.mark: Mark | None = None  # None: the journal has had no mark yet
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(path, flags)
        except FileNotFoundError:
            return
        except OSError as problem:
            why = problem.strerror or str(problem)
            if problem.errno == errno.ELOOP:
                why = "it is a symbolic link"
            raise _unreadable(path, why) from problem
        marks, why = _marks_of(handle)
        if not marks:
            os.close(handle)
            raise _unreadable(path, why)
        self._handle = handle
        self.mark = max(marks, key=lambda mark: mark.writes)

    def write(self, mark: Mark) -> None:
        """Overwrite the older slot; on disk when this returns.

        Raises:
            JournalError: BFT-2207; the entry is written, but not acknowledged.
        """
        slot = encode(mark)
        try:
            if self._handle is None:  # created atomically: an empty file counts as damaged
                write_whole(self.path, (slot, slot))
                self._handle = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            else:
                os.pwrite(self._handle, slot, SLOT_BYTES * (mark.writes % 2))
                os.fdatasync(self._handle)
        except OSError as problem:
            why = problem.strerror or problem
            raise JournalError.of("BFT-2207", self.path, why) from problem
        self.mark = mark

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _marks_of(handle: int) -> tuple[list[Mark], str]:
    """Return the valid marks of an open file, or why it has none."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        return [], "it is not a regular file"
    marks = []
    for offset in (0, SLOT_BYTES):
        mark = decode(os.pread(handle, SLOT_BYTES, offset))
        if mark is not None:
            marks.append(mark)
    return marks, "it holds no valid mark"


def beside(journal: Path) -> Mark | None:
    """Return the mark of a database file, in a state directory or a copy; None: there is none.

    Raises:
        JournalError: as ``read``.
    """
    journal = journal.resolve()  # as SQLite finds its log
    mark = read(journal.with_name(f"{journal.name}{MARK_SUFFIX}"))
    if mark is None and journal.name == JOURNAL_NAME:
        mark = read(journal.with_name(MARK_NAME))
    return mark


def read(path: Path) -> Mark | None:
    """Return the mark in a file; None: there is no file.

    Raises:
        JournalError: BFT-2214 when it exists but holds no valid mark.
    """
    file = MarkFile(path)
    file.close()
    return file.mark


def lost(where: str, mark: Mark, found: Mark, *, is_other: bool) -> BftError:
    """Return BFT-2213: the journal lacks acknowledged entries, or has others.

    Args:
        where: the journal.
        mark: the last acknowledged entry.
        found: the same for the journal as found.
        is_other: the entry of that number exists but differs.
    """
    missing = [
        _span("trainers", "t", found.last_trainer, mark.last_trainer, width=1),
        _span("pilots", "p", found.last_pilot, mark.last_pilot, width=6),
        _span("incarnations of the daemon", "", found.incarnation, mark.incarnation, width=1),
    ]
    lost_parts = ", ".join(filter(None, missing)) or "no trainer and no pilot"
    cause = f"has lost its last {mark.seq - found.seq} of {mark.seq} acknowledged entries"
    if is_other:
        cause = f"is another one: its entry {mark.seq} is not the one that was acknowledged"
    return JournalError(
        "BFT-2213",
        f"The journal {where} {cause}; missing: {lost_parts}.",
        "First copy the state directory, then restore a later backup if there is one. To go on "
        "without the missing entries, start the daemon once with "
        f"--accept-loss {mark.seq}; missing trainers must be submitted again.",
        exit_code=ExitCode.VALIDATION_FAILED,
    )


def _span(what: str, letter: str, last: int, acknowledged: int, *, width: int) -> str:
    if acknowledged <= last:
        return ""
    span = f"{what} {letter}{last + 1:0{width}d}"
    if acknowledged > last + 1:
        span += f" to {letter}{acknowledged:0{width}d}"
    return span


def _checksum(line: str) -> str:
    return hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()


def _unreadable(path: Path, why: str) -> BftError:
    return JournalError(
        "BFT-2214",
        f"The mark {path} of the last acknowledged entry cannot be read: {why}.",
        "Without it bftrainer cannot tell whether the journal is complete. If it is, or if its "
        f"contents suffice: mv {path} {path}.damaged, and start again.",
        exit_code=ExitCode.VALIDATION_FAILED,
    )
