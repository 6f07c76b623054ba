"""Entries and their projections: trainers, pilots, meta."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_Seq = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "entries",
        sa.Column("seq", _Seq, primary_key=True, autoincrement=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("trainers", sa.Text, nullable=False),
        sa.Column("pilots", sa.Text, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
    )
    op.create_index("entries_by_kind", "entries", ["kind", "seq"])
    op.create_table(
        "trainers",
        sa.Column("trainer_id", sa.String(16), primary_key=True),
        sa.Column("ordinal", sa.BigInteger, nullable=False, unique=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("submitted_s", sa.Double, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("seq", _Seq, sa.ForeignKey("entries.seq"), nullable=False),
    )
    op.create_table(
        "pilots",
        sa.Column("pilot_id", sa.String(16), primary_key=True),
        sa.Column("ordinal", sa.BigInteger, nullable=False, unique=True),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, nullable=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("requested_s", sa.Double, nullable=False),
        sa.Column("ended_s", sa.Double, nullable=True),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("seq", _Seq, sa.ForeignKey("entries.seq"), nullable=False),
    )
    op.create_index("ix_pilots_state", "pilots", ["state"])
    meta = op.create_table(
        "meta",
        sa.Column("key", sa.String(32), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.bulk_insert(
        meta,
        [
            {"key": "incarnation", "value": "0"},
            {"key": "last_pilot", "value": "0"},
            {"key": "head_seq", "value": "0"},
            {"key": "head_sha256", "value": "0" * 64},
        ],
    )


def downgrade() -> None:
    for table in ("meta", "pilots", "trainers", "entries"):
        op.drop_table(table)
