"""Checkpoints, and the removal of entries before them; inside a transaction of the journal.

A checkpoint is an entry that holds every trainer and pilot that is not over, so earlier entries
are not needed. A start reads the journal from the last checkpoint on, and entries older than the
policy's ``journal_days`` can be removed. Its payload has the hash of the previous entry, so that
the chain of hashes can begin with it.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, delete, func, select, update

from bftrainer.journal import projection, tables
from bftrainer.journal.backlog import EntryDraft
from bftrainer.journal.projection import CHECKPOINT, OVER
from bftrainer.journal.records import PilotState
from bftrainer.model.canonical import parse, text_of

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
    meta, trainers = tables.meta_of(connection, where), projection.trainers
    final = select(trainers).where(trainers.c.state.in_(OVER))
    newest = tables.greatest(connection, trainers)
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
