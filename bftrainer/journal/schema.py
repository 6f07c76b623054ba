"""The tables: the append-only entries and the projections that follow from them.

``migrations`` creates them (a test compares the two); ``journal`` reads and writes.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

HEAD_REVISION: Final = "0002"  # newest migration; a test compares it with the folder

metadata = MetaData()
# INTEGER makes it SQLite's row id; on other databases it would have 32 bits only.
_Seq = BigInteger().with_variant(Integer, "sqlite")

# The source of truth. Rows are appended, and removed from the beginning up to a checkpoint; each
# hash covers its row and the previous hash.
entries = Table(
    "entries",
    metadata,
    Column("seq", _Seq, primary_key=True, autoincrement=False),
    Column("at_s", Double, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("payload", Text, nullable=False),
    Column("trainers", Text, nullable=False),  # records this entry changed, canonical JSON
    Column("pilots", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
    Index("entries_by_kind", "kind", "seq"),
)

# Projections: the latest state of each record, written in the transaction of its entry.
trainers = Table(
    "trainers",
    metadata,
    Column("trainer_id", String(16), primary_key=True),
    Column("ordinal", BigInteger, nullable=False, unique=True),  # FCFS order
    Column("state", String(16), nullable=False),
    Column("submitted_s", Double, nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("record", Text, nullable=False),  # canonical JSON; the columns are for queries
    Column("seq", _Seq, ForeignKey("entries.seq"), nullable=False, index=True),
)

pilots = Table(
    "pilots",
    metadata,
    Column("pilot_id", String(16), primary_key=True),
    Column("ordinal", BigInteger, nullable=False, unique=True),
    Column("node", Text, nullable=False),
    Column("job_id", Text, nullable=True),
    Column("state", String(16), nullable=False, index=True),
    Column("owner", Text, nullable=False),
    Column("requested_s", Double, nullable=False),
    Column("ended_s", Double, nullable=True),
    Column("record", Text, nullable=False),
    Column("seq", _Seq, ForeignKey("entries.seq"), nullable=False, index=True),
)

# incarnation, last_pilot (greatest number given), head_seq, head_sha256
meta = Table(
    "meta",
    metadata,
    Column("key", String(32), primary_key=True),
    Column("value", Text, nullable=False),
)
