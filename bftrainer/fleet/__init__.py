"""Pilots, agents, workers and generations: the execution of a plan."""
