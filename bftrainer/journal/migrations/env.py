"""Runs the migrations on the connection from ``bftrainer.journal.database.migrate``.

Alembic executes this file. The connection is already in a transaction, so a migration is atomic.
"""

from __future__ import annotations

from alembic import context

from bftrainer.journal.projection import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters tables by copying them
)
context.run_migrations()
