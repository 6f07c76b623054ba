"""Copies of a journal, taken while the daemon writes it, and put back while none runs.

A copy consists of the database and of the mark of its last entry. When it is put back, the mark of
the state directory stays if there is one: it knows what was acknowledged after the copy, and the
daemon says what is missing before it starts (BFT-2213).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bftrainer.ground.fence import write_whole
from bftrainer.journal.database import sync
from bftrainer.journal.errors import translated
from bftrainer.journal.journal import Journal
from bftrainer.journal.mark import (
    JOURNAL_NAME,
    MARK_NAME,
    MARK_SUFFIX,
    Mark,
    beside,
    encode,
    lost,
    read,
)
from bftrainer.journal.projection import HEAD_REVISION
from bftrainer.model.errors import BftError, ExitCode, UsageError

BUSY_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A copy of a journal."""

    mark: Mark  # of its last entry
    at_s: float  # when that was written


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A copy that was put back."""

    copied: Copied
    missing: BftError | None  # what the daemon will say at its start
    has_known_mark: bool  # False: nothing tells what was acknowledged later
    replaced: Path | None  # the journal that was there


def back_up(journal: Path, target: Path) -> Copied:
    """Copy a journal, also while a daemon writes it; on disk and checked when this returns.

    Args:
        journal: of SQLite.
        target: must not exist; its mark is written beside it.

    Raises:
        BftError: BFT-1581, there is no journal, or the target cannot be written; BFT-1582, it is
            of another release; 22xx, it is damaged, or locked.
    """
    if not journal.is_file():
        raise _impossible(f"there is no journal {journal}")
    mark_file = _mark_of(target)
    for path in (target, mark_file):
        if path.exists() or path.is_symlink():
            raise _impossible(f"{path} exists")
    draft = target.with_name(f".{target.name}.new")
    try:
        with _private(draft):
            acknowledged = beside(journal)
            with translated(str(journal)):
                _copy(journal, draft)
            copied = _checked(draft, acknowledged)
            write_whole(mark_file, (encode(copied.mark), encode(copied.mark)))
            draft.rename(target)
            sync(target.parent)
    except OSError as problem:
        raise _impossible(f"{target}: {problem.strerror or problem}") from problem
    return copied


def restore(copy: Path, state_dir: Path) -> Restored:
    """Put a copy in place of the journal of a state directory; its lock must be held.

    Raises:
        BftError: BFT-1581, it cannot be read or written; 22xx, the copy is damaged.
    """
    if not copy.is_file():
        raise _impossible(f"there is no copy {copy}")
    journal, mark_file = state_dir / JOURNAL_NAME, state_dir / MARK_NAME
    draft = state_dir / f".{JOURNAL_NAME}.restored"
    replaced = None
    try:
        with _private(draft):
            shutil.copyfile(copy, draft)
            copied = _checked(draft, beside(copy))
            has_known_mark = mark_file.exists() or mark_file.is_symlink()
            if has_known_mark:
                mark = read(mark_file) or Mark()
            else:
                mark = copied.mark
                write_whole(mark_file, (encode(mark), encode(mark)))
            replaced = _set_aside(journal)
            draft.rename(journal)
            sync(state_dir)
    except OSError as problem:
        raise _impossible(f"{journal}: {problem.strerror or problem}") from problem
    missing = None
    if mark.seq > copied.mark.seq:
        missing = lost(str(journal), mark, copied.mark, is_other=False)
    return Restored(
        copied=copied, missing=missing, has_known_mark=has_known_mark, replaced=replaced
    )


def _copy(journal: Path, draft: Path) -> None:
    """Copy in one step: SQLite's readers hold no writer up (sqlite.org/backup.html)."""
    uri = f"{journal.absolute().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)) as source,
        closing(sqlite3.connect(draft)) as target,
    ):
        # Of a lock, Python's ``backup`` waits for ever; a reader that has begun meets none.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM meta").fetchone()
        source.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")  # one file
    sync(draft)


def _checked(draft: Path, acknowledged: Mark | None) -> Copied:
    """Verify a copy from its last checkpoint on; nothing acknowledged may be missing."""
    with translated(str(draft)), closing(sqlite3.connect(draft)) as connection:
        schema_row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        last_row = connection.execute(
            "SELECT at_s FROM entries ORDER BY seq DESC LIMIT 1"
        ).fetchone()
    schema = None
    if schema_row is not None:
        [schema] = schema_row
    if schema != HEAD_REVISION:
        raise UsageError(
            "BFT-1582",
            f"The journal is of schema {schema!r}; this release has {HEAD_REVISION!r}.",
            "Back it up, and put it back, with the release that wrote it.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )
    with Journal.open(draft, clock=time.time, acknowledged=acknowledged) as opened:
        mark = opened.head()
    at_s = 0.0
    if last_row is not None:
        [at_s] = last_row
    return Copied(mark=mark, at_s=float(at_s))


def _set_aside(journal: Path) -> Path | None:
    """Rename the journal and its log; nothing is deleted."""
    if not journal.exists():
        return None
    stem = f"{journal.name}.replaced-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    for suffix in ("-shm", "-wal", ""):
        part = journal.with_name(journal.name + suffix)
        if part.exists():
            part.rename(journal.with_name(stem + suffix))
    return journal.with_name(stem)


def _mark_of(copy: Path) -> Path:
    return copy.with_name(copy.name + MARK_SUFFIX)


@contextmanager
def _private(draft: Path) -> Iterator[None]:
    """A new file of mode 0600, which is gone afterwards unless it was renamed."""
    leftovers = [draft.with_name(draft.name + suffix) for suffix in ("", "-wal", "-shm")]
    for path in leftovers:
        path.unlink(missing_ok=True)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    os.close(os.open(draft, flags, 0o600))
    try:
        yield
    finally:
        for path in leftovers:
            path.unlink(missing_ok=True)


def _impossible(why: str) -> BftError:
    return UsageError(
        "BFT-1581",
        f"The journal cannot be copied: {why}.",
        "Name the state directory of a daemon with a journal of SQLite, and a new file on another "
        "disk; for PostgreSQL use pg_dump.",
    )
