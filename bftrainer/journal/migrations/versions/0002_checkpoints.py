"""Entries may begin with a checkpoint: those before it can be removed, and quickly."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Without them the removal of an entry looks at every trainer and every pilot.
    op.create_index("ix_trainers_seq", "trainers", ["seq"])
    op.create_index("ix_pilots_seq", "pilots", ["seq"])


def downgrade() -> None:
    op.drop_index("ix_pilots_seq", "pilots")
    op.drop_index("ix_trainers_seq", "trainers")
