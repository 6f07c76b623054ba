"""Snapshots → events: what changed that calls for a decision; pure."""
