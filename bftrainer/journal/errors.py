"""The errors of the journal, with the file and the next step.

``translated`` wraps every access to the database; the journal raises others itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from sqlalchemy.exc import DBAPIError

from bftrainer.model.errors import BftError, ExitCode

# Primary codes of SQLite, by the error that they become; all others: its disk failed.
_SQLITE = {
    "BFT-2201": (sqlite3.SQLITE_FULL,),
    "BFT-2206": (
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
    ),
    "BFT-2208": (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
    "BFT-2202": (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_SCHEMA,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_RANGE,
        sqlite3.SQLITE_TOOBIG,  # a length that is damaged: ours are far below the limit
        # Our SQL is valid for our tables, so these mean that the tables are not ours.
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_INTERNAL,
    ),
}
_CODES = {number: code for code, numbers in _SQLITE.items() for number in numbers}
_CAUSES = {
    "BFT-2201": "The disk of the journal {where} is full.",
    "BFT-2202": "The journal {where} is damaged: {why}.",
    "BFT-2203": "The journal {where} has schema {why!r}, which this release does not know.",
    "BFT-2205": "The journal {where} was altered or lost rows: {why}.",
    "BFT-2206": "The journal {where} cannot be opened or written: {why}.",
    "BFT-2207": "The disk of the journal {where} failed: {why}.",
    "BFT-2208": "Another process holds the journal {where} locked.",
    "BFT-2209": "A newer daemon (incarnation {found}) has taken over the journal {where} "
    "from this one (incarnation {own}).",
    "BFT-2210": "The journal {where} cannot be used: {why}.",
    "BFT-2211": "The journal's database {where} failed: {why}.",
}
_KEEP_IT = (
    "Stop the daemon, keep the file for inspection (mv {where} {where}.damaged, likewise "
    "-wal and -shm beside it), restore the last backup and start again; do not edit it."
)
_NEXT_STEPS = {
    "BFT-2201": "Free space there; trainers keep training, and nothing is launched until the "
    "journal can be written again.",
    "BFT-2202": _KEEP_IT,
    "BFT-2203": "Start the newer release that wrote it, or give this one another state directory.",
    "BFT-2205": _KEEP_IT,
    "BFT-2206": "Give the user of the daemon write permission to it and its directory, "
    "or choose another state directory.",
    "BFT-2207": "Check the kernel log (dmesg) and replace the disk or move the state directory; "
    "a running daemon launches nothing until the journal can be written again.",
    "BFT-2208": "Find it with: fuser {where}; end it and try again.",
    "BFT-2209": "Let this daemon end; it must not act any more.",
    "BFT-2210": "Give a path, sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE "
    "(for PostgreSQL also: pip install 'bftrainer[postgresql]').",
    "BFT-2211": "Check that the server runs and that the user may write to this database; then "
    "try again.",
}
_EXITS = {
    "BFT-2202": ExitCode.VALIDATION_FAILED,
    "BFT-2203": ExitCode.VALIDATION_FAILED,
    "BFT-2205": ExitCode.VALIDATION_FAILED,
    "BFT-2206": ExitCode.NOT_PERMITTED,
    "BFT-2208": ExitCode.TIMEOUT,
    "BFT-2209": ExitCode.ALREADY_RUNNING,
    "BFT-2210": ExitCode.USAGE,
}


class DamageError(Exception):
    """A value that was read cannot have been written by us; ``translated`` names the journal."""


class JournalError(BftError):
    """The journal cannot be read or written (22xx); nothing was half-written."""

    @classmethod
    def of(cls, code: str, where: object, why: object = "", **words: object) -> Self:
        """Return the error of this code; ``why`` and ``words`` are what its sentences name."""
        words |= {"where": where, "why": why}
        cause, next_step = [texts[code].format_map(words) for texts in (_CAUSES, _NEXT_STEPS)]
        return cls(code, cause, next_step, exit_code=_EXITS.get(code, ExitCode.INTERNAL))


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn errors of the database driver, and of what it read, into a ``JournalError``.

    SQLite's own messages quote the file, so that Python may fail to decode even them.
    """
    try:
        yield
    except DBAPIError as problem:
        cause = problem.orig
        if isinstance(cause, sqlite3.Error):
            raise _from_sqlite(where, cause) from problem
        raise JournalError.of("BFT-2211", where, _one_line(cause or problem)) from problem
    except sqlite3.Error as problem:
        raise _from_sqlite(where, problem) from problem
    except UnicodeDecodeError as problem:
        raise JournalError.of("BFT-2202", where, "a text in it is not UTF-8") from problem
    except DamageError as problem:
        raise JournalError.of("BFT-2202", where, _one_line(problem)) from problem


def _from_sqlite(where: str, problem: sqlite3.Error) -> JournalError:
    # Errors of Python's own layer (such as invalid UTF-8) have no code.
    primary = getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    return JournalError.of(_CODES.get(primary, "BFT-2207"), where, _one_line(problem))


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
