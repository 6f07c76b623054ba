"""Opens the database of a journal: creates, checks and migrates it.

Returns an engine with one connection and the newest schema. Called by ``Journal.open``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    create_engine,
    event,
    insert,
    inspect,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import StaticPool

from bftrainer.journal import projection
from bftrainer.journal.errors import JournalError, translated
from bftrainer.journal.lock import is_shared
from bftrainer.journal.projection import HEAD_REVISION, metadata

BUSY_TIMEOUT_S = 5.0
_SMALLEST_BYTES = 4096  # one page; a whole journal has more than ten
# Schema of an earlier release -> the next one and the statements that lead there; all of them
# remain. The release before reads a journal unless a table changes (docs/adr/0006-journal.md).
UPGRADES: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "0001": (
        "0002",
        (
            # Otherwise the removal of an entry scans all trainers and pilots (foreign keys).
            "CREATE INDEX ix_trainers_seq ON trainers (seq)",
            "CREATE INDEX ix_pilots_seq ON pilots (seq)",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """An open database, and its name in errors."""

    engine: Engine
    where: str


def open_database(url_or_path: str | Path) -> Database:
    """Open or create the database; its schema is the newest when this returns.

    Raises:
        JournalError: BFT-2201 to 2211.
    """
    url = _url(url_or_path)
    if url.get_backend_name() == "sqlite":
        path = Path(str(url.database)).absolute()
        _prepare_directory(path)
        _create_if_missing(path)
        _refuse_truncated(path)
        database = Database(engine=_sqlite(path), where=str(path))
    else:
        database = Database(engine=_server(url), where=url.render_as_string())
    try:
        is_sqlite = url.get_backend_name() == "sqlite"
        with translated(database.where):
            _bring_up_to_date(database, is_created=is_sqlite)
    except BaseException:
        database.engine.dispose()
        raise
    return database


def close_unchanged(database: Database) -> None:
    """Close without moving SQLite's log into the file: a refused journal may be evidence.

    The last connection to close moves the log, unless it is read-only; so we open one.
    """
    with contextlib.ExitStack() as last:
        if database.engine.dialect.name == "sqlite":
            with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
                uri = f"{Path(database.where).as_uri()}?mode=ro"
                keeper = last.enter_context(closing(sqlite3.connect(uri, uri=True)))
                keeper.execute("SELECT 1 FROM sqlite_master").fetchone()
        database.engine.dispose()


def _bring_up_to_date(database: Database, *, is_created: bool) -> None:
    # Read first: opening a journal for reading must not block a running daemon.
    with database.engine.execution_options(is_reading=True).begin() as connection:
        version = _version(connection, database.where)
        has_texts = inspect(connection).has_table(projection.texts.name)
    if version is None and is_created:
        raise JournalError.of("BFT-2202", database.where, "it is empty")
    if version != HEAD_REVISION:
        with database.engine.begin() as connection:
            migrate(connection, database.where)
    if not has_texts:  # no new schema: the release before ignores the table
        with database.engine.begin() as connection:
            projection.texts.create(connection, checkfirst=True)


def migrate(connection: Connection, where: str) -> None:
    """Bring the schema to ``HEAD_REVISION`` inside the caller's transaction."""
    version = _version(connection, where)
    if version is None:
        metadata.create_all(connection)
        counters = {"incarnation": 0, "last_pilot": 0, "head_seq": 0, "head_sha256": "0" * 64}
        rows = [{"key": key, "value": str(value)} for key, value in counters.items()]
        connection.execute(insert(projection.meta), rows)
        connection.execute(insert(projection.version), {"version_num": HEAD_REVISION})
        return
    while version != HEAD_REVISION:
        if version not in UPGRADES:
            raise JournalError.of("BFT-2203", where, version)
        version, statements = UPGRADES[version]
        for statement in statements:
            connection.execute(text(statement))
        connection.execute(update(projection.version).values(version_num=version))


def _version(connection: Connection, where: str) -> str | None:
    tables = set(inspect(connection).get_table_names())
    if projection.version.name in tables:
        return str(connection.execute(select(projection.version)).scalar())
    if tables & set(metadata.tables):
        raise JournalError.of("BFT-2202", where, "it has our tables but no schema version")
    return None


def _url(url_or_path: str | Path) -> URL:
    if isinstance(url_or_path, Path) or "://" not in url_or_path:
        return URL.create("sqlite", database=str(url_or_path))
    try:
        url = make_url(url_or_path)
    except ArgumentError as problem:
        raise JournalError.of("BFT-2210", "URL", "it is not a database URL") from problem
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise JournalError.of(
            "BFT-2210", url.render_as_string(), "only SQLite and PostgreSQL are supported"
        )
    if url.get_backend_name() == "sqlite" and (url.database or ":memory:") == ":memory:":
        raise JournalError.of("BFT-2210", url.render_as_string(), "a journal must be in a file")
    return url


def _prepare_directory(path: Path) -> None:
    with _refused(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for place in (path.parent, path):
        if place.exists() and not os.access(place, os.R_OK | os.W_OK):
            raise JournalError.of("BFT-2206", path, f"no permission to read and write {place}")


def _create_if_missing(path: Path) -> None:
    """Create the database under a temporary name and rename it when it has all tables.

    So an empty file under its name has lost its content, and a journal cannot silently start
    afresh.
    """
    if path.exists():
        return
    with _directory_locked(path):
        if path.exists() or path.is_symlink():
            return
        for suffix in ("-wal", "-journal"):
            if path.with_name(path.name + suffix).exists():
                raise JournalError.of(
                    "BFT-2202", str(path), f"the file is gone although {path.name}{suffix} exists"
                )
        draft = path.with_name(f".{path.name}.new")
        with _refused(path):
            for leftover in path.parent.glob(f"{draft.name}*"):
                leftover.unlink()
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        engine = _sqlite(draft)
        try:
            with translated(str(path)), engine.begin() as connection:
                migrate(connection, str(path))
        finally:
            engine.dispose()  # closing moves the log into the file
        sync(draft)
        draft.rename(path)
        sync(path.parent)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into BFT-2206."""
    try:
        yield
    except OSError as problem:
        raise JournalError.of("BFT-2206", path, problem.strerror or problem) from problem


@contextmanager
def _directory_locked(path: Path) -> Iterator[None]:
    """Let one process at a time decide whether to create the file."""
    with _refused(path):
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def sync(path: Path) -> None:
    """Bring a file or directory to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refuse_truncated(path: Path) -> None:
    """Refuse a truncated file, which SQLite would take for a new one.

    The file is not opened here: closing it would drop the locks that SQLite holds on it
    elsewhere in this process.
    """
    if not path.is_file():
        raise JournalError.of("BFT-2206", path, "it is not a regular file")
    if path.stat().st_size < _SMALLEST_BYTES:
        raise JournalError.of("BFT-2202", path, f"only {path.stat().st_size} bytes are left of it")


def _sqlite(path: Path) -> Engine:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,  # transactions begin where SQLAlchemy says so
            check_same_thread=False,  # the journal serialises its callers
        )
        try:
            with closing(connection.cursor()) as cursor:
                if is_shared(path.parent):
                    # The index of the log is then in our memory, not in a file that hosts would
                    # have to share (sqlite.org/wal.html, "Use of WAL Without Shared-Memory").
                    cursor.execute("PRAGMA locking_mode=EXCLUSIVE")
                cursor.execute("PRAGMA journal_mode=WAL")
                cursor.execute("PRAGMA synchronous=FULL")
                cursor.execute("PRAGMA foreign_keys=ON")
        except BaseException:  # its message may be no text, which is another error
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # IMMEDIATE: writers wait at the beginning instead of failing at the end. Readers see
        # the state at their first read and block no writer.
        is_reading = connection.get_execution_options().get("is_reading", False)
        connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")

    return engine


def _server(url: URL) -> Engine:
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_pre_ping": True}
    # A server that is away or hangs must not hold the daemon up (libpq's parameters).
    answers = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "application_name": "bftrainer"}
    try:
        engine = create_engine(url, connect_args=answers, **options)
    except (NoSuchModuleError, ModuleNotFoundError) as problem:
        raise JournalError.of(
            "BFT-2210", url.render_as_string(), "its database driver is not installed"
        ) from problem

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # Readers see one state throughout, as with SQLite; writers wait at the counters.
        if connection.get_execution_options().get("is_reading", False):
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")

    return engine
