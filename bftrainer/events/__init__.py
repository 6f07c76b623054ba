"""Snapshots -> events: the changes that call for a decision. Pure."""
