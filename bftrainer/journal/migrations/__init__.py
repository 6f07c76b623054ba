"""Alembic migrations of the journal; run in process when a journal is opened."""
