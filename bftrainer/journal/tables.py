"""Reads and writes rows of the tables, inside a transaction of the journal."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, delete, func, insert, select, update

from bftrainer.journal import projection
from bftrainer.journal.backlog import EntryDraft
from bftrainer.journal.errors import damaged
from bftrainer.journal.mark import Mark
from bftrainer.journal.projection import Row, pilot_row, trainer_row
from bftrainer.journal.records import pilot_ordinal
from bftrainer.journal.verify import entry_hash


class Meta(NamedTuple):
    """The journal's own counters."""

    incarnation: int
    last_pilot: int
    head_seq: int
    head_sha256: str


def meta_of(connection: Connection, where: str) -> Meta:
    """Return the counters; a transaction that writes locks them against other writers.

    Raises:
        JournalError: BFT-2202, one is missing or unreadable.
    """
    query = select(projection.meta)
    if not connection.get_execution_options().get("is_reading", False):
        # It serialises writers on a server, as BEGIN IMMEDIATE does in a file.
        query = query.with_for_update()
    meta = {row.key: row.value for row in connection.execute(query)}
    try:
        return Meta(
            incarnation=int(meta["incarnation"]),
            last_pilot=int(meta["last_pilot"]),
            head_seq=int(meta["head_seq"]),
            head_sha256=str(meta["head_sha256"]),
        )
    except (KeyError, ValueError, TypeError) as problem:
        raise damaged(where, "its own counters are missing or unreadable") from problem


def head_of(connection: Connection, where: str) -> Mark:
    """Return the mark of the last entry.

    Raises:
        JournalError: as ``meta_of``.
    """
    meta = meta_of(connection, where)
    return Mark().followed_by(
        meta.head_seq,
        meta.head_sha256,
        incarnation=meta.incarnation,
        last_pilot=max(meta.last_pilot, greatest(connection, projection.pilots)),
        last_trainer=greatest(connection, projection.trainers),
    )


def set_meta(connection: Connection, key: str, value: object) -> None:
    """Change a counter."""
    table = projection.meta
    connection.execute(update(table).where(table.c.key == key).values(value=str(value)))


def greatest(connection: Connection, table: Table) -> int:
    """Return the greatest number of a trainer or pilot in its table, 0 if it is empty."""
    return int(connection.execute(select(func.max(table.c.ordinal))).scalar() or 0)


def write(connection: Connection, draft: EntryDraft, meta: Meta, at_s: float) -> tuple[int, str]:
    """Add an entry and update the state tables; return its number and hash."""
    seq, payload = meta.head_seq + 1, draft.payload
    row: Row = {
        "seq": seq,
        "at_s": at_s,
        "incarnation": meta.incarnation,
        "kind": draft.kind,
        "payload": payload if isinstance(payload, str) else payload.written_as(seq),
        "trainers": draft.trainers_text,
        "pilots": draft.pilots_text,
    }
    row["sha256"] = entry_hash(meta.head_sha256, row)
    connection.execute(insert(projection.entries), row)
    set_meta(connection, "head_seq", seq)
    set_meta(connection, "head_sha256", row["sha256"])
    last_pilot = max((pilot_ordinal(p.pilot_id) for p in draft.pilots), default=0)
    if last_pilot > meta.last_pilot:
        set_meta(connection, "last_pilot", last_pilot)
    _replace(
        connection, projection.trainers, "trainer_id", [trainer_row(t, seq) for t in draft.trainers]
    )
    _replace(connection, projection.pilots, "pilot_id", [pilot_row(p, seq) for p in draft.pilots])
    return seq, row["sha256"]


def _replace(connection: Connection, table: Any, key: str, rows: list[Row]) -> None:
    if rows:
        last = {row[key]: row for row in rows}  # of two states in one entry, the later
        connection.execute(delete(table).where(table.c[key].in_(list(last))))
        connection.execute(insert(table), list(last.values()))
