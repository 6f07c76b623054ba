"""Runs the migrations on the connection that ``bftrainer.journal.migrate`` hands in.

Alembic executes this file; the connection is already in a transaction, so that a
migration happens wholly or not at all.
"""

from __future__ import annotations

from alembic import context

from bftrainer.journal.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters tables by copying them
)
context.run_migrations()
