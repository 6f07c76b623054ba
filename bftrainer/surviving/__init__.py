"""Decisions that fail on a trainer, job or node: taken without it, by name (docs/adr/0017)."""
