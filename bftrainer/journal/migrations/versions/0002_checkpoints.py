"""Entries may begin with a checkpoint: indexes for the fast removal of those before it."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Otherwise the removal of an entry scans all trainers and pilots (foreign keys).
    op.create_index("ix_trainers_seq", "trainers", ["seq"])
    op.create_index("ix_pilots_seq", "pilots", ["seq"])


def downgrade() -> None:
    op.drop_index("ix_pilots_seq", "pilots")
    op.drop_index("ix_trainers_seq", "trainers")
