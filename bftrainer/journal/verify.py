"""Verifies that a journal is as written: pages, hash chain, projections.

``Journal.open`` and ``Journal.verify`` call it inside one transaction; a flipped bit
or a lost row becomes BFT-2205, never a wrong decision. A start reads from the last
checkpoint on, which is all that the tables follow from.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from sqlalchemy import Connection, func, select

from bftrainer.journal import errors, projection
from bftrainer.journal.database import check_pages
from bftrainer.journal.errors import JournalError
from bftrainer.journal.projection import CHECKPOINT, Projection, Row
from bftrainer.model.canonical import CanonicalError, parse

NO_HASH: Final = "0" * 64  # stands before the first entry
_BATCH_ROWS = 256
_UNREADABLE = (
    *(CanonicalError, ValueError, TypeError, KeyError, AttributeError),
    *(OverflowError, RecursionError),
)


def entry_hash(previous: str, row: Row) -> str:
    """Return the hash of an entry; it covers every column and the hash before.

    No column can contain the separator: the texts are ASCII JSON or plain words.
    """
    columns = ("seq", "at_s", "incarnation", "kind", "payload", "trainers", "pilots")
    parts = [previous, *(f"{row[column]}" for column in columns)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def verify(connection: Connection, where: str, *, begin: int = 0) -> int:
    """Return the number of entries read; they are whole and add up to the tables.

    Args:
        connection: in a transaction.
        where: the journal.
        begin: the checkpoint to begin with; 0: all there is, the structure of the file included.

    Raises:
        JournalError: BFT-2202 (structure) or BFT-2205 (content).
    """
    if begin == 0:
        check_pages(connection, where)
    try:
        return _verify_content(connection, where, begin or first_to_follow(connection))
    except _UNREADABLE as problem:
        # Columns of a type or form that we never write.
        raise altered(where, f"unreadable content ({type(problem).__name__})") from problem


def altered(where: str, what: str) -> JournalError:
    """Return BFT-2205: well-formed, but not what was written."""
    damage = errors.damaged(where, what)
    return JournalError(
        "BFT-2205", f"The journal {where} was altered or lost rows: {what}.", damage.next_step
    )


def first_to_follow(connection: Connection) -> int:
    """Return where the chain begins: a checkpoint if the first entry was removed, otherwise 0.

    Entries before that checkpoint are being removed and need not be complete.
    """
    table = projection.entries
    first = connection.execute(select(func.min(table.c.seq))).scalar() or 1
    if first == 1:
        return 0
    checkpoints = select(func.min(table.c.seq)).where(table.c.kind == CHECKPOINT)
    return int(connection.execute(checkpoints).scalar() or 0)


def _verify_content(connection: Connection, where: str, begin: int) -> int:
    rebuilt = Projection()
    head, last, count = NO_HASH, max(0, begin - 1), 0
    if begin:
        payload = select(projection.entries.c.payload).where(projection.entries.c.seq == begin)
        head = str(parse(str(connection.execute(payload).scalar()))["follows"])
    while batch := _batch(connection, last):
        for row in batch:
            if row["seq"] != last + 1:
                raise altered(where, f"entry {last + 1} is missing")
            if row["sha256"] != entry_hash(head, row):
                raise altered(where, f"the checksum of entry {row['seq']} does not fit")
            head, last, count = row["sha256"], row["seq"], count + 1
            rebuilt.add(
                seq=row["seq"],
                kind=row["kind"],
                payload=row["payload"],
                trainers=row["trainers"],
                pilots=row["pilots"],
            )
    expected = {
        "incarnation": str(rebuilt.incarnation),
        "last_pilot": str(rebuilt.last_pilot),
        "head_seq": str(last),
        "head_sha256": head,
    }
    if expected != {row.key: row.value for row in connection.execute(select(projection.meta))}:
        raise altered(where, f"the last of {last} entries is not the one written last")
    _compare(connection, projection.trainers, "trainer_id", rebuilt.trainer_rows(), where)
    _compare(connection, projection.pilots, "pilot_id", rebuilt.pilot_rows(), where)
    return count


def _batch(connection: Connection, after_seq: int) -> list[dict[str, Any]]:
    query = (
        select(projection.entries)
        .where(projection.entries.c.seq > after_seq)
        .order_by(projection.entries.c.seq)
        .limit(_BATCH_ROWS)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def _compare(
    connection: Connection, table: Any, key: str, expected: dict[str, Row], where: str
) -> None:
    found = {row[key]: dict(row) for row in connection.execute(select(table)).mappings()}
    for name in sorted(expected.keys() | found.keys(), key=str):
        if expected.get(name) != found.get(name):
            raise altered(where, f"the state of {name} does not match its entries")
