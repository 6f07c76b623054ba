"""Pilots, agents, workers and generations: what a plan becomes."""
