"""Reads, writes, removes and verifies rows of the tables, inside a transaction of the journal.

A checkpoint is an entry that holds every trainer and pilot that is not over, so earlier entries
are not needed. A start reads the journal from the last checkpoint on, and entries older than the
policy's ``journal_days`` can be removed. Its payload has the hash of the previous entry, so that
the chain of hashes can begin with it.

``verify`` compares pages, hash chain and projections with what was written; a flipped bit or a
lost row becomes BFT-2205, never a wrong decision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Select, Table, delete, func, insert, select, text, update

from bftrainer.journal import projection
from bftrainer.journal.backlog import EntryDraft
from bftrainer.journal.errors import DamageError, JournalError
from bftrainer.journal.mark import Mark
from bftrainer.journal.projection import (
    CHECKPOINT,
    OVER,
    STATES,
    PilotState,
    Projection,
    Row,
    id_of,
    row_of,
)
from bftrainer.journal.texts import digest_of, references
from bftrainer.model.canonical import CanonicalError, parse, text_of

ACCOUNT_SUMS: Final = "account-sums"  # entries of this kind hold what earlier ones added up to
ENTRIES_BETWEEN: Final = 10_000  # between two checkpoints; bounds what a start reads
# Between a long checkpoint and the next, entries of so many times its length: of many trainers that
# ended within ``journal_days``, checkpoints would else be most of the journal.
LONG_CHECKPOINT_CHARS: Final = 1_000_000
TIMES_CHECKPOINT: Final = 4
REMOVED_AT_ONCE: Final = 200  # entries per transaction, so that other writers do not wait
NO_HASH: Final = "0" * 64  # stands before the first entry
_BATCH_ROWS: Final = 256
UNREADABLE: Final = (  # what reading raises of content that we never write
    *(CanonicalError, ValueError, TypeError, LookupError, AttributeError),
    *(OverflowError, RecursionError),
)
_BEFORE = projection.entries.alias("before")


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
        incarnation, last_pilot, head_seq = [int(meta[name]) for name in Meta._fields[:3]]
        return Meta(incarnation, last_pilot, head_seq, str(meta["head_sha256"]))
    except (KeyError, ValueError, TypeError) as problem:
        why = "its own counters are missing or unreadable"
        raise JournalError.of("BFT-2202", where, why) from problem


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
    """Change a counter; where an index or the schema is damaged, its row is not found."""
    table = projection.meta
    query = update(table).where(table.c.key == key).values(value=str(value))
    if connection.execute(query).rowcount != 1:
        raise DamageError("its own counters cannot be changed")


def greatest(connection: Connection, table: Table) -> int:
    """Return the greatest number of a trainer or pilot in its table, 0 if it is empty."""
    return _number(connection, select(func.max(table.c.ordinal)))


def _number(connection: Connection, query: Any) -> int:
    value = connection.execute(query).scalar()
    if value is not None and type(value) is not int:  # an index is damaged
        raise DamageError("a number in it is none")
    return value or 0


def write(connection: Connection, draft: EntryDraft, meta: Meta, before: Mark, at_s: float) -> Mark:
    """Add an entry and update the state tables; return the mark that follows ``before``."""
    seq, payload = meta.head_seq + 1, draft.payload
    row: Row = {
        "seq": seq,
        "at_s": at_s,
        "incarnation": meta.incarnation,
        "kind": draft.kind,
        "payload": payload if isinstance(payload, str) else payload.written_as(seq),
        "trainers": f"[{','.join(draft.trainers)}]",
        "pilots": f"[{','.join(draft.pilots)}]",
    }
    row["sha256"] = entry_hash(meta.head_sha256, row)
    connection.execute(insert(projection.entries), row)
    _keep_texts(connection, draft.texts)
    set_meta(connection, "head_seq", seq)
    set_meta(connection, "head_sha256", row["sha256"])
    last_trainer = last_pilot = 0
    if draft.kind == CHECKPOINT:  # the tables have its records
        for table in STATES:
            connection.execute(update(table).values(seq=seq))
    else:
        last_trainer = _replace(connection, projection.trainers, draft.trainers, seq)
        last_pilot = _replace(connection, projection.pilots, draft.pilots, seq)
    if last_pilot > meta.last_pilot:
        set_meta(connection, "last_pilot", last_pilot)
    return before.followed_by(
        seq,
        row["sha256"],
        incarnation=meta.incarnation,
        last_pilot=max(meta.last_pilot, last_pilot),
        last_trainer=last_trainer,
    )


def _keep_texts(connection: Connection, texts: Mapping[str, str]) -> None:
    """Add the texts that are not there yet."""
    table = projection.texts
    for digest, content in texts.items():
        is_there = select(table.c.sha256).where(table.c.sha256 == digest)
        if connection.execute(is_there).scalar() is None:
            connection.execute(insert(table), {"sha256": digest, "text": content})


def text_of_digest(connection: Connection, digest: str) -> str | None:
    """Return a text; None: it was removed."""
    table = projection.texts
    content = connection.execute(select(table.c.text).where(table.c.sha256 == digest)).scalar()
    if content is None:
        return None
    return str(content)


def remove_texts(connection: Connection) -> int:
    """Remove the texts to which no trainer of the state table refers; return how many."""
    table, in_use = projection.texts, _texts_in_use(connection)
    digests = list(connection.execute(select(table.c.sha256)).scalars())
    unused = [digest for digest in digests if digest not in in_use]
    for digest in unused:
        connection.execute(delete(table).where(table.c.sha256 == digest))
    return len(unused)


def _texts_in_use(connection: Connection) -> set[str]:
    digests: set[str] = set()
    for record in connection.execute(select(projection.trainers.c.record)).scalars():
        digests |= references(record)
    return digests


def _damaged_text(connection: Connection) -> str:
    """Return the first mismatch of the texts; "": none."""
    intact = set()
    for row in connection.execute(select(projection.texts)):
        if row.sha256 != digest_of(row.text):
            return f"the checksum of the text {row.sha256} does not fit"
        intact.add(row.sha256)
    for digest in sorted(_texts_in_use(connection) - intact):
        return f"the text {digest} of a trainer is missing"
    return ""


def _replace(connection: Connection, table: Table, records: tuple[str, ...], seq: int) -> int:
    """Write the rows of records; return the greatest of their numbers."""
    key = id_of(table)
    rows = [row_of(table, parse(record), seq) for record in records]
    last = {row[key]: row for row in rows}  # of two states in one entry, the later
    if last:
        connection.execute(delete(table).where(table.c[key].in_(list(last))))
        connection.execute(insert(table), list(last.values()))
    return max([row["ordinal"] for row in rows], default=0)


def last_checkpoint(connection: Connection, until_s: float | None = None) -> int:
    """Return the number of the last checkpoint; 0: none.

    ``until_s``: of the last one up to this time before which entries may be removed. The last
    sums of the accounting stay.
    """
    table = projection.entries
    query = select(func.max(table.c.seq)).where(table.c.kind == CHECKPOINT)
    if until_s is not None:
        query = query.where(table.c.at_s <= until_s)
        sums = select(func.max(table.c.seq)).where(table.c.kind == ACCOUNT_SUMS)
        if last := _number(connection, sums):
            query = query.where(table.c.seq <= last)
    return _number(connection, query)


def first_entry(connection: Connection) -> int:
    """Return the number of the first entry that is left; 0: none."""
    return _number(connection, select(func.min(projection.entries.c.seq)))


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
    payload = {
        "follows": meta.head_sha256,
        "incarnation": meta.incarnation,
        "last_pilot": meta.last_pilot,
    }
    trainer_records, pilot_records = [
        tuple(connection.execute(select(table.c.record).order_by(table.c.ordinal)).scalars())
        for table in STATES
    ]
    return EntryDraft(CHECKPOINT, text_of(payload), trainer_records, pilot_records)


def remove_before(connection: Connection, checkpoint: int) -> int:
    """Remove some entries before a checkpoint, oldest first; return how many."""
    seq = projection.entries.c.seq
    first = first_entry(connection)
    below = min(checkpoint, first + REMOVED_AT_ONCE)
    connection.execute(delete(projection.entries).where(seq < below))
    return max(0, below - first)


def entry_hash(previous: str, row: Row) -> str:
    """Return the hash of an entry; it covers every column and the hash before.

    No column can contain the separator: the texts are ASCII JSON or plain words.
    """
    columns = ("seq", "at_s", "incarnation", "kind", "payload", "trainers", "pilots")
    parts = [previous, *(f"{row[column]}" for column in columns)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def select_entries() -> Select[Any]:
    """Return a query of all entries for ``read_entries``; callers narrow it."""
    table = projection.entries
    before = table.outerjoin(_BEFORE, _BEFORE.c.seq == table.c.seq - 1)
    return select(table, _BEFORE.c.sha256.label("before_sha256")).select_from(before)


def read_entries(connection: Connection, where: str, query: Select[Any]) -> list[Row]:
    """Return the rows of a query; each is as it was written, whatever else is in the file.

    Args:
        connection: in a transaction.
        where: the journal.
        query: of entries ordered by their numbers, either way.

    Raises:
        JournalError: BFT-2205.
    """
    rows: list[Row] = []
    for mapping in connection.execute(query).mappings():
        row = dict(mapping)
        previous = row.pop("before_sha256")
        if previous is None:
            previous = _hash_before_the_first(connection, where, row)
        if previous and row["sha256"] != entry_hash(previous, row):
            why = f"the checksum of entry {row['seq']} does not fit"
            raise JournalError.of("BFT-2205", where, why)
        rows.append(row)
    _check_order(rows, where)
    return rows


def _check_order(rows: Sequence[Row], where: str) -> None:
    """Raise BFT-2205 if entries are out of order.

    In a damaged tree a page may stand in two places: the file then tells its entries twice, each
    as it was written, instead of others.
    """
    numbers = [row["seq"] for row in rows]
    ascending = sorted(set(numbers))
    if numbers not in (ascending, ascending[::-1]):
        why = f"entries {ascending[0]} to {ascending[-1]} are out of order"
        raise JournalError.of("BFT-2205", where, why)


def _hash_before_the_first(connection: Connection, where: str, row: Row) -> str:
    """Return the hash before an entry without predecessor; "": it was removed with its entry."""
    if row["seq"] == 1:
        return NO_HASH
    if row["seq"] != first_entry(connection):
        raise JournalError.of("BFT-2205", where, f"the entry before {row['seq']} is missing")
    if row["kind"] != CHECKPOINT:
        return ""
    try:
        return str(parse(row["payload"])["follows"])
    except UNREADABLE as problem:
        why = f"entry {row['seq']} is unreadable ({type(problem).__name__})"
        raise JournalError.of("BFT-2205", where, why) from problem


def verify(connection: Connection, where: str, *, begin: int = 0) -> int:
    """Return the number of entries read; they are whole and add up to the tables.

    Args:
        connection: in a transaction.
        where: the journal.
        begin: the checkpoint to begin with; 0: all there is, the structure of the file included.

    Raises:
        JournalError: BFT-2202 (structure) or BFT-2205 (content).
    """
    if begin == 0 and connection.dialect.name == "sqlite":  # a server checks its own pages
        findings = connection.execute(text("PRAGMA integrity_check(1)")).scalars().all()
        if findings != ["ok"]:
            finding, *_ = findings
            raise JournalError.of("BFT-2202", where, str(finding).replace("\n", " "))
    try:
        count, mismatch = _read_again(connection, begin or first_to_follow(connection))
    except UNREADABLE as problem:  # columns of a type or form that we never write
        why = f"unreadable content ({type(problem).__name__})"
        raise JournalError.of("BFT-2205", where, why) from problem
    if mismatch:
        raise JournalError.of("BFT-2205", where, mismatch)
    return count


def first_to_follow(connection: Connection) -> int:
    """Return where the chain begins: a checkpoint if the first entry was removed, otherwise 0.

    Entries before that checkpoint are being removed, oldest first.
    """
    if first_entry(connection) <= 1:
        return 0
    table = projection.entries
    return _number(connection, select(func.min(table.c.seq)).where(table.c.kind == CHECKPOINT))


def check_front(connection: Connection, where: str, checkpoint: int) -> None:
    """Raise BFT-2205 if the first entries are not those that a removal leaves.

    Entries are removed before a checkpoint alone, and those that are left follow each other. In a
    damaged tree the first ones may only seem removed: others stand in their place.

    Args:
        connection: in a transaction.
        where: the journal.
        checkpoint: as ``first_to_follow`` returns it.
    """
    seq, first = projection.entries.c.seq, first_entry(connection)
    if first > 1 and not checkpoint:
        raise JournalError.of("BFT-2205", where, f"the entries before {first} are missing")
    query = select(seq).where(seq < checkpoint).order_by(seq)
    last = first - 1
    for number in connection.execute(query).scalars():
        if number != last + 1:
            raise JournalError.of("BFT-2205", where, f"entry {number} follows entry {last}")
        last = number


def _read_again(connection: Connection, begin: int) -> tuple[int, str]:
    """Return the number of entries, and the first mismatch; "": none."""
    rebuilt = Projection()
    head, last, count = NO_HASH, max(0, begin - 1), 0
    if begin:
        payload = select(projection.entries.c.payload).where(projection.entries.c.seq == begin)
        head = str(parse(str(connection.execute(payload).scalar()))["follows"])
    for row in _rows_after(connection, last):
        if row["seq"] != last + 1:
            return count, f"entry {last + 1} is missing"
        if row["sha256"] != entry_hash(head, row):
            return count, f"the checksum of entry {row['seq']} does not fit"
        head, last, count = row["sha256"], row["seq"], count + 1
        rebuilt.add(row)
    rebuilt_meta = Meta(rebuilt.incarnation, rebuilt.last_pilot, last, head)._asdict()
    meta = {row.key: row.value for row in connection.execute(select(projection.meta))}
    if meta != {name: str(value) for name, value in rebuilt_meta.items()}:
        return count, f"the last of {last} entries is not the one written last"
    for table in STATES:
        rows = connection.execute(select(table)).mappings()
        kept_rows, rebuilt_rows = (
            {row[id_of(table)]: dict(row) for row in rows},
            rebuilt.rows(table),
        )
        for name in sorted(rebuilt_rows.keys() | kept_rows.keys(), key=str):
            if rebuilt_rows.get(name) != kept_rows.get(name):
                return count, f"the state of {name} does not match its entries"
    return count, _damaged_text(connection)


def _rows_after(connection: Connection, seq: int) -> Iterator[Row]:
    table = projection.entries
    while True:
        query = select(table).where(table.c.seq > seq).order_by(table.c.seq).limit(_BATCH_ROWS)
        rows = list(map(dict, connection.execute(query).mappings()))
        yield from rows
        if not rows:
            return
        seq = rows[-1]["seq"]
