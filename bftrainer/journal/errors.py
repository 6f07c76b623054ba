"""The errors of the journal, with the file and the next step.

``translated`` wraps every access to the database; the journal raises others, such as
``damaged``, itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from bftrainer.model.errors import BftError, ExitCode

_FULL = {sqlite3.SQLITE_FULL}
_READ_ONLY = {
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
}
_DAMAGED = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_SCHEMA,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_RANGE,
    # Our SQL is valid for our tables, so these mean that the tables are not ours.
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_INTERNAL,
}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class JournalError(BftError):
    """The journal cannot be read or written (22xx); nothing was half-written."""


def disk_full(where: str) -> JournalError:
    """Return BFT-2201."""
    return JournalError(
        "BFT-2201",
        f"The disk of the journal {where} is full.",
        "Free space there; trainers keep training, and nothing is launched until the journal can "
        "be written again.",
    )


def damaged(where: str, what: str) -> JournalError:
    """Return BFT-2202: the content is not what was written."""
    return JournalError(
        "BFT-2202",
        f"The journal {where} is damaged: {what}.",
        f"Stop the daemon, keep the file for inspection (mv {where} {where}.damaged, likewise "
        "-wal and -shm beside it), restore the last backup and start again; do not edit it.",
    )


def from_the_future(where: str, version: str) -> JournalError:
    """Return BFT-2203."""
    return JournalError(
        "BFT-2203",
        f"The journal {where} has schema {version!r}, which this release does not know.",
        "Start the newer release that wrote it, or give this one another state directory.",
    )


def read_only(where: str, why: str) -> JournalError:
    """Return BFT-2206."""
    return JournalError(
        "BFT-2206",
        f"The journal {where} cannot be opened or written: {why}.",
        "Give the user of the daemon write permission to it and its directory, "
        "or choose another state directory.",
        exit_code=ExitCode.NOT_PERMITTED,
    )


def input_output(where: str, why: str) -> JournalError:
    """Return BFT-2207."""
    return JournalError(
        "BFT-2207",
        f"The disk of the journal {where} failed: {why}.",
        "Check the kernel log (dmesg) and replace the disk or move the state directory; a running "
        "daemon launches nothing until the journal can be written again.",
    )


def busy(where: str) -> JournalError:
    """Return BFT-2208."""
    return JournalError(
        "BFT-2208",
        f"Another process holds the journal {where} locked.",
        f"Find it with: fuser {where}; end it and try again.",
    )


def fenced(where: str, own: int, found: int) -> JournalError:
    """Return BFT-2209."""
    return JournalError(
        "BFT-2209",
        f"A newer daemon (incarnation {found}) has taken over the journal {where} "
        f"from this one (incarnation {own}).",
        "Let this daemon end; it must not act any more.",
        exit_code=ExitCode.ALREADY_RUNNING,
    )


def bad_url(url: str, why: str) -> JournalError:
    """Return BFT-2210."""
    return JournalError(
        "BFT-2210",
        f"The journal {url} cannot be used: {why}.",
        "Give a path, sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE "
        "(for PostgreSQL also: pip install 'bftrainer[postgresql]').",
        exit_code=ExitCode.USAGE,
    )


def unavailable(where: str, why: str) -> JournalError:
    """Return BFT-2211: a database server refuses or fails."""
    return JournalError(
        "BFT-2211",
        f"The journal's database {where} failed: {why}.",
        "Check that the server runs and that the user may write to this database; then try again.",
    )


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn errors of the database driver into a ``JournalError``."""
    try:
        yield
    except DBAPIError as problem:
        cause = problem.orig
        if isinstance(cause, sqlite3.Error):
            raise _from_sqlite(where, cause) from problem
        raise unavailable(where, _one_line(cause or problem)) from problem
    except sqlite3.Error as problem:
        raise _from_sqlite(where, problem) from problem


def _from_sqlite(where: str, problem: sqlite3.Error) -> JournalError:
    why = _one_line(problem)
    # Errors of Python's own layer (such as invalid UTF-8) have no code.
    primary = getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if primary in _FULL:
        return disk_full(where)
    if primary in _READ_ONLY:
        return read_only(where, why)
    if primary in _BUSY:
        return busy(where)
    if primary in _DAMAGED:
        return damaged(where, why)
    return input_output(where, why)


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
