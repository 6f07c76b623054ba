"""Replays, comparisons, reproductions of papers and demonstrations. No service imports it."""
