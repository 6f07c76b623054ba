"""Reads, writes and removes rows of the tables, inside a transaction of the journal.

A checkpoint is an entry that holds every trainer and pilot that is not over, so earlier entries
are not needed. A start reads the journal from the last checkpoint on, and entries older than the
policy's ``journal_days`` can be removed. Its payload has the hash of the previous entry, so that
the chain of hashes can begin with it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Table, delete, func, insert, select, update

from bftrainer.journal import projection
from bftrainer.journal.backlog import EntryDraft
from bftrainer.journal.errors import damaged
from bftrainer.journal.mark import Mark
from bftrainer.journal.projection import (
    CHECKPOINT,
    OVER,
    PilotState,
    Row,
    pilot_ordinal,
    pilot_row,
    trainer_row,
)
from bftrainer.journal.verify import entry_hash
from bftrainer.model.canonical import parse, text_of


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


ACCOUNT_SUMS: Final = "account-sums"  # entries of this kind hold what earlier ones added up to
ENTRIES_BETWEEN: Final = 10_000  # between two checkpoints; bounds what a start reads
REMOVED_AT_ONCE: Final = 200  # entries per transaction, so that other writers do not wait


def last_checkpoint(connection: Connection, until_s: float | None = None) -> int:
    """Return the number of the last checkpoint; 0: none.

    ``until_s``: of the last one up to this time before which entries may be removed. The last
    sums of the accounting stay.
    """
    table = projection.entries
    query = select(func.max(table.c.seq)).where(table.c.kind == CHECKPOINT)
    if until_s is not None:
        sums = select(func.max(table.c.seq)).where(table.c.kind == ACCOUNT_SUMS)
        query = query.where(table.c.at_s <= until_s)
        if last := connection.execute(sums).scalar():
            query = query.where(table.c.seq <= last)
    return int(connection.execute(query).scalar() or 0)


def first_entry(connection: Connection) -> int:
    """Return the number of the first entry that is left; 0: none."""
    return int(connection.execute(select(func.min(projection.entries.c.seq))).scalar() or 0)


def begin_checkpoint(connection: Connection, where: str, ended_before_s: float) -> EntryDraft:
    """Drop ended trainers and pilots and return the checkpoint to be written.

    Args:
        connection: in a transaction that writes.
        where: the journal.
        ended_before_s: trainers that ended before are dropped, except the newest, from which
            the numbering follows.
    """
    meta, trainers = meta_of(connection, where), projection.trainers
    final = select(trainers).where(trainers.c.state.in_(OVER))
    newest = greatest(connection, trainers)
    for row in connection.execute(final).all():
        ended_s = parse(row.record).get("ended_s") or 0.0
        if row.ordinal != newest and ended_s < ended_before_s:
            connection.execute(delete(trainers).where(trainers.c.trainer_id == row.trainer_id))
    ended = projection.pilots.c.state == str(PilotState.ENDED)
    connection.execute(delete(projection.pilots).where(ended))
    said = {
        "follows": meta.head_sha256,
        "incarnation": meta.incarnation,
        "last_pilot": meta.last_pilot,
    }
    return EntryDraft(
        kind=CHECKPOINT,
        payload=text_of(said),
        trainers_text=_records(connection, trainers),
        pilots_text=_records(connection, projection.pilots),
    )


def end_checkpoint(connection: Connection, seq: int) -> None:
    """Make all remaining rows refer to the checkpoint, which is entry ``seq``."""
    for table in (projection.trainers, projection.pilots):
        connection.execute(update(table).values(seq=seq))


def remove_before(connection: Connection, checkpoint: int) -> int:
    """Remove some entries before a checkpoint, oldest first; return how many."""
    seq = projection.entries.c.seq
    first = first_entry(connection)
    below = min(checkpoint, first + REMOVED_AT_ONCE)
    connection.execute(delete(projection.entries).where(seq < below))
    return max(0, below - first)


def _records(connection: Connection, table: Any) -> str:
    texts = connection.execute(select(table.c.record).order_by(table.c.ordinal)).scalars()
    return f"[{','.join(texts)}]"
