"""Nodes that earn for different times: prices by grade, and a gap that is stated."""
