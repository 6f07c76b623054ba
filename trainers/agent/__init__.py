"""The process inside a pilot: starts, feeds and ends the workers of one node."""
